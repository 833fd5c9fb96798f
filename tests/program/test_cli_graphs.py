"""mstar graphs: buckets from token counts and from texts, the document, the table, the picture."""
import json
import math
import os
import pathlib
import random
import xml.etree.ElementTree

from cli_support import (BAD_CONFIG, CANNOT_CREATE, FAILED, NO_INPUT, USAGE, WORDS, ProgramTest,
                         environment, main)


def log_normal(count, median, seed=3):
    rng = random.Random(seed)
    return [min(8192, max(1, round(median * math.exp(rng.gauss(0, 0.8))))) for _ in range(count)]


def lines(counts):
    return "".join(f"{count}\n" for count in counts)


def best_padding(counts, most):
    """The plain quadratic programme over the sorted token counts."""
    levels = sorted(set(counts))
    weight = [counts.count(level) for level in levels]
    best = [0] + [math.inf] * len(levels)
    for _ in range(most):
        fresh = best[:]
        for j in range(1, len(levels) + 1):
            run = 0
            for i in range(j - 1, -1, -1):
                run += weight[i] * (levels[j - 1] - levels[i])
                fresh[j] = min(fresh[j], best[i] + run)
        best = fresh
    return best[-1]


class Plan(ProgramTest):
    def plan(self, counts, *arguments):
        out, err = self.ok("graphs", "plan", "--lengths", "-", "--json", *arguments,
                           stdin=lines(counts))
        self.assertEqual(err, "")
        return json.loads(out)

    def check(self, document, steps, most):
        """The document agrees with itself and with the steps that it was made from."""
        buckets = document["buckets"]
        self.assertLessEqual(len(buckets), most)
        sizes = [bucket["tokens"] for bucket in buckets]
        self.assertEqual(sizes, sorted(set(sizes)))
        padding = [0] * len(buckets)
        for step in steps:
            place = next(i for i, size in enumerate(sizes) if size >= step)
            padding[place] += sizes[place] - step
        self.assertEqual([bucket["padding_tokens"] for bucket in buckets], padding)
        self.assertEqual(sum(bucket["steps"] for bucket in buckets), len(steps))
        waste = sum(padding) / (sum(padding) + sum(steps))
        self.assertAlmostEqual(document["expected_waste"], waste, delta=1e-12)
        config, = document["configs"]
        self.assertEqual(config["type"], "flash_infer_packed")
        self.assertEqual(config["capture_token_lengths"], sizes)
        self.assertEqual({bucket["bs"] for bucket in buckets}, set(config["capture_batch_sizes"]))
        self.assertEqual(document["traffic"]["steps"], len(steps))
        self.assertEqual(document["traffic"]["tokens"], sum(steps))
        return sum(padding)

    def test_each_length_is_a_step(self):
        counts = log_normal(300, 40)
        for most in (1, 3, 7):
            document = self.plan(counts, "--max-buckets", most)
            self.assertEqual(self.check(document, counts, most), best_padding(counts, most))
            self.assertEqual(document["configs"][0]["capture_batch_sizes"], [1])

    def test_batches(self):
        counts = log_normal(301, 60)
        steps = [sum(counts[i:i + 8]) for i in range(0, len(counts), 8)]
        document = self.plan(counts, "--batch-size", 8, "--max-buckets", 5)
        self.assertEqual(self.check(document, steps, 5), best_padding(steps, 5))
        self.assertEqual(document["configs"][0]["capture_batch_sizes"], [8])
        self.assertEqual(document["traffic"]["batch_size"], 8)

    def test_batches_by_tokens_never_miss(self):
        counts = [5, 3, 9, 1, 1, 0, 9]
        document = self.plan(counts, "--max-tokens", 16)
        self.check(document, [8, 11, 9], 40)
        self.assertEqual(document["buckets"][-1]["tokens"], 16)  # the rule may form such a step
        self.assertEqual(document["buckets"][-1]["steps"], 0)
        self.fails(USAGE, "graphs", "plan", "--lengths", "-", "--max-tokens", 8,
                   stdin=lines(counts), words=["standard input:3:1", "9", "--max-tokens", "8"])

    def test_waste_and_its_rivals(self):
        for median in (60, 512):
            counts = log_normal(20000, median)
            document = self.plan(counts, "--max-buckets", 40)
            self.assertLessEqual(document["expected_waste"], 0.08)
            for name, sizes in (("powers_of_two", [2 ** i for i in range(14)]),
                                ("quarter_steps", [1, 2, 3] + [2 ** i * q // 4 for i in range(2, 14)
                                                              for q in (4, 5, 6, 7)])):
                padding = sum(min(size for size in sizes if size >= count) - count
                              for count in counts)
                waste = padding / (padding + sum(counts))
                self.assertAlmostEqual(document[name]["expected_waste"], waste, delta=1e-12)
                used = 1 + sorted(sizes).index(min(s for s in sizes if s >= max(counts)))
                self.assertEqual(document[name]["buckets"], used)
                self.assertLess(document["expected_waste"], waste)

    def test_file_is_what_json_prints(self):
        source = self.write("lengths.txt", " 7 \n\n9\r\n\t12\n")
        out, _ = self.ok("graphs", "plan", "--lengths", source, "--json", "-o",
                         self.path("plan.json"))
        self.assertEqual(self.read("plan.json"), out)
        again, _ = self.ok("graphs", "show", self.path("plan.json"), "--json")
        self.assertEqual(json.loads(again)["buckets"], json.loads(out)["buckets"])
        text, _ = self.ok("graphs", "plan", "--lengths", source)
        self.assertIn("expected waste  0.00 %  with 3 buckets", text.decode())
        self.assert_no_leftovers()

    def test_texts(self):
        texts = ["hello world", "the cat", "", "a dog runs", "the old moon shines"]
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        out, _ = self.ok("graphs", "plan", "--lengths", "-", "--model", self.model, "--json",
                         stdin=rows)
        ids, _ = self.ok("tokenize", "--model", self.model, "--format", "ids",
                         stdin="\n".join(texts) + "\n")
        counts = [len(line.split()) for line in ids.decode().splitlines()]
        document = json.loads(out)
        self.check(document, counts, 40)
        self.assertGreater(document["memory"]["bytes"], 0)
        same, _ = self.ok("graphs", "plan", "--lengths", "-", "--model", self.model, "--json",
                          "--input-format", "lines", stdin="\n".join(texts) + "\n")
        self.assertEqual(same, out)
        # a variable that is set for embed does not turn counts into texts
        self.ok("graphs", "plan", "--lengths", "-", stdin="3\n",
                env=environment(MSTAR_MODEL=self.model))

    def test_budget(self):
        rows = "".join(json.dumps({"text": "cat " * n}) + "\n" for n in range(1, 25))
        ask = ("graphs", "plan", "--lengths", "-", "--model", self.model, "--json")
        free = json.loads(self.ok(*ask, stdin=rows)[0])
        self.assertIsNone(free["memory"]["budget_bytes"])
        least = json.loads(self.ok(*ask, "--max-buckets", 1, stdin=rows)[0])["memory"]["bytes"]
        bound = (least + free["memory"]["bytes"]) // 2
        tight = json.loads(self.ok(*ask, "--budget", bound, stdin=rows)[0])
        self.assertLessEqual(tight["memory"]["bytes"], bound)
        self.assertLess(len(tight["buckets"]), len(free["buckets"]))
        self.assertEqual(tight["buckets"][-1]["tokens"], free["buckets"][-1]["tokens"])
        self.fails(FAILED, *ask, "--budget", 1000, stdin=rows,
                   words=["--budget is 1000", "26 tokens", "bytes"])
        self.fails(USAGE, "graphs", "plan", "--lengths", "-", "--budget", 1000, stdin="3\n",
                   words=["--budget needs --model"])

    def test_refused(self):
        bad = {"abc": "'abc'", "-1": "'-1'", "1.5": "'1.5'", "99999999999": "'99999999999'",
               "1 2": "'1 2'"}
        for text, word in bad.items():
            self.fails(FAILED, "graphs", "plan", "--lengths", "-", stdin=f"5\n{text}\n",
                       words=["standard input:2:1", word, "not a token count"])
        self.fails(FAILED, "graphs", "plan", "--lengths", "-", stdin="\n", words=["no token count"])
        self.fails(NO_INPUT, "graphs", "plan", "--lengths", self.path("none"), words=["none"])
        self.fails(USAGE, "graphs", "plan", words=["--lengths"])
        self.fails(USAGE, "graphs", words=["plan, show or stats"])
        self.fails(USAGE, "graphs", "draw", words=["plan, show or stats", "'draw'"])
        self.fails(USAGE, "graphs", "plan", "x", "--lengths", "-", words=["'x'"])
        self.fails(USAGE, "graphs", "show", "x", "y", words=["'y'"])
        self.fails(USAGE, "graphs", "plan", "--lengths", "-", "--max-buckets", 0,
                   words=["--max-buckets"])
        self.fails(USAGE, "graphs", "plan", "--lengths", "-", "--batch-size", 2, "--max-tokens", 9,
                   words=["only one"])
        self.fails(USAGE, "graphs", "plan", "--lengths", "-", "--svg", "x", words=["show"])
        self.fails(CANNOT_CREATE, "graphs", "plan", "--lengths", "-", "-o",
                   self.path("none/plan.json"), stdin="3\n", words=["none/plan.json"])


