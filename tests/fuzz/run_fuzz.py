#!/usr/bin/env python3
"""Run the fuzz targets of a build with preset fuzz, one after another, each for its share of the time.

    run_fuzz.py --seconds 60                 all targets, 60 s in all
    run_fuzz.py --target plan --seconds 600  one of them
    run_fuzz.py --log FILE ...               also append a JSON line a target to FILE
    run_fuzz.py --summarise FILE             the lines of RECORD for what a log holds

A target starts from its corpus in tests/fuzz/corpus and from what earlier runs found new, which
stays in BUILD/found. A finding stops the run with exit code 1 and says how to repeat it; to keep it as
a test, copy the file into the corpus. Inputs of several files are written under TMPDIR.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent
ROOT = SOURCE.parent.parent
FLAGS = ["-print_final_stats=1", "-timeout=25", "-rss_limit_mb=2048", "-max_len=4096"]


def targets():
    return sorted(path.stem[len("fuzz_"):] for path in SOURCE.glob("fuzz_*.c")
                  if path.stem != "fuzz_replay")


def commit():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def number(output, name):
    found = re.search(rf"stat::{name}:\s*(\d+)", output)
    return int(found.group(1)) if found else 0


def run(build, name, seconds):
    program = build / "fuzz" / f"fuzz_{name}"
    if not program.is_file():
        sys.exit(f"run_fuzz: {program} is not there; make fuzz builds it")
    corpus = SOURCE / "corpus" / name
    if not any(corpus.iterdir()):
        sys.exit(f"run_fuzz: {corpus} is empty")
    kept = build / "found" / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mstar-fuzz-") as folder:
        command = [str(program), *FLAGS, f"-max_total_time={seconds}",
                   f"-artifact_prefix={build / 'found'}/{name}-", str(kept), str(corpus)]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, errors="replace",
                              env={**os.environ, "TMPDIR": folder}, check=False)
        took = time.monotonic() - begin
    row = {"date": datetime.date.today().isoformat(), "commit": commit(), "target": name,
           "executions": number(done.stderr, "number_of_executed_units"),
           "seconds": round(took, 1), "new": number(done.stderr, "new_units_added"),
           "findings": 0 if done.returncode == 0 else 1}
    return row, done.stderr


def tell(row, output):
    print(f"{row['target']:12} {row['executions']:10} executions {row['seconds']:7.1f} s "
          f"{row['new']:5} new inputs" + ("  FINDING" if row["findings"] else ""), flush=True)
    if not row["findings"]:
        return
    lines = [line for line in output.splitlines() if not line.startswith("#")]
    print("\n".join(lines[-60:]))
    found = re.search(r"Test unit written to (\S+)", output)
    if found:
        print(f"repeat it with: build/fuzz/fuzz/fuzz_{row['target']} {found.group(1)}")


def summarise(path):
    sums = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        key = (row["date"], row["commit"], row["target"])
        kept = sums.setdefault(key, [0, 0.0, 0])
        kept[0] += row["executions"]
        kept[1] += row["seconds"]
        kept[2] += row["findings"]
    for (date, sha, name), (executions, seconds, findings) in sorted(sums.items()):
        print(f"{date}  {sha}  {name:12} {executions:12} {seconds:8.0f} {findings:8}")


def main():
    parser = argparse.ArgumentParser(description="run the fuzz targets")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="in all, shared by the targets")
    parser.add_argument("--target", action="append", choices=targets(), help="default: all")
    parser.add_argument("--log", type=pathlib.Path)
    parser.add_argument("--summarise", type=pathlib.Path, metavar="LOG")
    options = parser.parse_args()
    if options.summarise:
        summarise(options.summarise)
        return 0
    names = options.target or targets()
    share = max(1, options.seconds // len(names))
    findings = executions = 0
    for name in names:
        row, output = run(options.build.resolve(), name, share)
        tell(row, output)
        if options.log:
            with open(options.log, "a", encoding="utf-8") as log:
                log.write(json.dumps(row) + "\n")
        findings += row["findings"]
        executions += row["executions"]
        if row["executions"] == 0:
            print(f"run_fuzz: {name} ran nothing:\n{output[-2000:]}")
            return 1
    print(f"run_fuzz: {len(names)} targets, {executions} executions, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
