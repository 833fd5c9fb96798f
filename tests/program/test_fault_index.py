"""Every known fault has an answer that exists, and the check that says so sees each kind of fault."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("MSTAR_TEST_SOURCE", pathlib.Path(__file__).parents[2]))
BUILD = os.environ.get("MSTAR_TEST_BUILD")
SCRIPT = SOURCE / "tools" / "check_faults.py"
NAMES = ("tests/data", "tests/known_faults", "tests/unit", "tests/ref", "tests/program", "docs",
         "bench/problems", "python/tests")

INDEX, UNIT = "tests/known_faults/index", "tests/unit/test_faults_empty.c"
TOKENS, CALLS = "tests/ref/test_faults_tokens.py", "python/tests/test_attention_calls.py"
LINE = "BR-001: unit.test_faults_empty longest_is_not_asked_for\n"

# file, what stands there, what is put in its place, what the fault's line must say
PLANTED = [
    (INDEX, LINE, "", "BR-001 has no line"),
    (INDEX, LINE, LINE + LINE, "stands there twice"),
    (INDEX, LINE, "BR-999: unit.test_faults_empty match\n" + LINE, "BR-999 is not in"),
    (INDEX, LINE, "BR-001: unit.test_faults_none longest_is_not_asked_for\n", "does not exist"),
    (INDEX, LINE, "BR-001: unit.test_faults_empty match\n", 'has no FAULT("BR-001", match)'),
    (INDEX, LINE, "BR-001: looked at it\n", "is no answer"),
    (INDEX, LINE, "BR-001: waits for: graphs\n", "waits without a reason"),
    (INDEX, LINE, "BR-001: waits for: spring: there is none at this time of year\n", "is no answer"),
    (INDEX, LINE, "BR-001: not expressible here: no\n", "without a reason"),
    (INDEX, LINE, LINE + "BR-001: not expressible here: although a test does express it\n",
     "not expressible and answered"),
    (INDEX, LINE, "BR-001: bench: bench/problems/known-faults-cpu.json none\n", "no row named none"),
    (INDEX, LINE, "BR-001: bench: bench/none.json none\n", "is not a file of bench/problems"),
    (INDEX, "BR-002: ", "BR-041: ", "BR-002 has no line"),
    (INDEX, "both_forms_differ", "neither_form", "no function neither_form"),
    (INDEX, "both_forms_differ", "main", "does not mention BR-236"),
    (UNIT, 'FAULT("BR-002"', 'FAULT("BR-003"', 'has no FAULT("BR-002"'),
    (UNIT, "static void match(", "static void matches(", "no test function match"),
    (UNIT, 'FAULT("BR-001"', 'FAULT("BR-009", match), FAULT("BR-001"', "lacks BR-009"),
    (CALLS, "def test_lengths_of_64_bits(", "def test_lengths(", "no function test_lengths_of_64_bits"),
    (TOKENS, "def both_forms_differ(", "def both_forms(", "no function both_forms_differ"),
    ("docs/known-faults.md", "| all | 168 |", "| all | 169 |", "not that of the index"),
    ("docs/known-faults.md", "<!-- counts -->", "", "no table"),
    ("tests/data/known-faults.json", '"id": "BR-002"', '"id": "BR-001"', "an id stands there twice"),
]


def run(root, *more):
    done = subprocess.run([sys.executable, SCRIPT, "--root", root, *more], capture_output=True, text=True)
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


def main():
    code, text = run(SOURCE, *(["--build", BUILD] if BUILD else []))
    assert code == 0, text
    print(text, end="")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in NAMES:
            shutil.copytree(SOURCE / name, root / name)
        for path, old, new, says in PLANTED:
            place = root / path
            kept = place.read_text(encoding="utf-8")
            assert old in kept, (path, old)
            place.write_text(kept.replace(old, new, 1), encoding="utf-8")
            code, text = run(root)
            assert code == 1 and says in text, (path, new, code, text)
            place.write_text(kept, encoding="utf-8")
        code, text = run(root)
        assert code == 0, text
        # a test that the build lacks
        if BUILD:
            (root / INDEX).write_text((SOURCE / INDEX).read_text().replace("unit.test_faults_empty", "unit.test_faults_void"))
            (root / UNIT).rename(root / "tests/unit/test_faults_void.c")
            code, text = run(root, "--build", BUILD)
            assert code == 1 and "ctest does not know unit.test_faults_void" in text, text
    print(f"{len(PLANTED)} planted faults were seen")


if __name__ == "__main__":
    main()