class Embed(ProgramTest):
    TEXTS = "\n".join(" ".join(WORDS[(i * j + i) % len(WORDS)] for j in range(i % 23))
                      for i in range(150)) + "\n"

    def test_equal_bytes(self):
        self.ok("graphs", "plan", "--lengths", "-", "--max-tokens", 200, "--max-buckets", 5, "-o",
                self.path("plan.json"), stdin=lines(log_normal(200, 20)))
        for threads in (1, 2):
            ask = ("embed", "--model", self.model, "--threads", threads, "--format", "f32")
            off, _ = self.ok(*ask, "--graphs", "off", stdin=self.TEXTS)
            self.assertEqual(len(off), 150 * self.dims * 4)
            for graphs in ([], ["--graphs", "on"], ["--graphs", self.path("plan.json")]):
                self.assertEqual(self.ok(*ask, *graphs, stdin=self.TEXTS)[0], off)
            self.assertEqual(self.ok(*ask, stdin=self.TEXTS,
                                     env=environment(MSTAR_GRAPHS="off"))[0], off)

    def test_equal_bytes_at_the_edges(self):
        """Nothing, a token, more than the model takes, and more texts than any batch holds."""
        inputs = {"nothing": "\n", "a token": "cat\n", "cut": "the old moon " * 40 + "\n",
                  "nothing among others": "\nhello world\n\n\ncat\n",
                  "one token each": "cat\n" * 3000,
                  "huge": "".join("dog runs " * (n % 23) + "\n" for n in range(4500))}
        for name, texts in inputs.items():
            ask = ("embed", "--model", self.model, "--format", "f32", "--truncate", "end")
            off, _ = self.ok(*ask, "--graphs", "off", stdin=texts)
            self.assertEqual(len(off), texts.count("\n") * self.dims * 4, name)
            for more in ([], ["--threads", 2], ["--batch-tokens", 40]):
                self.assertEqual(self.ok(*ask, *more, stdin=texts)[0], off, (name, more))
            out, _ = self.ok("graphs", "stats", "--model", self.model, "--json", stdin=texts)
            stats = json.loads(out)
            self.assertEqual(stats["steps"], stats["replays"] + sum(stats["misses"].values()), name)
            self.assertEqual(stats["eager_steps"], sum(stats["misses"].values()), name)
            self.assertEqual(stats["replays"], sum(b["replays"] for b in stats["buckets"]), name)

    def test_stats_line(self):
        _, err = self.ok("embed", "--model", self.model, "--stats", stdin=self.TEXTS)
        self.assertRegex(err, r"mstar embed: \d+ batches replayed, 0 eager")
        self.assertRegex(err, r"(\d+) of \1 buckets captured")
        _, err = self.ok("embed", "--model", self.model, "--stats", "--graphs", "off",
                         stdin=self.TEXTS)
        self.assertIn("graphs are off", err)

    def plan_file(self, name="plan.json", **config):
        """Buckets that workers of different batch sizes do not share."""
        out, _ = self.ok("graphs", "plan", "--lengths", "-", "--json", stdin=lines([7, 300, 1100]))
        document = json.loads(out)
        document["configs"][0].update(config)
        return self.write(name, json.dumps(document))

    def test_every_step_is_accounted_for(self):
        for threads in (1, 2):
            for graphs in ("on", self.plan_file()):
                with self.subTest(threads=threads, graphs=graphs):
                    self.account(["--graphs", graphs], environment(MSTAR_NUM_THREADS=str(threads)))

    def account(self, more, env):
        out, _ = self.ok("graphs", "stats", "--model", self.model, "--json", *more,
                         stdin=self.TEXTS, env=env)
        stats = json.loads(out)
        self.assertEqual(stats["steps"], stats["replays"] + stats["eager_steps"])
        self.assertEqual(stats["eager_steps"], sum(stats["misses"].values()))
        buckets = stats["buckets"]
        self.assertEqual([b["tokens"] for b in buckets], sorted(b["tokens"] for b in buckets))
        self.assertEqual(sum(b["replays"] for b in buckets), stats["replays"])
        self.assertEqual(sum(b["replayed_tokens"] for b in buckets), stats["tokens"]["replayed"])
        self.assertEqual(sum(b["padding_tokens"] for b in buckets), stats["tokens"]["padding"])
        for b in buckets:
            self.assertEqual(b["replayed_tokens"] + b["padding_tokens"],
                             b["replays"] * b["tokens"])
        self.assertEqual(sum(b["bytes"] for b in buckets), stats["bytes"]["graphs"])
        self.assertEqual(sum(b["wrapper_bytes"] for b in buckets), stats["bytes"]["wrappers"])
        self.assertEqual(sum(b["capture_ns"] for b in buckets), stats["captures"]["capture_ns"])
        self.assertGreater(stats["bytes"]["wrappers"], 0)
        sizes = dict(stats["bytes"])
        self.assertEqual(sizes.pop("total"), sum(sizes.values()))
        ids, _ = self.ok("tokenize", "--model", self.model, "--format", "ids", "--max-tokens", 32,
                         stdin=self.TEXTS)
        self.assertEqual(stats["tokens"]["replayed"] + stats["tokens"]["eager"],
                         len(ids.decode().split()))
        text, _ = self.ok("graphs", "stats", "--model", self.model, stdin=self.TEXTS)
        self.assertIn("replays", text.decode())

    def test_compile_mode(self):
        """The mode of the environment is told, and the vectors do not depend on it."""
        name, tuned = "MSTAR_GRAPH_COMPILE_MODE", "max-autotune-no-cudagraphs"
        ask = ["embed", "--model", self.model]
        off, _ = self.ok(*ask, "--graphs", "off", stdin=self.TEXTS)
        for mode in ("default", tuned):
            env = environment(**{name: mode})
            vectors, err = self.ok(*ask, "--stats", stdin=self.TEXTS, env=env)
            self.assertEqual(vectors, off)
            self.assertIn(f'compile mode "{mode}"', err)
            out, _ = self.ok("graphs", "stats", "--model", self.model, "--json",
                             stdin=self.TEXTS, env=env)
            stats = json.loads(out)
            captures = stats["captures"]
            self.assertEqual(captures["compile_mode"], mode)
            self.assertEqual(captures["dropped_choices"], 0)
            for b in stats["buckets"]:
                self.assertEqual(b["compile_mode"], mode)
                self.assertEqual(b["specialised"], b["nodes"])  # each has something to choose
                self.assertLessEqual(b["tuned"], b["specialised"] if mode == tuned else 0)
            self.assertEqual(captures["tuning_ns"], sum(b["tuning_ns"] for b in stats["buckets"]))
            graphs = json.loads(self.ok("info", "--json", env=env)[0])["graphs"]
            self.assertEqual(graphs, {"compile_mode": mode, "compile_mode_source": name})
        self.assertEqual(json.loads(self.ok("info", "--json")[0])["graphs"],
                         {"compile_mode": "default", "compile_mode_source": "default"})
        for config, mode in (({"compile": False}, "none"), ({"compile_mode": tuned}, tuned),
                             ({"compile_mode": "default"}, "default"), ({}, "default")):
            path = self.plan_file(**config)
            shown = json.loads(self.ok("graphs", "show", "--json", path)[0])["configs"][0]
            self.assertEqual(shown, {**shown, **config})
            vectors, err = self.ok(*ask, "--stats", "--graphs", path, stdin=self.TEXTS)
            self.assertEqual(vectors, off)
            self.assertIn(f'compile mode "{mode}"', err)
        bad = environment(**{name: "max-autotune"})
        self.fails(BAD_CONFIG, "info", env=bad, words=[name, "max-autotune", "default"])
        self.fails(BAD_CONFIG, *ask, env=bad, words=[name, "max-autotune", "default"])

    def test_refused(self):
        self.fails(NO_INPUT, "embed", "--model", self.model, "--graphs", self.path("none"),
                   words=["none"])
        self.fails(BAD_CONFIG, "embed", "--model", self.model, "--graphs",
                   self.write("bad.json", "{}"), words=["bad.json", "mstar_graphs"])
        odd = {"type": "basic_batched", "capture_graph_walk": "decode",
               "total_tokens_multiplier": 2, "capture_token_lengths": [7, 300],
               "compile": 1, "compile_mode": "reduce-overhead"}
        for key, value in odd.items():
            self.fails(BAD_CONFIG, "embed", "--model", self.model, "--graphs",
                       self.plan_file("odd.json", **{key: value}), words=["odd.json", key])
        self.fails(BAD_CONFIG, "embed", "--model", self.model, "--graphs",
                   self.plan_file("odd.json", compile_mode=3), words=["compile_mode", "string"])
        document = json.loads(pathlib.Path(self.plan_file()).read_text())
        for configs in ([], document["configs"] * 2, {}, [3]):
            path = self.write("odd.json", json.dumps({**document, "configs": configs}))
            self.fails(BAD_CONFIG, "graphs", "show", path, words=["odd.json", "one config"])
        self.fails(USAGE, "graphs", "stats", words=["--model"])
        self.fails(USAGE, "graphs", "stats", "--model", self.model, "--graphs", "off",
                   words=["--graphs is off"])
        self.fails(USAGE, "graphs", "stats", "--model", self.model, "--svg", "x", words=["--svg"])


