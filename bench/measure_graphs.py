#!/usr/bin/env python3
"""What captured graphs cost and save on this machine, on the mixes C1 and W2.

For each mix: the share of padding with the best 12 and 40 buckets, for steps of one text, of eight
and of up to 1024 tokens, beside the usual rules; what the encoder's own buckets pad; and, for one thread
and all, the time of the same texts eager and replayed, in turn. Writes one CSV and, with --picture,
the picture of docs/graphs.md. W2 is the mix of attention-cpu.json; a model takes what it can of a
longer text.

    python3 bench/measure_graphs.py --out bench/results/NAME-graphs.csv --picture docs/graphs.svg
"""
import argparse
import csv
import json
import pathlib
import subprocess

import machine_facts
import make_texts

HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = ["mix", "steps", "buckets", "waste", "powers_of_two", "quarter_steps", "threads", "texts",
           "tokens", "eager_us", "replay_us", "replay_share"]
RULES = [("one text", ["--batch-size", "1"]), ("eight texts", ["--batch-size", "8"]),
         ("up to 1024 tokens", ["--max-tokens", "1024"])]
PICTURE = ("C1", ["--batch-size", "8", "--max-buckets", "12"])


def read_lengths():
    """name -> token counts in order of arrival"""
    attention = json.loads((HERE / "problems" / "attention-cpu.json").read_text(encoding="utf-8"))
    return {"C1": make_texts.read_mixes()["C1"]["lens"],
            "W2": next(row["q_lens"] for row in attention if row["name"] == "W2")}


def ask(program, *arguments):
    done = subprocess.run([program, *map(str, arguments), "--json"], check=True, capture_output=True,
                          text=True)
    return json.loads(done.stdout)


def plan_rows(program, mix, path):
    for steps, rule in RULES:
        for most in (12, 40):
            plan = ask(program, "graphs", "plan", "--lengths", path, "--max-buckets", most, *rule)
            yield {"mix": mix, "steps": steps, "buckets": len(plan["buckets"]),
                   "waste": plan["expected_waste"],
                   "powers_of_two": plan["powers_of_two"]["expected_waste"],
                   "quarter_steps": plan["quarter_steps"]["expected_waste"]}


def time_rows(given, mix, texts):
    for threads in given.threads.split(","):
        with machine_facts.alone(given):
            document = ask(given.program, "bench", "graphs", "--model", given.model, "--input", texts,
                           "--threads", threads)
        for row in document["rows"]:
            yield {"mix": mix if row["texts"] > 1 else "", "steps": "as the encoder batches",
                   "threads": threads} | {key: row[key] for key in COLUMNS if key in row}


def write(given, rows):
    machine = ask(given.program, "info")["machine"]
    name = given.name or machine["processor"]
    with open(given.out, "w", newline="", encoding="utf-8") as file:
        file.write(f"# {name}, level {machine['isa']}, commit {machine_facts.commit()}, "
                   f"{machine_facts.today()}\n"
                   f"# python3 bench/measure_graphs.py --threads {given.threads}\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{value:.5g}" if isinstance(value, float) else value
                             for key, value in row.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/release/mstar")
    parser.add_argument("--model", default="build/models/all-MiniLM-L6-v2")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/bench/graphs"))
    parser.add_argument("--threads", default="1,2", help="numbers with commas")
    parser.add_argument("--out", required=True)
    parser.add_argument("--picture", help="the SVG to write")
    machine_facts.add_options(parser)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    words = make_texts.single_token_words(given.model)
    rows = []
    for mix, lengths in read_lengths().items():
        counts = given.work / f"{mix}.lengths"
        counts.write_text("".join(f"{n}\n" for n in lengths), encoding="utf-8")
        texts = given.work / f"{mix}.txt"
        texts.write_text("\n".join(make_texts.make_texts(lengths, words, make_texts.SEED)) + "\n",
                         encoding="utf-8")
        rows += plan_rows(given.program, mix, counts)
        rows += time_rows(given, mix, texts)
        if given.picture and mix == PICTURE[0]:
            plan = given.work / "graphs.json"
            subprocess.run([given.program, "graphs", "plan", "--lengths", counts, *PICTURE[1], "-o", plan],
                           check=True, stdout=subprocess.DEVNULL)
            subprocess.run([given.program, "graphs", "show", plan, "--svg", given.picture], check=True,
                           stdout=subprocess.DEVNULL)
    write(given, rows)
    print(f"{len(rows)} rows in {given.out}")


if __name__ == "__main__":
    main()
