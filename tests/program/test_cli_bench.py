"""mstar bench over files of problems: what it computes, what it refuses, and goals. No figure of time
is looked at: only whether it is there, and how it is compared."""
import json
import math
import os

import numpy as np

from cli_support import FAILED, NO_INPUT, OK, USAGE, ProgramTest, main, run

SOURCE = os.environ["MSTAR_TEST_SOURCE"]
TOWER = {"layers": 2, "width": 24, "heads": 3, "head_dim": 8, "mlp": 40, "norm": "pre",
         "activation": "gelu_tanh", "lens": [5, 0, 3]}
SMALL = {"kind": "self", "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 8, "q_lens": [3, 4]}


class Numbers:
    """The generator of the program: each array has the next seed."""

    def __init__(self):
        self.seed = 1

    def array(self, count, middle, scale):
        state, values = self.seed * 2 + 1, np.empty(count, np.float32)
        self.seed += 1
        for i in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            values[i] = (state >> 40) / 2.0**23 - 1
        return np.float32(middle) + np.float32(scale) * values

    def linear(self, rows, columns):
        bias = self.array(columns, 0, 0.1)
        scale = np.sqrt(np.float32(3) / np.float32(rows))
        return self.array(rows * columns, 0, scale).reshape(columns, rows), bias

    def norm(self, width):
        return self.array(width, 1, 0.1), self.array(width, 0, 0.1)


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def layer_norm(x, weights):
    x = x - x.mean(axis=1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * weights[0] + weights[1]


def attention(qkv, heads, lens):
    dim = qkv.shape[1] // (3 * heads)
    parts = qkv.reshape(-1, 3, heads, dim).transpose(1, 2, 0, 3)
    out, at = np.zeros(parts.shape[1:]), 0
    for length in lens:
        q, k, v = parts[:, :, at:at + length]
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(dim)
        if length > 0:
            scores = np.exp(scores - scores.max(axis=2, keepdims=True))
            out[:, at:at + length] = scores / scores.sum(axis=2, keepdims=True) @ v
        at += length
    return out.transpose(1, 0, 2).reshape(-1, heads * dim)


def run_tower(tower):
    """The output of a tower in float64, from the same weights."""
    draw, width, inner = Numbers(), tower["width"], tower["heads"] * tower["head_dim"]
    layers = [[draw.linear(width, 3 * inner), draw.linear(inner, width),
               draw.linear(width, tower["mlp"]), draw.linear(tower["mlp"], width),
               draw.norm(width), draw.norm(width)] for _ in range(tower["layers"])]
    last = draw.norm(width)
    x = np.stack([draw.array(width, 0, 1) for _ in range(sum(tower["lens"]))]).astype(np.float64)
    activate = {"gelu": gelu, "gelu_tanh": gelu_tanh}[tower["activation"]]

    def product(rows, linear):
        return rows @ linear[0].astype(np.float64).T + linear[1]

    for qkv, out, up, down, norm_1, norm_2 in layers:
        rows = layer_norm(x, norm_1) if tower["norm"] == "pre" else x
        x = x + product(attention(product(rows, qkv), tower["heads"], tower["lens"]), out)
        x = x if tower["norm"] == "pre" else layer_norm(x, norm_1)
        rows = layer_norm(x, norm_2) if tower["norm"] == "pre" else x
        x = x + product(activate(product(rows, up)), down)
        x = x if tower["norm"] == "pre" else layer_norm(x, norm_2)
    return layer_norm(x, last) if tower["norm"] == "pre" else x


def tolerance(tower, unit):
    """Roundings of one number on its way: a product and a norm round once a term at most, all sums
    are of numbers about 1 large, and errors of independent terms add like their square root."""
    terms = tower["layers"] * (4 * tower["width"] + 2 * tower["mlp"] + 4 * sum(tower["lens"]))
    return unit * 2 * math.sqrt(terms) + 5e-5  # printed with five digits, below 10


class Bench(ProgramTest):
    def bench(self, name, problems, *more):
        """The rows, by name."""
        path = self.write("problems.json", json.dumps(problems))
        out, _ = self.ok("bench", name, "--workloads", path, "--threads", 2, "--json", *more)
        return {row["name"]: row for row in json.loads(out)["rows"]}

    def check_tower(self, tower, dtype, unit):
        row = self.bench("tower", [tower | {"name": "t"}], "--dtype", dtype)["t"]
        want = run_tower(tower)
        for key, place in (("first", 0), ("last", -1)):
            self.assertLessEqual(abs(row[key] - want[place, 0]), tolerance(tower, unit), (row, tower))
        for key in ("us", "eager_us", "capture_us", "gflops", "launches"):
            self.assertGreater(row[key], 0)
        self.assertEqual(row["tokens"], sum(tower["lens"]))

    def test_a_backend_by_name(self):
        small = [{"name": "a", "kind": "self", "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 16,
                  "q_lens": [3, 5]}]
        kernels = {name: self.bench("attn", small, "--backend", name)["a"]["kernel"]
                   for name in ("auto", "native", "reference")}
        self.assertEqual(kernels["auto"], kernels["native"])
        self.assertIn("scalar", kernels["reference"])
        for bench in ("attn", "plan"):
            path = self.write("problems.json", json.dumps(small))
            self.fails(FAILED, "bench", bench, "--workloads", path, "--backend", "fa9",
                       words=["fa9", "reference"])

    def test_towers_are_what_they_say(self):
        post = TOWER | {"norm": "post", "activation": "gelu", "heads": 2, "head_dim": 72}
        for tower in (TOWER, post, TOWER | {"norm": "post", "layers": 1}, TOWER | {"lens": [1]}):
            self.check_tower(tower, "f32", 2.0**-24)
        for tower in (TOWER, post):
            self.check_tower(tower, "bf16", 2.0**-9)

    def test_the_kept_towers_are_read(self):
        path = os.path.join(SOURCE, "bench/problems/towers.json")
        out, _ = self.ok("bench", "tower", "--workloads", path, "--max-gflop", 1, "--json")
        rows = json.loads(out)["rows"]
        self.assertEqual([row["name"] for row in rows], ["T1", "T2", "T3", "T4", "T5", "T6"])
        for row in rows:
            self.assertEqual("skipped" in row, row["name"] != "T6", row)
            self.assertIn("best_us", row)
        self.assertEqual([row["tokens"] for row in rows[:3]], [32 * 729, 42440, 256])

    def test_lengths_repeat(self):
        row = self.bench("tower", [TOWER | {"name": "t", "lens": {"repeat": 3, "times": 4}}])["t"]
        same = self.bench("tower", [TOWER | {"name": "t", "lens": [3, 3, 3, 3]}])["t"]
        self.assertEqual([row["tokens"], row["first"], row["last"]],
                         [12, same["first"], same["last"]])

    def test_bad_towers(self):
        for change, word in (({"width": 0}, "width"), ({"heads": "3"}, "heads"),
                             ({"head_dim": 257}, "256"), ({"norm": "both"}, "norm"),
                             ({"activation": "swish"}, "activation"), ({"lens": 7}, "lens"),
                             ({"lens": [3, -1]}, "lengths"), ({"lens": []}, "lengths"),
                             ({"lens": [2**31 - 1, 1]}, "lengths"), ({"lens": [3, 2.5]}, "whole"),
                             ({"lens": [3, "4"]}, "whole"), ({"layers": 2.5}, "layers")):
            path = self.write("bad.json", json.dumps([TOWER | {"name": "odd"} | change]))
            self.fails(FAILED, "bench", "tower", "--workloads", path, words=["workload odd", word])
        self.fails(FAILED, "bench", "tower", "--workloads", self.write("bad.json", "{}"),
                   words=["list"])
        self.fails(FAILED, "bench", "tower", "--workloads", self.write("bad.json", "[{}]"),
                   words=["name"])
        self.fails(NO_INPUT, "bench", "tower", "--workloads", self.path("none.json"))
        self.fails(USAGE, "bench", "tower", words=["--workloads"])
        self.fails(USAGE, "bench", "towers", words=["attn, plan, linear, embed, replay, tower or graphs"])


STEP_FIGURES = ("us", "eager_us", "replay_us", "capture_us", "launches", "graph_bytes")


class Plans(ProgramTest):
    """mstar bench plan: times of plans, and the goals and peers of plans alone."""

    def rows(self, problems, *more):
        path = self.write("plans.json", json.dumps(problems))
        out, _ = self.ok("bench", "plan", "--workloads", path, "--threads", 1, "--json", *more)
        return json.loads(out)["rows"]

    def test_figures(self):
        ceilings = SMALL | {"max_num_segments": 9, "max_total_tokens": 4000}
        for dtype in ("f32", "bf16"):
            for row in self.rows([SMALL | {"name": "a"}, ceilings | {"name": "b"}], "--dtype", dtype):
                self.assertEqual(row["segments"], len(SMALL["q_lens"]))
                self.assertEqual(row["tokens"], sum(SMALL["q_lens"]))
                self.assertGreater(row["plan_us"], 0)
                self.assertGreater(row["ready_us"], 0)

    def test_only_what_is_about_plans(self):
        row, = self.rows([SMALL | {"name": "a", "accept_us": 1e-9, "accept_plan_us": 1e9, "best_us": 3,
                                   "floor_us": 1, "peer_plan_us": 7}])
        self.assertEqual((row["peer_plan_us"], row["accept_plan_us"]), (7, 1e9))
        for key in ("accept_us", "best_us", "floor_us", "us"):
            self.assertNotIn(key, row)

    def test_refused(self):
        self.fails(USAGE, "bench", "plan", words=["bench plan", "--workloads"])
        path = self.write("bad.json", json.dumps([SMALL | {"name": "odd", "kind": "both"}]))
        self.fails(FAILED, "bench", "plan", "--workloads", path, words=["workload odd", "kind"])


class Products(ProgramTest):
    def test_shares_of_the_limit(self):
        """A product takes no less than its multiply-adds at the peak, nor than its weights read once:
        of_limit is by the later of the two, whatever was measured."""
        out, _ = self.ok("bench", "linear", "--threads", 1, "--json")
        document = json.loads(out)
        rows = document["rows"]
        self.assertEqual(len({row["name"] for row in rows}), 8)
        self.assertLessEqual(set(range(1, 13)), {row["rows"] for row in rows})
        for row in rows:
            inputs, outputs = map(int, row["name"].split("x"))
            weights = inputs * outputs
            flops_us = 2 * row["rows"] * weights / document["peak_gflops"] * 1e-3
            self.assertGreater(row["read_gbps"], 0)
            np.testing.assert_allclose(row["read_us"], 4 * weights / row["read_gbps"] * 1e-3, 1e-3)
            np.testing.assert_allclose(row["of_limit"], max(flops_us, row["read_us"]) / row["us"],
                                       1e-3)
            np.testing.assert_allclose(row["of_peak"], flops_us / row["us"], 1e-3)


class Replays(ProgramTest):
    """mstar bench replay over a file: its own counts of tokens take minutes under sanitizers."""

    def test_steps_of_a_file(self):
        steps = [{"name": "none", "tokens": 0}, {"name": "two", "tokens": 2, "floor_us": 6}]
        path = self.write("steps.json", json.dumps(steps))
        for dtype in ("f32", "bf16"):
            out, _ = self.ok("bench", "replay", "--workloads", path, "--threads", 1, "--json",
                             "--dtype", dtype)
            document = json.loads(out)
            self.assertEqual(document["dtype"], dtype)
            rows = document["rows"]
            self.assertEqual([(row["name"], row["tokens"], row.get("floor_us")) for row in rows],
                             [("none", 0, None), ("two", 2, 6)])
            for row in rows:
                for key in STEP_FIGURES:
                    self.assertGreater(row[key], 0, (key, row))
                self.assertEqual(row["replay_us"], row["us"])  # on a CPU the call is all of it

    def test_refused(self):
        for step, word in (({"tokens": 1}, "name"), ({"name": "odd"}, "tokens"),
                           ({"name": "odd", "tokens": -1}, "0 to 256"),
                           ({"name": "odd", "tokens": 257}, "0 to 256")):
            path = self.write("bad.json", json.dumps([step]))
            self.fails(FAILED, "bench", "replay", "--workloads", path, words=[word])
        self.fails(NO_INPUT, "bench", "replay", "--workloads", self.path("none.json"))


class Goals(ProgramTest):
    def check(self, bench, problems, code, *more):
        """The document and the line on standard error."""
        path = self.write("goals.json", json.dumps(problems))
        got, out, err = run("bench", bench, "--workloads", path, "--check-goals", "--json", *more)
        self.assertEqual(got, code, err)
        return json.loads(out), err

    def test_met_missed_and_not_measured(self):
        for bench, problem in (("tower", TOWER), ("attn", SMALL)):
            easy = problem | {"name": "easy", "accept_us": 1e9}
            hard = problem | {"name": "hard", "accept_us": 1e-9, "best_us": 7}
            none = problem | {"name": "none", "accept_device_us": 1e9}
            document, err = self.check(bench, [easy], OK)
            self.assertEqual((document["goals"], document["missed"], err), (1, [], ""))
            document, err = self.check(bench, [easy, hard, none], FAILED)
            self.assertEqual(document["goals"], 3)
            self.assertEqual([text.split(" ")[:2] for text in document["missed"]],
                             [["hard", "us"], ["none", "device_us"]])
            self.assertTrue(document["missed"][0].endswith("> 1e-09"), document)
            self.assertIn("not measured", document["missed"][1])
            self.assertIn("2 of 3 goals missed: hard us", err)
            self.assertEqual({row["name"]: row.get("best_us") for row in document["rows"]},
                             {"easy": None, "hard": 7, "none": None})

    def test_plans_and_replays(self):
        for bench, problem, figure in (("plan", SMALL, "plan_us"),
                                       ("replay", {"tokens": 1}, "replay_us")):
            easy = problem | {"name": "easy", f"accept_{figure}": 1e9}
            hard = problem | {"name": "hard", f"accept_{figure}": 1e-9}
            document, _ = self.check(bench, [easy], OK)
            self.assertEqual((document["goals"], document["missed"]), (1, []))
            document, err = self.check(bench, [easy, hard], FAILED)
            self.assertEqual(document["goals"], 2)
            self.assertIn(f"1 of 2 goals missed: hard {figure}", err)

    def test_skipped_is_missed(self):
        large = TOWER | {"name": "large", "lens": [4000], "accept_us": 1e9}
        document, err = self.check("tower", [large], FAILED, "--max-gflop", 1)
        self.assertEqual(document["missed"], ["large us not measured"])
        self.assertIn("1 of 1 goals missed", err)

    def test_nothing_to_check(self):
        _, err = self.check("attn", [SMALL | {"name": "x"}], FAILED)
        self.assertIn("no goals", err)

    def test_as_a_table(self):
        path = self.write("goals.json", json.dumps([TOWER | {"name": "only", "accept_us": 1e9}]))
        out, _ = self.ok("bench", "tower", "--workloads", path, "--check-goals")
        self.assertIn(b"only", out)
        self.assertIn(b"accept_us", out)


if __name__ == "__main__":
    main()
