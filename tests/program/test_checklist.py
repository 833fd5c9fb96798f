"""Every statement of the checklist has an answer, and the check sees each kind of fault."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("MSTAR_TEST_SOURCE", pathlib.Path(__file__).parents[2]))
SCRIPT = SOURCE / "tools" / "check_checklist.py"
NAMES = ("tests/known_faults", "tests/unit", "tests/ref", "tests/program")

CHECKLIST, UNIT = "tests/known_faults/checklist", "tests/unit/test_captured_layouts.c"
ANSWER = "    unit.test_captured_layouts captured_at_the_brim\n"
STATEMENT = "Replays of 256, 128 and 256 tokens stay right.\n"
REASON = ("    not here: there are no logits; the hidden states of both have equal bits, and any choice "
          "made of them\n")

# file, what stands there, what is put in its place, what the fault's line must say
PLANTED = [
    (CHECKLIST, ANSWER, "", "a statement has no answer"),
    (CHECKLIST, ANSWER, ANSWER + ANSWER, "an answer stands there twice"),
    (CHECKLIST, ANSWER, "    unit.test_captured_none captured_at_the_brim\n", "does not exist"),
    (CHECKLIST, ANSWER, "    unit.test_captured_layouts replay_all\n", "no test function replay_all"),
    (CHECKLIST, ANSWER, "    looked at it\n", "is no answer"),
    (CHECKLIST, ANSWER, "  unit.test_captured_layouts captured_at_the_brim\n", "neither a statement nor"),
    (CHECKLIST, REASON, "    not here: no\n", "without a reason"),
    (CHECKLIST, ANSWER, ANSWER + "    not here: although a test does run it\n", "said not to be here"),
    (CHECKLIST, STATEMENT, STATEMENT + ANSWER + STATEMENT, "a statement stands there twice"),
    (CHECKLIST, "test_cli_graphs test_equal_bytes", "test_cli_graphs test_none", "no function test_none"),
    (UNIT, "cmocka_unit_test(captured_at_the_brim)", "", "does not run captured_at_the_brim"),
    (UNIT, "static void captured_at_the_brim(", "static void captured(", "no test function captured_at"),
]


def run(root):
    done = subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True, text=True)
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


def main():
    code, text = run(SOURCE)
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
        (root / CHECKLIST).write_text("# nothing\n", encoding="utf-8")
        code, text = run(root)
        assert code == 1 and "there is no statement" in text, text
    print(f"{len(PLANTED) + 1} planted faults were seen")


if __name__ == "__main__":
    main()
