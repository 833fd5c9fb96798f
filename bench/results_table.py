#!/usr/bin/env python3
"""Results as Markdown tables: those of bench/compare_embed.py and of bench/run_bench.py.

    python3 bench/results_table.py bench/results/NAME.csv              # prints
    python3 bench/results_table.py --write docs/performance.md         # brings a document up to date

In a document a table stands between `<!-- results bench/results/NAME.csv -->` and
`<!-- end of results -->`; --write makes each of them again from its file.
"""
import argparse
import csv
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- results (\S+) -->\n).*?(<!-- end of results -->)", re.S)
LINEAR_ROWS = [1, 4, 16, 63, 64, 256, 512, 2048]
FEW_ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def table(heads, rows):
    """The first column to the left, numbers to the right."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def unique(lines, key):
    return list(dict.fromkeys(line[key] for line in lines))


def origin(lines, more):
    first = lines[0]
    return (f"{first['machine']}, level {first['isa']}, {first['threads']} threads, commit "
            f"{first['commit']}, {first['date']}{more}.")


def compare_tables(lines):
    mixes = unique(lines, "mix")
    rows = []
    for peer, setting in dict.fromkeys((line["peer"], line["setting"]) for line in lines):
        own = {line["mix"]: line for line in lines
               if (line["peer"], line["setting"]) == (peer, setting)}
        cells = [f"{line['ms_median']} ({float(line['ratio_to_ours']):.2f})"
                 if (line := own.get(mix)) and line["ratio_to_ours"] else "" for mix in mixes]
        memory = [float(line["peak_rss_mb"]) for mix, line in own.items()
                  if line["peak_rss_mb"] and mix != "start"]
        cosines = [float(line["min_cosine"]) for line in own.values() if line["min_cosine"]]
        rows.append([f"{peer}: {setting}", *cells, f"{max(memory):.0f}" if memory else "",
                     f"{min(cosines):.6f}" if cosines else ""])
    reasons = dict.fromkeys(f"{line['peer']}: {line['reason']}" for line in lines if line["reason"])
    versions = dict.fromkeys(line["version"] for line in lines
                             if line["version"] and line["peer"] != "mstar")
    parts = [origin(lines, f", medians of {lines[0]['rounds']} rounds"), "",
             "Milliseconds, and in brackets the ratio to our f32 of the same round; peak resident "
             "MB; smallest cosine to float64.", "",
             table(["engine: setting", *mixes, "MB", "cosine"], rows), "",
             "Versions: " + "; ".join(versions) + "."]
    if reasons:
        parts += ["", "Not measured: " + "; ".join(reasons) + "."]
    return "\n".join(parts)


def percent(value):
    return f"{100 * float(value):.0f} %" if value else ""


def linear_tables(lines, dtype):
    """Shares of the peak; and for few rows of the limit, where a file has it."""
    parts = []
    for key, title, counts in (("of_peak", f"Products, {dtype}; rows:", LINEAR_ROWS),
                               ("of_limit", f"Few rows, {dtype}, of the limit:", FEW_ROWS)):
        found = {(line["name"], int(line["rows"])): line[key] for line in lines if line.get(key)}
        reads = {line["name"]: line.get("read_gbps") for line in lines}
        few = key == "of_limit"
        rows = [[shape, *([f"{float(reads[shape]):.0f}"] if few else []),
                 *(percent(found.get((shape, n))) for n in counts)]
                for shape in dict.fromkeys(shape for shape, _ in found)]
        if rows:
            heads = [title, *(["read GB/s"] if few else []), *map(str, counts)]
            parts += ["", table(heads, rows)]
    return parts


def bench_tables(lines):
    parts = [origin(lines, "")]
    dtypes = unique(lines, "dtype")
    for bench, title in (("attn", "Ragged attention"), ("embed", "Strings to vectors")):
        found = {(line["name"], line["dtype"]): line for line in lines
                 if line["bench"] == bench and line["gflops"]}
        if not found:
            continue
        heads = [title]
        for dtype in dtypes:
            heads += [f"{dtype} us", "GFLOP/s", "of peak"]
        rows = []
        for name in dict.fromkeys(name for name, _ in found):
            row = [name]
            for dtype in dtypes:
                line = found.get((name, dtype))
                row += [line["us"], line["gflops"], percent(line["of_peak"])] if line else [""] * 3
            rows.append(row)
        parts += ["", table(heads, rows)]
    for dtype in dtypes:
        parts += linear_tables([line for line in lines
                                if line["bench"] == "linear" and line["dtype"] == dtype], dtype)
    peaks = []
    for dtype in dtypes:
        values = [float(line["peak_gflops"]) for line in lines if line["dtype"] == dtype]
        peaks.append(f"{dtype} {statistics.median(values):.0f} GFLOP/s")
    return "\n".join([*parts, "", "Measured peak: " + ", ".join(peaks) + "."])


def tables(path):
    lines = read(path)
    if not lines:
        raise SystemExit(f"{path} has no rows")
    return compare_tables(lines) if "mix" in lines[0] else bench_tables(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("csv", nargs="*", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path, help="a document to bring up to date")
    given = parser.parse_args()
    for path in given.csv:
        print(tables(path))
    if given.write:
        text = given.write.read_text(encoding="utf-8")
        fresh = BLOCK.sub(
            lambda block: f"{block[1]}\n{tables(ROOT / block[2])}\n\n{block[3]}", text)
        given.write.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
