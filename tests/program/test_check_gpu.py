"""What `make check-gpu` and `make gpu` answer where a part cannot run: left out is never passed."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("MSTAR_TEST_SOURCE", pathlib.Path(__file__).parents[2]))
PYTHON_PART = SOURCE / "python" / "tests" / "run_on_a_gpu.py"
NOT_RUN = 77


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def call(command, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env=dict(os.environ, **environment))
    return done.returncode, done.stdout + done.stderr


class Folder(unittest.TestCase):
    def setUp(self):
        name = tempfile.TemporaryDirectory()
        self.addCleanup(name.cleanup)
        self.root = pathlib.Path(name.name)


class PythonPart(Folder):
    """run_on_a_gpu.py: only a Python without torch may leave it out."""

    def with_torch(self, cmake):
        """Where torch is there and cmake is a shell script; the build's folder is build."""
        script(self.root / "modules" / "torch.py", "")
        script(self.root / "bin" / "cmake", "#!/bin/sh\n" + cmake)
        return call([sys.executable, PYTHON_PART, self.root / "build"],
                    PYTHONPATH=str(self.root / "modules"),
                    PATH=f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def test_without_torch(self):
        code, said = call([sys.executable, "-I", "-S", PYTHON_PART, self.root / "none"])
        self.assertEqual(code, NOT_RUN)
        self.assertIn("NOT RUN: torch is not installed", said)

    def test_extension_that_does_not_build(self):
        code, said = self.with_torch("echo no such header; exit 3\n")
        self.assertEqual(code, 1)
        self.assertIn("no such header", said)
        self.assertIn("FAILED: the extension does not build", said)

    def test_build_without_the_extension(self):
        code, said = self.with_torch("exit 0\n")
        self.assertEqual(code, 1)
        self.assertIn("FAILED: the extension does not build", said)

    def test_extension_that_does_not_load(self):
        code, said = self.with_torch(f"mkdir -p {self.root}/build/python\n"
                                     f"echo odd > {self.root}/build/python/_core.abi3.so\n")
        self.assertEqual(code, 1)
        self.assertIn("python on cuda:0: FAILED:", said)
        self.assertNotIn("NOT RUN", said)


class WholeRun(Folder):
    """check_gpu.sh: the summary and the exit code."""

    def run_with(self, test=0, python=0, benches=0, **environment):
        script(self.root / "tools" / "check_gpu.sh", (SOURCE / "tools/check_gpu.sh").read_text())
        script(self.root / "build/cuda/tests/test_one", f"#!/bin/sh\necho said $1\necho $SAYS\nexit {test}\n")
        script(self.root / "python/tests/run_on_a_gpu.py", f"raise SystemExit({python})\n")
        script(self.root / "bench/run_gpu.py", f"raise SystemExit({benches})\n")
        return call([shutil.which("bash"), self.root / "tools" / "check_gpu.sh", "one"], TOOLS="",
                    GPU_PYTHON=sys.executable, **environment)

    def test_all_pass(self):
        code, said = self.run_with()
        self.assertEqual(code, 0)
        self.assertEqual(said.count("ok: "), 3)
        self.assertTrue(said.endswith("\n3 parts passed, 0 not run, 0 failed\n"), said)
        self.assertNotIn("said", said)

    def test_what_a_part_leaves_out(self):
        code, said = self.run_with(SAYS="jax: its tests are NOT RUN")
        self.assertEqual(code, 0)
        self.assertIn("jax: its tests are NOT RUN\nok: one", said)

    def test_parts(self):
        code, said = self.run_with(benches=1, PARTS="tests", GPU_JOBS="1")
        self.assertEqual(code, 0)
        self.assertTrue(said.endswith("\n2 parts passed, 0 not run, 0 failed\n"), said)

    def test_left_out_is_said(self):
        code, said = self.run_with(python=NOT_RUN)
        self.assertEqual(code, 0)
        self.assertIn("\nNOT RUN: the Python package", said)
        self.assertEqual(said.count("ok: "), 2)
        self.assertTrue(said.endswith("\n2 parts passed, 1 not run, 0 failed\n"), said)

    def test_each_failure_counts(self):
        for part in ("test", "python", "benches"):
            with self.subTest(part):
                code, said = self.run_with(**{part: 1})
                self.assertEqual(code, 1)
                self.assertEqual(said.count("FAILED (1): "), 1)
                self.assertEqual(said.count("ok: "), 2)
                self.assertIn("\n2 parts passed, 0 not run, 1 failed: ", said)
                self.assertEqual("said cuda:0" in said, part == "test")


if __name__ == "__main__":
    unittest.main()
