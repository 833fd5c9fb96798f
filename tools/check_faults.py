#!/usr/bin/env python3
"""Check the index of the known faults: every case has a test, a benchmark, or a written reason.

tests/data/known-faults.json holds the cases; tests/known_faults/index has one line for each answer:

    ID: unit.PROGRAM FUNCTION            FAULT("ID", FUNCTION) in tests/unit/PROGRAM.c (or FAULT_HOST)
    ID: ref.PROGRAM FUNCTION             def FUNCTION in tests/ref/PROGRAM.py, naming the ID
    ID: program.PROGRAM FUNCTION         the same in tests/program
    ID: python.PROGRAM FUNCTION          the same in python/tests, which program.test_wheel runs
    ID: bench: FILE NAME                 a row of that name in a file of bench/problems
    ID: waits for: WHAT: reason          graphs, cuda or server: what it needs first
    ID: not expressible here: reason

Faults: an id without a line, a line without a case, lines out of order or twice, a test, function or
row that does not exist, a FAULT line of a test that the index lacks, a missing reason, and a table
in docs/known-faults.md with other numbers. With --build, also a test that ctest does not know there.

Prints one line a fault and exits 1, else prints one line. --root names another tree, --write puts
the table of docs/known-faults.md right.
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

CASES = "tests/data/known-faults.json"
INDEX = "tests/known_faults/index"
DOCUMENT = "docs/known-faults.md"
WAITS = ("graphs", "cuda", "server")
SUFFIX = {"unit": ".c", "ref": ".py", "program": ".py", "python": ".py"}
TABLE = re.compile(r"(<!-- counts -->\n).*?(<!-- end of counts -->)", re.S)
MIN_REASON = 20


class Check:
    def __init__(self, root, build):
        self.root = root
        self.build = build
        self.faults = []
        self.texts = {}
        self.known_tests = None
        self.cases = json.loads((root / CASES).read_text(encoding="utf-8"))
        self.answers = collections.defaultdict(list)  # id -> sorts of its lines

    def fault(self, place, text):
        self.faults.append(f"{place}: {text}")

    def read(self, path):
        if path not in self.texts:
            full = self.root / path
            self.texts[path] = full.read_text(encoding="utf-8") if full.is_file() else None
        return self.texts[path]

    # ---- what a line names ----

    def check_ctest(self, place, test):
        if self.build is None:
            return
        if self.known_tests is None:
            text = subprocess.run(["ctest", "--show-only=json-v1"], cwd=self.build, check=True,
                                  capture_output=True, text=True).stdout
            self.known_tests = {entry["name"] for entry in json.loads(text)["tests"]}
        if test not in self.known_tests:
            self.fault(place, f"ctest does not know {test}")

    def check_test(self, place, name, test, function):
        group, _, program = test.partition(".")
        folder = "python/tests" if group == "python" else f"tests/{group}"
        path = f"{folder}/{program}{SUFFIX[group]}"
        text = self.read(path)
        if text is None:
            self.fault(place, f"{path} does not exist")
            return
        self.check_ctest(place, "program.test_wheel" if group == "python" else test)
        if group == "unit":
            if not any(f'{macro}("{name}", {function})' in text for macro in ("FAULT", "FAULT_HOST")):
                self.fault(place, f'{path} has no FAULT("{name}", {function})')
            if not re.search(rf"^static void {re.escape(function)}\(void \*\*state\)", text, re.M):
                self.fault(place, f"{path} has no test function {function}")
            return
        found = re.search(rf"^( *)def {re.escape(function)}\(.*?(?=^\1\S|\Z)", text, re.M | re.S)
        if found is None:
            self.fault(place, f"{path} has no function {function}")
        elif name not in found.group():
            self.fault(place, f"{function} of {path} does not mention {name}")

    def check_bench(self, place, path, row):
        text = self.read(path) if path.startswith("bench/problems/") else None
        if text is None:
            self.fault(place, f"{path} is not a file of bench/problems")
        elif row not in [entry.get("name") for entry in json.loads(text)]:
            self.fault(place, f"{path} has no row named {row}")

    def check_line(self, place, name, answer):
        """Returns the sort of the answer."""
        words = answer.split()
        test = re.fullmatch(r"((?:unit|ref|program|python)\.\w+) (\w+)", answer)
        if test:
            self.check_test(place, name, test.group(1), test.group(2))
            return "test"
        if words[:1] == ["bench:"] and len(words) == 3:
            self.check_bench(place, words[1], words[2])
            return "bench"
        waits = re.fullmatch(r"waits for: (\w+)(?:: (.*))?", answer)
        if waits and waits.group(1) in WAITS:
            if len(waits.group(2) or "") < MIN_REASON:
                self.fault(place, f"{name} waits without a reason")
            return "waits"
        reason = re.fullmatch(r"not expressible here(?:: (.*))?", answer)
        if reason:
            if len(reason.group(1) or "") < MIN_REASON:
                self.fault(place, f"{name} is called not expressible without a reason")
            return "not"
        self.fault(place, f"\"{answer}\" is no answer; see tools/check_faults.py")
        return "none"

    # ---- the index ----

    def check_index(self):
        order = {case["id"]: i for i, case in enumerate(self.cases)}
        if len(order) != len(self.cases):
            self.fault(CASES, "an id stands there twice")
        last, seen = -1, set()
        for number, line in enumerate((self.read(INDEX) or "").split("\n"), 1):
            if not line or line.startswith("#"):
                continue
            place = f"{INDEX}:{number}"
            name, _, answer = line.partition(": ")
            if name not in order:
                self.fault(place, f"{name} is not in {CASES}")
                continue
            if order[name] < last:
                self.fault(place, f"{name} is out of order")
            if line in seen:
                self.fault(place, f"{line} stands there twice")
            last = max(last, order[name])
            seen.add(line)
            self.answers[name].append(self.check_line(place, name, answer))
        for case in self.cases:
            answers = self.answers[case["id"]]
            if not answers:
                self.fault(INDEX, f"{case['id']} has no line")
            if "not" in answers and len(answers) > 1:
                self.fault(INDEX, f"{case['id']} is called not expressible and answered")
        return seen

    def check_reverse(self, seen):
        for path in sorted((self.root / "tests/unit").glob("test_*.c")):
            text = path.read_text(encoding="utf-8")
            for name, function in re.findall(r'FAULT(?:_HOST)?\("([^"]+)",\s*(\w+)\)', text):
                if f"{name}: unit.{path.stem} {function}" not in seen:
                    self.fault(f"tests/unit/{path.name}", f"{INDEX} lacks {name}: unit.{path.stem} {function}")

    # ---- the document ----

    def table(self):
        kinds = collections.OrderedDict()
        for case in self.cases:
            kinds.setdefault(case["kind"], []).append(self.answers[case["id"]])
        columns = ("test", "bench", "waits", "not")
        lines = ["| kind | cases | tested | benchmark | waiting | not expressible |",
                 "|---|---|---|---|---|---|"]
        totals = [0] * 5
        for kind in sorted(kinds):
            # an id counts once: where it is tested, else measured, else waiting, else not expressible
            firsts = [next((c for c in columns if c in answers), None) for answers in kinds[kind]]
            row = [len(firsts)] + [firsts.count(c) for c in columns]
            totals = [a + b for a, b in zip(totals, row)]
            lines.append(f"| {kind} | " + " | ".join(map(str, row)) + " |")
        lines.append("| all | " + " | ".join(map(str, totals)) + " |")
        return "\n".join(lines) + "\n"

    def check_document(self, write):
        text = self.read(DOCUMENT)
        if text is None or not TABLE.search(text):
            self.fault(DOCUMENT, "there is no table between the counts comments")
            return
        right = TABLE.sub(lambda m: m.group(1) + self.table() + m.group(2), text)
        if write:
            (self.root / DOCUMENT).write_text(right, encoding="utf-8")
        elif right != text:
            self.fault(DOCUMENT, "its table is not that of the index; tools/check_faults.py --write")

    def summary(self):
        waiting = sum("waits" in answers and "test" in answers for answers in self.answers.values())
        tested = sum("test" in answers for answers in self.answers.values())
        return (f"check_faults: {len(self.cases)} cases, {tested} tested "
                f"({waiting} of them in part), each with an answer")


def main():
    parser = argparse.ArgumentParser(description="check the index of the known faults")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--build", type=pathlib.Path, help="a build folder: its ctest knows every test")
    parser.add_argument("--write", action="store_true", help="write the table of the document")
    arguments = parser.parse_args()
    check = Check(arguments.root, arguments.build)
    check.check_reverse(check.check_index())
    check.check_document(arguments.write)
    for fault in check.faults:
        print(fault)
    if not check.faults:
        print(check.summary())
    return 1 if check.faults else 0


if __name__ == "__main__":
    sys.exit(main())
