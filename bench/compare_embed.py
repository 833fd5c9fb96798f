#!/usr/bin/env python3
"""Ours against the peers, strings to normalised vectors, side by side in one run.

Every row (a peer with a setting) is a process of its own that stays up for the whole run. A round
lets each row do each mix once, in an order that moves on by one row a round; what is reported is
the median over rounds, and the ratio to our f32 of the same round, so that a machine whose speed
drifts does not favour anyone. Before the rounds every row does every mix once: that warms it up
and gives the vectors that are compared with a float64 reference.

A peer that cannot be installed, converted or run stays in the table with its reason.

    make bench-peers                                    all of it
    build/bench-venv/bin/python bench/compare_embed.py --rounds 1 --mixes C4,C6 --peers onnxruntime
"""
import argparse
import csv
import hashlib
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(ROOT / "tests" / "ref"))
import bench_chart  # noqa: E402
import machine_facts  # noqa: E402
import make_texts  # noqa: E402
import peers  # noqa: E402
from machine_facts import plain  # noqa: E402

COLUMNS = ["date", "machine", "isa", "threads", "commit", "rounds", "peer", "version", "setting",
           "mix", "ms_median", "ms_min", "ms_max", "texts_per_s", "gflops", "ratio_to_ours",
           "peak_rss_mb", "min_cosine", "reason"]
START = "start"     # a mix of its own: from the start of the process to the first vector
STARTS = 3          # timed ones, after one that brings the files into the page cache
SHORT = {"C4", "C5", "C6"}  # mixes of one request: many calls a turn
PAUSE_S = 0.3       # after a turn, so that a peer's spinning threads are asleep in the next one
ANSWER_S = 1800     # a worker that says nothing for so long is given up


class Row:
    """A worker process, and what it measured: mix -> list of ms, one a round."""

    def __init__(self, peer, setting, given):
        self.peer, self.setting, self.given = peer, setting, given
        self.label = peers.label(peer, setting)
        self.reason, self.version, self.process = "", "", None
        self.ms, self.rss, self.cosine = {}, {}, {}

    @property
    def ours(self):
        return self.peer == "mstar"

    def fails(self, reason):
        self.reason = self.reason or reason
        self.stop()

    def does(self, mix):
        """Several workers have nothing to share in one text."""
        return not (self.setting["name"] == "workers" and mix in ("C4", "C5"))

    def ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
            line = self.process.stdout.readline() if ready else None
        except OSError:
            line = ""
        if line is None:
            answer = {"error": f"no answer within {ANSWER_S} s"}
        elif not line:
            answer = {"error": f"the process ended with status {self.process.wait()}: "
                      + self.log_end()}
        else:
            answer = json.loads(line)
        if "error" in answer:
            self.fails(answer["error"])
            return None
        return answer

    def log_end(self):
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().split("\n")
        return lines[-1][:200]

    def start(self):
        """Starts the process; returns ms to the first vector."""
        given = self.given
        folder = given.work / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / (self.peer + "-" + "".join(
            c if c.isalnum() else "_" for c in self.label) + ".log")
        begin = time.perf_counter()
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [given.python, str(HERE / "peer_worker.py")], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=str(ROOT),
                env=peers.worker_environment(given.threads, self.setting))
        answer = self.ask({"peer": self.peer, "model": str(given.model),
                           "folder": str(given.work / "models"), "threads": given.threads,
                           "setting": self.setting, "first": "one short text"})
        if answer is None:
            return None
        self.version = answer["version"]
        self.rss[START] = answer["rss_mb"]
        return (time.perf_counter() - begin) * 1e3

    def stop(self):
        process, self.process = self.process, None
        if process is None:
            return
        try:
            process.stdin.write('{"quit": true}\n')
            process.stdin.close()
            process.wait(timeout=20)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        process.stdout.close()

    def turn(self, mix, texts, save=None):
        calls, seconds = ([3, 200], 0.5) if mix in SHORT and save is None else ([1, 1], 0)
        answer = self.ask({"texts": str(texts), "calls": calls, "seconds": seconds,
                           "save": str(save) if save else None})
        time.sleep(PAUSE_S)
        if answer is None:
            return None
        self.rss[mix] = max(self.rss.get(mix, 0), answer["rss_mb"])
        return statistics.median(answer["ms"])