class Bench(ProgramTest):
    """What mstar bench graphs counts; its times are only looked at for being there."""

    def test_rows(self):
        texts = "".join("the cat " * n + "\n" for n in range(12))
        path = self.write("texts.txt", texts)
        out, _ = self.ok("bench", "graphs", "--model", self.model, "--threads", 1, "--json")
        single = json.loads(out)["rows"]
        self.assertEqual([row["tokens"] for row in single], [8, 16, 32])
        out, _ = self.ok("bench", "graphs", "--model", self.model, "--json", "--input", path)
        *rows, mix = json.loads(out)["rows"]
        for row in (*single, *rows, mix):
            self.assertGreater(row["eager_us"], 0)
            self.assertAlmostEqual(row["replay_us"] / row["eager_us"], row["replay_share"],
                                   delta=1e-3 * row["replay_share"])
            self.assertEqual(row["eager_steps"], 0)
            self.assertGreater(row["buckets"], 0)
        self.assertEqual([row["waste"] for row in single], [0.5, 0, 0])  # 8 tokens run in 16
        stats = json.loads(self.ok("graphs", "stats", "--model", self.model, "--json", path)[0])
        self.assertEqual(mix["texts"], 12)
        self.assertEqual(mix["tokens"], stats["tokens"]["replayed"])
        self.assertAlmostEqual(mix["waste"], stats["tokens"]["waste"], delta=1e-4)

    def test_refused(self):
        self.fails(USAGE, "bench", "graphs", words=["bench graphs needs --model"])
        self.fails(NO_INPUT, "bench", "graphs", "--model", self.path("none"), words=["none"])
        self.fails(NO_INPUT, "bench", "graphs", "--model", self.model, "--input",
                   self.path("none"), words=["none"])


