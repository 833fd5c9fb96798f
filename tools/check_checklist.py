#!/usr/bin/env python3
"""Check tests/known_faults/checklist: every statement has a test that runs, or a written reason.

The file says its own form. Faults: a statement without an answer, a test program that does not
exist, a function that it does not have or does not run, a reason of a few letters, the same
statement or answer twice, a line of another form.

Prints one line a fault and exits 1, else prints one line. --root names another tree.
"""
import argparse
import pathlib
import re
import sys

CHECKLIST = "tests/known_faults/checklist"
SUFFIX = {"unit": ".c", "ref": ".py", "program": ".py"}
MIN_REASON = 20


class Check:
    def __init__(self, root):
        self.root = root
        self.faults = []
        self.tested = self.reasons = 0

    def fault(self, line, text):
        self.faults.append(f"{CHECKLIST}:{line}: {text}")

    def check_test(self, line, group, program, function):
        path = f"tests/{group}/{program}{SUFFIX[group]}"
        full = self.root / path
        if not full.is_file():
            self.fault(line, f"{path} does not exist")
            return
        text = full.read_text(encoding="utf-8")
        if group != "unit":
            if not re.search(rf"^ *def {function}\(", text, re.M):
                self.fault(line, f"{path} has no function {function}")
            return
        if not re.search(rf"^static void {function}\(void \*\*state\)", text, re.M):
            self.fault(line, f"{path} has no test function {function}")
        elif not re.search(rf"(?:cmocka_unit_test\w*|[A-Z]+_TEST|FAULT)\((?:\"[^\"]+\",)?\s*{function}\b", text):
            self.fault(line, f"{path} does not run {function}")

    def check_answer(self, line, answer):
        """Returns whether it is a test."""
        test = re.fullmatch(r"(unit|ref|program)\.(\w+) (\w+)", answer)
        if test:
            self.check_test(line, *test.groups())
            return True
        reason = re.fullmatch(r"not here: (.*)", answer)
        if reason is None:
            self.fault(line, f"\"{answer}\" is no answer")
        elif len(reason.group(1)) < MIN_REASON:
            self.fault(line, "a statement is not here without a reason")
        return False

    def statements(self):
        """Yields (line, statement, [(line, answer)])."""
        present = None
        text = (self.root / CHECKLIST).read_text(encoding="utf-8")
        for number, line in enumerate(text.split("\n"), 1):
            if not line or line.startswith(("#", "== ")):
                continue
            if not line.startswith(" "):
                if present is not None:
                    yield present
                present = (number, line, [])
            elif line.startswith("    ") and line[4] != " " and present is not None:
                present[2].append((number, line.strip()))
            else:
                self.fault(number, "a line is neither a statement nor an answer to one")
        if present is not None:
            yield present

    def run(self):
        seen = set()
        for number, statement, answers in self.statements():
            if statement in seen:
                self.fault(number, "a statement stands there twice")
            seen.add(statement)
            if not answers:
                self.fault(number, "a statement has no answer")
            if len({answer for _, answer in answers}) != len(answers):
                self.fault(number, "an answer stands there twice")
            tests = [self.check_answer(line, answer) for line, answer in answers]
            if any(tests) and not all(tests):
                self.fault(number, "a statement is tested and said not to be here")
            self.tested += any(tests)
            self.reasons += bool(answers) and not any(tests)
        if not seen:
            self.fault(1, "there is no statement")


def main():
    parser = argparse.ArgumentParser(description="check the checklist of behaviours")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    check = Check(parser.parse_args().root)
    check.run()
    for fault in check.faults:
        print(fault)
    if not check.faults:
        print(f"check_checklist: {check.tested} statements are tested, {check.reasons} have a reason")
    return 1 if check.faults else 0


if __name__ == "__main__":
    sys.exit(main())
