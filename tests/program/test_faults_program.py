"""Cases of the known faults that a compiler or the program answers."""
import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

from cli_support import FAILED, ProgramTest, jsonl, main

SOURCE = os.environ["MSTAR_TEST_SOURCE"]


def fault(name):
    with open(os.path.join(SOURCE, "tests/data/known-faults.json"), encoding="utf-8") as file:
        return next(case for case in json.load(file) if case["id"] == name)


class Types(unittest.TestCase):
    def test_64_bit_offsets_do_not_compile(self):
        """BR-095: 64-bit lengths through a 32-bit pointer are a compile error, in all three plans."""
        case = fault("BR-095")
        self.assertEqual(case["expect"]["outcome"], "reject_in_binding")
        q = [0] + [sum(case["trigger"]["q_lens"][:i + 1]) for i in range(2)]
        kv = [0] + [sum(case["trigger"]["kv_lens"][:i + 1]) for i in range(2)]
        form = """#include <mstar.h>
        mstar_status f(mstar_ragged_prefill *s, mstar_ragged_cross_prefill *c, mstar_prefixed_prefill *p)
        {{
            const {type} q[] = {{{q}}};
            const {type} kv[] = {{{kv}}};
            mstar_status status = mstar_ragged_prefill_plan(s, NULL, q, 2, 0);
            if (status == MSTAR_OK)
                status = mstar_ragged_cross_prefill_plan(c, NULL, q, 2, kv, 2);
            if (status == MSTAR_OK)
                status = mstar_prefixed_prefill_plan(p, NULL, q, 2, kv, 2, 0);
            return status;
        }}
        """
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "offsets.c")
            for width, errors in (("int32_t", 0), ("int64_t", 5)):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(form.format(type=width, q=str(q)[1:-1], kv=str(kv)[1:-1]))
                done = subprocess.run(
                    [os.environ.get("CC", "cc"), "-std=c11", "-fsyntax-only",
                     "-Werror=incompatible-pointer-types", "-I", os.path.join(SOURCE, "include"), path],
                    capture_output=True, text=True)
                self.assertEqual(done.stderr.count("error: "), errors, done.stderr)
                self.assertEqual(done.returncode != 0, errors > 0)


class Benchmarks(ProgramTest):
    def test_rows_are_read(self):
        """BR-250 and BR-253 are about time: their rows run or are listed as too large, none is refused."""
        path = os.path.join(SOURCE, "bench/problems/known-faults-cpu.json")
        with open(path, encoding="utf-8") as file:
            rows = {row["name"]: row for row in json.load(file)}
        given = fault("BR-250")["trigger"]["a"]
        largest = rows["BR-250-8192-of-34"]
        self.assertEqual(largest["q_lens"], given["q_lens"])
        self.assertEqual([largest["num_qo_heads"], largest["num_kv_heads"], largest["head_dim"]],
                         [given["hq"], given["hkv"], given["d"]])
        sides = fault("BR-253")["trigger"]
        for side, name in (("a", "BR-253-tight"), ("b", "BR-253-loose")):
            self.assertEqual(rows[name]["q_lens"], sides[side]["q_lens"])
            self.assertEqual(rows[name]["max_total_tokens"], 2 * sides[side]["max_len"])
        out, _ = self.ok("bench", "attn", "--workloads", path, "--max-gflop", "1", "--json")
        done = {row["name"]: row for row in json.loads(out)["rows"]}
        self.assertEqual(list(done), list(rows))
        for name, row in done.items():
            self.assertEqual("skipped" in row, name.startswith("BR-250"), row)
        bad = self.write("bad.json", '[{"name": "x", "kind": "self", "num_qo_heads": 1, '
                                     '"num_kv_heads": 1, "head_dim": 8, "q_lens": {"repeat": 3}}]')
        self.fails(FAILED, "bench", "attn", "--workloads", bad, words=["workload x", "repeat"])


class NotFinite(ProgramTest):
    def test_no_nulls_for_a_text_of_nan(self):
        """BR-249: text 0 has its vector, text 1 an error with its line; never a null."""
        case = fault("BR-249")
        self.assertEqual(case["trigger"]["inject"], "NaN in hidden state of text 1")
        self.assertEqual(case["trigger"]["texts"], 2)
        clean, _ = self.ok("embed", "-m", self.model, stdin="dog\ncat\n")
        folder = self.path("nan")
        shutil.copytree(self.model, folder)
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
            token = json.load(file)["model"]["vocab"]["cat"]
        with open(os.path.join(folder, "model.safetensors"), "r+b") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            table = json.loads(file.read(length))["embeddings.word_embeddings.weight"]
            file.seek(8 + length + table["data_offsets"][0] + token * table["shape"][1] * 4)
            file.write(struct.pack("<f", float("nan")))
        alone, _ = self.ok("embed", "-m", folder, stdin="dog\n")
        self.assertEqual(jsonl(alone)[0]["embedding"], jsonl(clean)[0]["embedding"])
        for fmt in ("jsonl", "npy", "f32", "csv"):
            self.fails(FAILED, "embed", "-m", folder, "-f", fmt, stdin="dog\ncat\n",
                       words=["standard input:2:1: ", "not finite"])


if __name__ == "__main__":
    main()