class Show(ProgramTest):
    def setUp(self):
        self.plan = self.path("plan.json")
        self.ok("graphs", "plan", "--lengths", "-", "--max-buckets", 6, "-o", self.plan,
                stdin=lines(log_normal(500, 90)))
        self.document = json.loads(self.read("plan.json"))

    def test_table(self):
        text = self.ok("graphs", "show", self.plan)[0].decode()
        rows = [line.split() for line in text.splitlines()]
        for bucket in self.document["buckets"]:
            self.assertTrue(any(row[:3] == [str(bucket["tokens"]), str(bucket["bs"]),
                                            str(bucket["steps"])] for row in rows), text)

    def test_picture(self):
        out, _ = self.ok("graphs", "show", self.plan, "--svg", "-")
        self.ok("graphs", "show", self.plan, "--svg", self.path("plan.svg"))
        self.assertEqual(self.read("plan.svg"), out)
        root = xml.etree.ElementTree.fromstring(out)
        space = "{http://www.w3.org/2000/svg}"
        left, right = 64.0, 876.0
        marks = [path.get("d") for path in root.iter(space + "path")
                 if path.get("class") == "bucket"]
        most = self.document["buckets"][-1]["tokens"]
        for mark, bucket in zip(marks, self.document["buckets"], strict=True):
            x = float(mark[1:].split()[0])
            self.assertAlmostEqual(x, left + (right - left) * bucket["tokens"] / most, delta=0.06)
        for bar in root.iter(space + "rect"):
            if bar.get("x") is not None:
                self.assertGreaterEqual(float(bar.get("height")), 0)
                self.assertLessEqual(float(bar.get("x")) + float(bar.get("width")), right + 0.2)
        self.assertIn("6 buckets", out.decode())

    def test_picture_of_the_documents(self):
        """docs/graphs.svg is what its page says: the plan of a mix that lies in bench/problems."""
        source = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"])
        mixes = json.loads((source / "bench/problems/text-mixes.json").read_text())
        counts = next(mix["lens"] for mix in mixes if mix["name"] == "C1")
        self.ok("graphs", "plan", "--lengths", "-", "--batch-size", 8, "--max-buckets", 12, "-o",
                self.path("c1.json"), stdin=lines(counts))
        out, _ = self.ok("graphs", "show", self.path("c1.json"), "--svg", "-")
        self.assertEqual(out.decode(), (source / "docs/graphs.svg").read_text())

    def spoil(self, change, *words):
        document = json.loads(json.dumps(self.document))
        change(document)
        path = self.write("bad.json", json.dumps(document))
        self.fails(BAD_CONFIG, "graphs", "show", path, words=["bad.json", *words])

    def test_refused(self):
        self.fails(USAGE, "graphs", "show", words=["FILE"])
        self.fails(NO_INPUT, "graphs", "show", self.path("none.json"), words=["none.json"])
        self.fails(BAD_CONFIG, "graphs", "show", self.write("cut.json", b"{\"mstar_graphs\": 1"),
                   words=["cut.json:1:"])
        self.fails(BAD_CONFIG, "graphs", "show", self.write("list.json", b"[]"),
                   words=["mstar_graphs must be 1"])
        self.spoil(lambda d: d.update(mstar_graphs=2), "mstar_graphs must be 1")
        self.spoil(lambda d: d.update(buckets=[]), "buckets must be a list")
        self.spoil(lambda d: d["buckets"][2].update(tokens=1), "buckets[2].tokens")
        self.spoil(lambda d: d["buckets"][0].update(bs=0), "buckets[0].bs")
        self.spoil(lambda d: d["buckets"][0].update(bs="1"), "buckets[0].bs")
        self.spoil(lambda d: d["buckets"].pop(), "more tokens than the largest bucket")
        most = 2**31 - 1
        self.spoil(lambda d: d["traffic"].update(levels=[[most - 1, most], [most, most]]),
                   "traffic.levels[1] makes it more than 2147483647 steps")
        self.spoil(lambda d: d["traffic"]["levels"].reverse(), "traffic.levels[1]")
        self.spoil(lambda d: d["traffic"]["levels"][0].append(3), "traffic.levels[0]")
        self.spoil(lambda d: d.pop("traffic"), "traffic.levels")


if __name__ == "__main__":
    main()
