#!/usr/bin/env python3
"""What `make bench-gpu` does: attention on a card, beside what others reach, as a CSV.

Runs `mstar bench attn --device cuda:0` over bench/problems/attention-gpu.json in bf16 and writes
bench/results/<card>.csv; lines that begin with # say the card, the commit and the command. Prints the
same as a table. --check-goals exits 1 when a workload is slower than the best mma.sync peer
(fa2_class_us), and lists those that are.
"""
import argparse
import csv
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = ["name", "us", "gflops", "plan_us", "replay_us", "floor_us", "fa2_class_us", "best_us",
           "goal_us", "of_fa2_class"]


def measure(program, device, workloads):
    command = [program, "bench", "attn", "--device", device, "--workloads", str(workloads),
               "--dtype", "bf16", "--max-gflop", "100000", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        sys.exit(answer.stderr.strip() or f"{program} failed")
    return json.loads(answer.stdout), " ".join(command)


def text_of(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser(description="measure attention on an NVIDIA GPU")
    parser.add_argument("--program", default=str(ROOT / "build/cuda/mstar"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workloads", default=str(ROOT / "bench/problems/attention-gpu.json"))
    parser.add_argument("--output", help="default: bench/results/<card>.csv")
    parser.add_argument("--check-goals", action="store_true")
    options = parser.parse_args()
    document, command = measure(options.program, options.device, options.workloads)
    card = re.sub(r"[^a-z0-9]+", "-", document["machine"].lower()).strip("-")
    path = pathlib.Path(options.output or ROOT / f"bench/results/{card}.csv")
    rows = [[text_of(row.get(column, "")) for column in COLUMNS] for row in document["rows"]]
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {document['machine']}, {document['isa']}\n# {document['build']}\n")
        file.write(f"# {command.replace(str(ROOT) + '/', '')}\n")
        csv.writer(file, lineterminator="\n").writerows([COLUMNS] + rows)
    for row in [COLUMNS] + rows:
        print(" ".join(f"{cell:>12}" for cell in row))
    slow = [row["name"] for row in document["rows"] if row.get("of_fa2_class", 0) > 1]
    print(f"{len(rows) - len(slow)} of {len(rows)} workloads are no slower than the best mma.sync peer")
    if options.check_goals and slow:
        print("slower: " + " ".join(slow))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
