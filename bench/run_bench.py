#!/usr/bin/env python3
"""make bench: the benches of `mstar bench`, kept as one CSV and one picture of this machine.

Runs attn over bench/problems/attention-cpu.json and linear over its layer shapes, in f32 and in
bf16, and embed over every mix of text lengths where the model is there. Each bench measures its
own peak in the same run; shares of it are what machines can be compared by.

    make bench
    python3 bench/run_bench.py --benches attn --dtypes f32 --threads 1
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import bench_chart  # noqa: E402
import machine_facts  # noqa: E402
import make_texts  # noqa: E402

COLUMNS = ["date", "machine", "isa", "threads", "commit", "bench", "dtype", "name", "rows", "us",
           "gflops", "of_peak", "peak_gflops", "read_gbps", "of_limit", "plan_us", "texts_per_s",
           "tokens_per_s", "runs", "note"]


def run(given, *words):
    command = [str(given.program), "bench", *words, "--json"]
    if given.threads:
        command += ["--threads", str(given.threads)]
    print(" ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}")
    document = json.loads(done.stdout)
    return document | {"machine": given.name or document["machine"]}


def bench_documents(given, bench, dtype):
    """(name of the row or '', document of the program) of one bench."""
    if bench == "attn":
        yield "", run(given, "attn", "--workloads", str(given.workloads), "--dtype", dtype)
    elif bench == "linear":
        yield "", run(given, "linear", "--dtype", dtype)
    elif (given.model / "vocab.txt").exists():
        texts = make_texts.write_texts(given.model, given.work / "texts")
        for mix, path in texts.items():
            yield mix, run(given, "embed", "--model", str(given.model), "--input", str(path),
                           "--dtype", dtype)


def documents(given):
    """(bench, name of the row or '', document) of all that was asked for."""
    for dtype in given.dtypes:
        for bench in given.benches:
            with machine_facts.alone(given):
                found = list(bench_documents(given, bench, dtype))
            for name, document in found:
                yield bench, name, document


def flatten(bench, name, document, commit):
    """One line of the CSV for each row of a document."""
    for row in document["rows"]:
        line = dict.fromkeys(COLUMNS, "") | {
            "date": machine_facts.today(), "machine": document["machine"], "isa": document["isa"],
            "threads": document["threads"], "commit": commit, "bench": bench,
            "dtype": document["dtype"], "peak_gflops": machine_facts.plain(document['peak_gflops']),
            "name": name or row["name"], "note": row.get("skipped", "")}
        if "ms" in row:
            line["us"] = machine_facts.plain(row['ms'] * 1e3)
        for key in ("rows", "us", "gflops", "of_peak", "read_gbps", "of_limit", "plan_us",
                    "texts_per_s", "tokens_per_s", "runs"):
            if key in row:
                value = row[key]
                line[key] = machine_facts.plain(value) if isinstance(value, float) else value
        yield line


def bar_panel(lines, bench, dtype, title):
    shown = [line for line in lines if line["bench"] == bench and line["dtype"] == dtype
             and line["gflops"]]
    unit = (lambda us: f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} us")
    return {"title": f"{title}, {dtype}", "note": "share of the peak measured in the same run",
            "most": 1.0,
            "bars": [(line["name"], float(line["of_peak"]),
                      f"{100 * float(line['of_peak']):.0f} %, {float(line['gflops']):.0f} GFLOP/s, "
                      f"{unit(float(line['us']))}", "ours") for line in shown]}


def linear_table(lines, dtype):
    shown = [line for line in lines if line["bench"] == "linear" and line["dtype"] == dtype]
    counts = sorted({int(line["rows"]) for line in shown})
    shapes = list(dict.fromkeys(line["name"] for line in shown))
    share = {(line["name"], int(line["rows"])): float(line["of_peak"]) for line in shown}
    return {"title": f"Products, {dtype}: percent of the measured peak",
            "note": "inputs x outputs of the layer down, rows of the product across",
            "columns": counts,
            "rows": [(shape, [share.get((shape, n)) for n in counts]) for shape in shapes]}


def draw(lines):
    first = lines[0]
    dtypes = list(dict.fromkeys(line["dtype"] for line in lines))
    panels = [bar_panel(lines, bench, dtype, title)
              for bench, title in (("attn", "Ragged attention"), ("embed", "Strings to vectors"))
              for dtype in dtypes]
    tables = [linear_table(lines, dtype) for dtype in dtypes]
    peaks = ", ".join(f"{dtype} " + " to ".join(sorted(
        {f"{value:.0f}" for value in (min(found), max(found))}, key=float))
        for dtype in dtypes if (found := [float(line["peak_gflops"]) for line in lines
                                          if line["dtype"] == dtype]))
    small = [f"{first['machine']}, {first['isa']}, {first['threads']} threads, commit "
             f"{first['commit']}, {first['date']}", f"measured peak, GFLOP/s: {peaks}"]
    return bench_chart.bars_and_tables(
        "mstar bench", small, [panel for panel in panels if panel["bars"]],
        [table for table in tables if table["rows"]], [])


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--benches", default="attn,linear,embed")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", type=int, help="default: as the program chooses")
    parser.add_argument("--workloads", default="bench/problems/attention-cpu.json")
    parser.add_argument("--model", default="build/models/all-MiniLM-L6-v2")
    parser.add_argument("--program", default="build/release/mstar")
    parser.add_argument("--work", default="build/bench")
    machine_facts.add_options(parser)
    parser.add_argument("--out", default="bench/results", help="folder of the CSV and the picture")
    given = parser.parse_args()
    for name, known in (("benches", {"attn", "linear", "embed"}), ("dtypes", {"f32", "bf16"})):
        setattr(given, name, getattr(given, name).split(","))
        unknown = set(getattr(given, name)) - known
        if unknown:
            parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(sorted(known))}")
    for name in ("workloads", "model", "program", "work", "out"):
        setattr(given, name, pathlib.Path(getattr(given, name)))
    return given


def main():
    given = options()
    commit = machine_facts.commit()
    lines = [line for bench, name, document in documents(given)
             for line in flatten(bench, name, document, commit)]
    if not lines:
        raise SystemExit("nothing was measured")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / machine_facts.slug(lines[0]["machine"], lines[0]["isa"])
    with open(f"{path}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    pathlib.Path(f"{path}.svg").write_text(draw(lines), encoding="utf-8")
    print(f"{path}.csv\n{path}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