# Runs a command from a small process and says its status, ms and peak resident KB: a process
# inherits the peak of the one that started it, and this one holds references and NumPy.
MEASURE = """
import json, os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE)
said = process.stderr.read().decode("utf-8", "replace")
_, status, usage = os.wait4(process.pid, 0)
ms = (time.perf_counter() - begin) * 1e3
print(json.dumps([os.waitstatus_to_exitcode(status), ms, usage.ru_maxrss, said]))
"""


class ProgramRow(Row):
    """`mstar embed` as a process of its own a turn: what a user of the program waits for and what
    it holds, without Python."""

    def start(self):
        first = self.given.work / "first.txt"
        first.write_text("one short text\n", encoding="utf-8")
        self.version = "program"
        return self.turn(START, first)

    def does(self, mix):
        return mix not in SHORT

    def turn(self, mix, texts, save=None):
        command = [str(self.given.program), "embed", "--model", str(self.given.model), "--threads",
                   str(self.given.threads), "--quiet", "--format", "f32", "--output",
                   str(save or self.given.work / "program.f32"), str(texts)]
        done = subprocess.run(
            [self.given.python, "-E", "-S", "-c", MEASURE, *command], capture_output=True,
            text=True, env=peers.worker_environment(self.given.threads, self.setting))
        time.sleep(PAUSE_S)
        if done.returncode != 0:
            self.fails(f"not started: {done.stderr.strip()[-200:]}")
            return None
        status, ms, rss_kb, said = json.loads(done.stdout)
        if status != 0:
            self.fails(f"status {status}: {said.strip()[:200]}")
            return None
        self.rss[mix] = max(self.rss.get(mix, 0), rss_kb / 1024)
        return ms


# ---- the float64 reference -----------------------------------------------------------------------


def reference(given, mix, path):
    """Vectors of a mix in float64; kept, since the texts and the model do not change."""
    import numpy
    text = path.read_bytes()
    weights = given.model / "model.safetensors"
    key = hashlib.sha256(text + str(weights.stat().st_size).encode()).hexdigest()[:16]
    kept = given.work / "reference" / f"{mix}-{key}.npy"
    if kept.exists():
        return numpy.load(kept)
    from bert_reference import Reference
    ids = peers.Tokens(given.model).encode(text.decode().split("\n")[:-1])
    model, rows, batch = Reference(str(given.model)), [], []
    print(f"float64 reference of {mix}: {sum(map(len, ids))} tokens", file=sys.stderr)
    for place, one in enumerate(ids):
        batch.append(one)
        if sum(map(len, batch)) > 1500 or place + 1 == len(ids):
            rows.append(model.vectors(batch))
            batch = []
    kept.parent.mkdir(parents=True, exist_ok=True)
    numpy.save(kept, numpy.concatenate(rows))
    return numpy.load(kept)


def min_cosine(path, want):
    """Smallest cosine over the texts; a vector that is not finite counts as -1."""
    import numpy
    got = numpy.fromfile(path, numpy.float32).astype(numpy.float64)
    if got.size != want.size or not numpy.isfinite(got).all():
        return -1.0
    got = got.reshape(want.shape)
    lengths = numpy.linalg.norm(got, axis=1) * numpy.linalg.norm(want, axis=1)
    if not lengths.min() > 0:
        return -1.0
    return float(((got * want).sum(axis=1) / lengths).min())


# ---- the run -------------------------------------------------------------------------------------


def convert(given, peer):
    """In a process of its own: converters load whole frameworks. Returns a reason, or ''."""
    for kind in getattr(peers.PEERS[peer], "FORMATS", ()):
        done = subprocess.run(
            [given.python, str(HERE / "convert_models.py"), "--model", str(given.model), "--out",
             str(given.work / "models"), kind], capture_output=True, text=True, cwd=str(ROOT),
            env=peers.worker_environment(given.threads, {"name": "default"}))
        if done.returncode != 0:
            last = (done.stderr.strip() or "no message").split("\n")[-1]
            return f"conversion to {kind}: {last[:200]}"
    return ""


def make_rows(given):
    rows = []
    for peer in given.peers:
        reason = convert(given, peer)
        if reason and "No module named" in reason:
            reason = "not installed: " + reason
        for setting in peers.settings(peer, given.threads, given.library, given.limits):
            row = (ProgramRow if setting["name"] == "program" else Row)(peer, setting, given)
            row.reason = reason
            rows.append(row)
    return rows


