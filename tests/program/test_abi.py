"""The shared library exports what the public headers declare, and nothing else; the interface is the
recorded one; and tools/check_abi.py sees what would break a program compiled before."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"])
LIBRARY = os.environ["MSTAR_TEST_LIBRARY"]
TOOL = SOURCE / "tools/check_abi.py"


def check(root, *arguments):
    done = subprocess.run([sys.executable, str(TOOL), "--root", str(root), *arguments],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class Library(unittest.TestCase):
    def test_as_recorded_and_exported(self):
        code, text = check(SOURCE, "--allow-additions", "--library", LIBRARY)
        self.assertEqual(code, 0, text)
        self.assertGreater(int(re.search(r"(\d+) lines as recorded", text).group(1)), 300)

    def test_what_it_needs(self):
        listed = subprocess.run(["readelf", "-d", LIBRARY], check=True, capture_output=True,
                                text=True).stdout
        libraries = re.findall(r"NEEDED.*\[(\S+)\]", listed)
        self.assertTrue(libraries)
        self.assertEqual([n for n in libraries if "cuda" in n or "cublas" in n], [])


class Changes(unittest.TestCase):
    """Each change of a header, and the verdict on it."""

    def verdict(self, header, before, after):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            shutil.copytree(SOURCE / "include", root / "include")
            self.assertEqual(check(root, "--record")[0], 0)
            path = root / "include/mstar" / header
            text = path.read_text()
            self.assertIn(before, text)
            path.write_text(text.replace(before, after, 1))
            code, told = check(root)
            self.assertEqual(code, 1, told)
            lenient, _ = check(root, "--allow-additions")
            self.assertEqual(lenient, 1 if "breaks " in told else 0, told)
            self.assertEqual(check(root, "--record")[0], 0)
            self.assertEqual(check(root)[0], 0)
            return {line.split()[0] for line in told.splitlines()[:-1]}

    def test_verdicts(self):
        memory = "    uint64_t peak_bytes;\n"
        for header, before, after, want in (
                ("base.h", memory, memory + "    uint64_t more;\n", {"adds"}),
                ("base.h", memory, "", {"breaks"}),
                ("base.h", memory, "    uint32_t peak_bytes;\n    uint32_t more;\n",
                 {"adds", "breaks"}),
                # without a struct_size nobody can tell the old from the new
                ("model.h", "    size_t bytes;\n} mstar_text;",
                 "    size_t bytes;\n    int more;\n} mstar_text;", {"adds", "breaks"}),
                ("base.h", "X(33, BUSY", "X(34, BUSY", {"breaks"}),
                ("base.h", "(*mstar_log_sink)(void *context, int level",
                 "(*mstar_log_sink)(void *context, long level", {"breaks"}),
                ("base.h", "MSTAR_API const char *mstar_version(void);", "", {"breaks"}),
                ("base.h", "mstar_status_http(mstar_status status);",
                 "mstar_status_http(mstar_status status, int more);", {"breaks"}),
                ("base.h", "MSTAR_API const char *mstar_version(void);",
                 "MSTAR_API const char *mstar_version(void);\nMSTAR_API int mstar_more(void);",
                 {"adds"})):
            self.assertEqual(self.verdict(header, before, after), want, after)

    def test_names_of_parameters_are_free(self):
        with self.assertRaises(AssertionError):
            self.verdict("base.h", "mstar_status_http(mstar_status status)",
                         "mstar_status_http(mstar_status other)")


if __name__ == "__main__":
    unittest.main()
