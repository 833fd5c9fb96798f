"""The documents agree with the tree, the README's program runs, and the check sees planted faults."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"])
BUILD = pathlib.Path(os.environ["MSTAR_TEST_BUILD"])
MODEL = os.environ["MSTAR_TEST_MODEL"]
PROGRAM = os.environ["MSTAR_TEST_PROGRAM"]
SANITIZE = os.environ.get("MSTAR_TEST_SANITIZE", "")
SCRIPT = SOURCE / "tools" / "check_docs.py"


def check(root, *arguments):
    done = subprocess.run([sys.executable, SCRIPT, "--root", root, *arguments],
                          capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def run_readme(folder):
    """The C program of README.md, linked to the library of this build and run on the model."""
    snippets = re.findall(r"^```c\n(.*?)^```", (SOURCE / "README.md").read_text(), re.S | re.M)
    programs = [snippet for snippet in snippets if "int main(" in snippet]
    assert len(programs) == 1, f"README.md has {len(programs)} programs"
    (folder / "first.c").write_text(programs[0])
    flags = [f"-fsanitize={SANITIZE}"] if SANITIZE else []
    subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", *flags, folder / "first.c", "-o",
                    folder / "first", f"-I{SOURCE}/include", f"-L{BUILD}", "-lmstar"], check=True)
    done = subprocess.run([folder / "first", MODEL], capture_output=True, text=True,
                          env={**os.environ, "LD_LIBRARY_PATH": str(BUILD)})
    assert done.returncode == 0, done.stderr
    assert 0.5 < float(done.stdout) <= 1.0, done.stdout
    missing = subprocess.run([folder / "first", "/nowhere"], capture_output=True, text=True,
                             env={**os.environ, "LD_LIBRARY_PATH": str(BUILD)})
    assert missing.returncode == 1 and "/nowhere" in missing.stderr, missing.stderr


# file, text to put in place of another ("" appends), what the fault's line must say
PLANTED = [
    ("README.md", "", "\n```c\nmstar_no_such_function();\n```\n", "does not compile"),
    ("docs/start.md", "", "\n```c\nint x = mstar_version();\n```\n", "does not compile"),
    ("docs/start.md", "desc.normalize = 1; /*", "desc.normalize = 2; /*", "line for line"),
    ("docs/start.md", "<!-- from examples/embed_texts.c -->", "<!-- from examples/none.c -->",
     "which is not there"),
    ("docs/errors.md", "| 33 | `MSTAR_BUSY` | busy | 429 |", "| 33 | `MSTAR_BUSY` | busy | 430 |",
     "the status table"),
    ("docs/cli.md", "`MSTAR_MAX_ISA`", "`MSTAR_ISA`", "MSTAR_MAX_ISA is read"),
    ("docs/cli.md", "--threads", "--thread", "not what mstar"),
    ("docs/cli.md", "$ mstar info --help", "$ mstar info", "is not repeated here"),
    ("README.md", "(docs/start.md)", "(docs/begin.md)", "there is no such file"),
    ("ARCHITECTURE.md", "src/base/status.c", "src/base/state.c", "is not there"),
    ("ARCHITECTURE.md", "`src/base/status.c`", "`status`", "src/base/status.c has no line"),
]


def main():
    code, text = check(SOURCE, "--program", PROGRAM)
    assert code == 0, text
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run_readme(folder)
        root = folder / "tree"
        root.mkdir()
        for path in SOURCE.iterdir():
            if path.name in (".git", "build") or path.name.startswith("build-"):
                continue
            if path.is_dir():
                shutil.copytree(path, root / path.name)
            else:
                shutil.copy(path, root / path.name)
        for document, old, new, says in PLANTED:
            place = root / document
            good = place.read_text()
            assert old in good, f"{document} has no {old!r} to spoil"
            place.write_text(good.replace(old, new) if old else good + new)
            code, text = check(root, "--program", PROGRAM)
            assert code == 1 and says in text, (document, old, new, code, text)
            place.write_text(good)
        (root / "src" / "base" / "extra.c").write_text("int extra;\n")
        code, text = check(root)
        assert code == 1 and "src/base/extra.c has no line" in text, text
    print(f"the documents agree; {len(PLANTED) + 1} planted faults were seen")


if __name__ == "__main__":
    main()