def start_rows(given, rows):
    with machine_facts.alone(given):
        for row in rows:
            times = []
            while not row.reason and len(times) <= STARTS:
                row.stop()
                time.sleep(PAUSE_S)
                times.append(row.start())
            row.ms[START] = times[1:]
            if not row.reason:
                say(row, f"start: {statistics.median(row.ms[START]):.0f} ms")


def say(row, what):
    print(f"  {row.peer}, {row.label}: {row.reason or what}", file=sys.stderr, flush=True)


def warm_up(given, rows, texts):
    vectors = given.work / "vectors.f32"
    for mix, path in texts.items():
        want = reference(given, mix, path)
        for row in rows:
            if row.reason or not row.does(mix):
                continue
            ms = row.turn(mix, path, vectors)
            if ms is not None:
                row.cosine[mix] = min_cosine(vectors, want)
                say(row, f"{mix}: {ms:.1f} ms, smallest cosine {row.cosine[mix]:.7f}")
                vectors.unlink()


def measure(given, rows, texts):
    """A row that fails keeps what it has not measured as None, so that rounds stay aligned."""
    for number in range(given.rounds):
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
        turn = number % len(rows)
        with machine_facts.alone(given):
            for mix, path in texts.items():
                for row in rows[turn:] + rows[:turn]:
                    if row.does(mix):
                        ms = None if row.reason else row.turn(mix, path)
                        row.ms.setdefault(mix, []).append(ms)


def flops(lens, config):
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    weights = layers * (4 * hidden * hidden + 2 * hidden * config["intermediate_size"])
    return sum(2 * weights * n + 4 * hidden * n * n * layers for n in lens)


def summary(given, rows, facts):
    """One dict a row and mix, in the order of COLUMNS."""
    mixes = make_texts.read_mixes()
    config = json.loads((given.model / "config.json").read_text(encoding="utf-8"))
    ours = next((row for row in rows if row.ours and row.setting["name"] == "f32"), None)
    lines = []
    for row in rows:
        for mix in [*given.mixes, START]:
            if mix != START and not row.does(mix):
                continue
            line = dict.fromkeys(COLUMNS, "") | facts | {
                "peer": row.peer, "version": row.version, "setting": row.label, "mix": mix,
                "reason": row.reason}
            rounds = row.ms.get(mix, [])
            times = [ms for ms in rounds if ms is not None]
            if times:
                median = statistics.median(times)
                pairs = zip(rounds, ours.ms.get(mix, [])) if ours else []
                ratios = [a / b for a, b in pairs if a is not None and b is not None]
                line |= {"ms_median": plain(median), "ms_min": plain(min(times)),
                         "ms_max": plain(max(times)),
                         "ratio_to_ours": f"{statistics.median(ratios):.3f}" if ratios else "",
                         "peak_rss_mb": f"{row.rss.get(mix, 0):.0f}"}
                if mix != START:
                    line |= {"texts_per_s": plain(len(mixes[mix]['lens']) / median * 1e3),
                             "gflops": f"{flops(mixes[mix]['lens'], config) / median * 1e-6:.1f}"}
            if mix in row.cosine:
                line["min_cosine"] = f"{row.cosine[mix]:.7f}"
            lines.append(line)
    return lines


def print_table(lines):
    heads = ["mix", "peer", "setting", "ms", "min", "max", "texts/s", "GFLOP/s", "ratio", "RSS MB",
             "min cosine"]
    keys = ["mix", "peer", "setting", "ms_median", "ms_min", "ms_max", "texts_per_s", "gflops",
            "ratio_to_ours", "peak_rss_mb", "min_cosine"]
    order = {mix: i for i, mix in enumerate([*make_texts.read_mixes(), START])}
    lines = sorted(lines, key=lambda line: (order[line["mix"]], float(line["ms_median"] or "inf")))
    cells = [heads] + [[line[key] for key in keys] for line in lines]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    for i, row in enumerate(cells):
        if i == 0 or row[0] != cells[i - 1][0]:
            print()
        text = "  ".join(cell.ljust(width) if place < 3 else cell.rjust(width)
                         for place, (cell, width) in enumerate(zip(row, widths)))
        reason = lines[i - 1]["reason"] if i else ""
        print(text.rstrip() + (f"  {reason}" if reason else ""))


