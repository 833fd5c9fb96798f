#!/usr/bin/env python3
"""What `make bench-gpu` does: attention, towers, plans and replays on a card, beside what others reach.

Runs `mstar bench attn` and `mstar bench plan` over bench/problems/attention-gpu.json, `mstar bench
tower` over towers.json and `mstar bench replay` over replay-gpu.json, all in bf16, prints each as a
table and writes bench/results/<card>.csv with a picture beside it, and <card>-towers.csv, <card>-plan.csv
and <card>-replay.csv; lines that begin with # say the card, the commit and the command. --check-goals
exits 1 where a figure misses what its workload accepts, and lists those.
--draw makes the picture of a CSV again and runs nothing.
"""
import argparse
import csv
import json
import pathlib
import re
import subprocess
import sys

import bench_chart

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = {
    "attn": ["name", "us", "gflops", "plan_us", "replay_us", "floor_us", "fa2_class_us", "best_us",
             "goal_us", "of_fa2_class", "peer_plan_us", "kernel"],
    "tower": ["name", "tokens", "us", "gflops", "eager_us", "capture_us", "device_us", "replay_us",
              "launches", "floor_us", "best_us", "goal_us"],
    "plan": ["name", "segments", "tokens", "plan_us", "ready_us", "peer_plan_us", "accept_plan_us"],
    "replay": ["name", "tokens", "us", "eager_us", "capture_us", "replay_us", "launches", "floor_us",
               "accept_replay_us"]}
SUFFIXES = {"attn": "", "tower": "-towers", "plan": "-plan", "replay": "-replay"}
KINDS = (("us", "mstar", "ours"), ("fa2_class_us", "best mma.sync kernel of others", "peer"),
         ("best_us", "best of all others", "peer-default"), ("floor_us", "the card's floor", "floor"))


def measure(bench, program, device, workloads):
    command = [program, "bench", bench, "--device", device, "--workloads", str(workloads),
               "--dtype", "bf16", "--max-gflop", "100000", "--check-goals", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if not answer.stdout:
        sys.exit(answer.stderr.strip() or f"{program} failed")
    return json.loads(answer.stdout), " ".join(command)


def text_of(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(path, columns, document, command):
    rows = [[text_of(row.get(column, "")) for column in columns] for row in document["rows"]]
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {document['machine']}, {document['isa']}\n# {document['build']}\n")
        file.write(f"# {command.replace(str(ROOT) + '/', '')}\n")
        csv.writer(file, lineterminator="\n").writerows([columns] + rows)
    for row in [columns] + rows:
        print(" ".join(f"{cell:>12}" for cell in row))


def read(path):
    """The lines that begin with #, and the rows."""
    lines = path.read_text(encoding="utf-8").splitlines()
    notes = [line[1:].strip() for line in lines if line.startswith("#")]
    return notes, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def draw(notes, rows):
    """A panel for each workload: microseconds, shorter is better."""
    panels = []
    for row in rows:
        found = [(label, float(row[key]), kind) for key, label, kind in KINDS if row.get(key)]
        panels.append({"title": row["name"],
                       "bars": [(label, us, f"{us:.4g} us", kind) for label, us, kind in found]})
    return bench_chart.bars("Ragged attention on a GPU, bf16: microseconds, shorter is better",
                            notes[:2], panels, [(label, kind) for _, label, kind in KINDS],
                            columns=3, panel_width=400, label_width=180)


def main():
    parser = argparse.ArgumentParser(description="measure attention, towers, plans and replays on an NVIDIA GPU")
    parser.add_argument("--program", default=str(ROOT / "build/cuda/mstar"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--benches", default="attn,tower,plan,replay")
    parser.add_argument("--workloads", default=str(ROOT / "bench/problems/attention-gpu.json"))
    parser.add_argument("--towers", default=str(ROOT / "bench/problems/towers.json"))
    parser.add_argument("--steps", default=str(ROOT / "bench/problems/replay-gpu.json"))
    parser.add_argument("--output", help="folder of the results; default: bench/results")
    parser.add_argument("--check-goals", action="store_true")
    parser.add_argument("--draw", type=pathlib.Path, metavar="CSV")
    options = parser.parse_args()
    if options.draw:
        options.draw.with_suffix(".svg").write_text(draw(*read(options.draw)), encoding="utf-8")
        return 0
    missed = []
    problems = {"attn": options.workloads, "plan": options.workloads, "tower": options.towers,
                "replay": options.steps}
    for bench in options.benches.split(","):
        document, command = measure(bench, options.program, options.device, problems[bench])
        card = re.sub(r"[^a-z0-9]+", "-", document["machine"].lower()).strip("-").removeprefix("nvidia-")
        path = pathlib.Path(options.output or ROOT / "bench/results")
        path = path / f"{card}{SUFFIXES[bench]}.csv"
        write(path, COLUMNS[bench], document, command)
        if bench == "attn":
            path.with_suffix(".svg").write_text(draw(*read(path)), encoding="utf-8")
        missed += [f"{bench} {text}" for text in document["missed"]]
    print(f"{len(missed)} goals missed" + "".join(f"\n  {text}" for text in missed))
    return 1 if options.check_goals and missed else 0


if __name__ == "__main__":
    sys.exit(main())