def draw(lines, facts):
    mixes = make_texts.read_mixes()
    panels = []
    for mix in [*mixes, START]:
        shown = sorted((line for line in lines if line["mix"] == mix and line["ms_median"]),
                       key=lambda line: float(line["ms_median"]))
        if not shown:
            continue
        bars = []
        for line in shown:
            ours = line["peer"] == "mstar"
            kind = ("ours" if line["setting"].startswith("f32") else "ours-2") if ours else \
                "peer-default" if "default" in line["setting"] else "peer"
            ratio = f", {float(line['ratio_to_ours']):.2f}x" if line["ratio_to_ours"] else ""
            label = f"{line['peer']} {line['setting']}".replace("workers x 1 thread", "workers")
            bars.append((label, float(line["ms_median"]), f"{line['ms_median']} ms{ratio}",
                         kind))
        what = "process start to first vector" if mix == START else mixes[mix]["what"]
        panels.append({"title": f"{mix}: {what}", "bars": bars,
                       "note": "milliseconds, shorter is better; x: times ours f32, same round"})
    reasons = sorted({f"{line['peer']}: {line['reason']}" for line in lines if line["reason"]})
    small = [f"{facts['machine']}, {facts['isa']}, {facts['threads']} threads, commit "
             f"{facts['commit']}, {facts['date']}, medians of {facts['rounds']} rounds",
             *(f"not measured: {reason}"[:170] for reason in reasons)]
    return bench_chart.bars(
        "all-MiniLM-L6-v2, strings to normalised vectors", small, panels,
        [("mstar f32", "ours"), ("mstar bf16", "ours-2"), ("peers, tuned", "peer"),
         ("peers, default", "peer-default")])


def machine(given):
    done = subprocess.run([given.program, "info", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{given.program} info: {done.stderr.strip()}")
    return json.loads(done.stdout)["machine"]


def options():
    names = list(make_texts.read_mixes())
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mixes", default=",".join(names), help="names with commas; default: all")
    parser.add_argument("--peers", default=",".join(peers.PEERS),
                        help="names with commas, mstar is always there; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limits", default="1024",
                        help="token limits of sorted batches, a row each; default: 1024")
    parser.add_argument("--model", default="build/models/all-MiniLM-L6-v2")
    parser.add_argument("--library", default="build/release/libmstar.so")
    parser.add_argument("--program", default="build/release/mstar")
    parser.add_argument("--work", default="build/bench", help="conversions, texts, logs")
    machine_facts.add_options(parser)
    parser.add_argument("--out", default="bench/results", help="folder of the CSV and the picture")
    given = parser.parse_args()
    given.mixes = given.mixes.split(",")
    given.peers = list(dict.fromkeys(["mstar", *given.peers.split(",")]))
    given.limits = [int(limit) for limit in given.limits.split(",")]
    for name, known in ((given.mixes, names), (given.peers, list(peers.PEERS))):
        unknown = set(name) - set(known)
        if unknown:
            parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    if given.rounds < 1 or given.threads < 1 or min(given.limits) < peers.MAX_TOKENS:
        parser.error(f"rounds and threads are at least 1, limits at least {peers.MAX_TOKENS}")
    for name in ("model", "library", "program", "work", "out"):
        setattr(given, name, pathlib.Path(getattr(given, name)).absolute())
    given.python = sys.executable
    for path in (given.model, given.library, given.program):
        if not path.exists():
            parser.error(f"{path} is not there; make build model")
    return given


def main():
    given = options()
    found = machine(given)
    facts = {"date": machine_facts.today(), "machine": given.name or found["processor"], "isa": found["isa"],
             "threads": str(given.threads), "commit": machine_facts.commit(),
             "rounds": str(given.rounds)}
    texts = make_texts.write_texts(given.model, given.work / "texts", given.mixes)
    rows = make_rows(given)
    try:
        start_rows(given, rows)
        warm_up(given, rows, texts)
        measure(given, rows, texts)
    finally:
        for row in rows:
            row.stop()
    lines = summary(given, rows, facts)
    print(f"{facts['machine']}, {facts['isa']}, {given.threads} threads, commit {facts['commit']}, "
          f"load {os.getloadavg()[0]:.1f}, medians of {given.rounds} rounds, ratio: times ours f32")
    print_table(lines)
    given.out.mkdir(parents=True, exist_ok=True)
    name = machine_facts.slug(facts["machine"], facts["isa"]) + "-compare"
    with open(given.out / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    (given.out / f"{name}.svg").write_text(draw(lines, facts), encoding="utf-8")
    print(f"\n{given.out / name}.csv\n{given.out / name}.svg")
    ours = [row for row in rows if row.ours]
    return 1 if any(row.reason for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
