"""mstar embed: formats, inputs, counts, and that nothing but the text decides a vector's bits."""
import io
import json
import os
import shutil
import struct
import subprocess

import numpy as np

from cli_support import (FAILED, OK, PROGRAM, REAL_MODEL, ProgramTest, environment, jsonl, main,
                         vectors)

TEXTS = ["the cat runs", "the dog", "", "rain on the river", "a", "bread and moon",
         "hello world " * 30 + "cat", "sun \U0001f600 shines", "é ü ñ", "   ", "the cat runs"]


def lines(texts, end="\n"):
    return "".join(text + end for text in texts)


class Formats(ProgramTest):
    def embed(self, fmt, *arguments, texts=None):
        data = lines(TEXTS if texts is None else texts)
        return self.ok("embed", "-m", self.model, "--format", fmt, *arguments, stdin=data)[0]

    def test_all_formats_hold_the_same_bits(self):
        npy = self.embed("npy")
        array = np.load(io.BytesIO(npy))
        self.assertEqual(array.dtype, np.dtype("<f4"))
        self.assertEqual(array.shape, (len(TEXTS), self.dims))
        self.assertTrue(array.flags.c_contiguous)
        self.assertGreater(len({row.tobytes() for row in array}), 7)  # not all the same
        raw = self.embed("f32")
        self.assertEqual(array.tobytes(), raw)
        self.assertEqual(npy[128:], raw)
        csv = self.embed("csv")
        table = np.array([[np.float32(cell) for cell in row.split(",")]
                          for row in csv.decode("ascii").splitlines()], dtype=np.float32)
        self.assertEqual(table.tobytes(), raw)
        rows = jsonl(self.embed("jsonl"))
        self.assertEqual(vectors(self.embed("jsonl")).tobytes(), raw)
        self.assertEqual([row["index"] for row in rows], list(range(len(TEXTS))))
        self.assertEqual(set(rows[0]), {"index", "tokens", "truncated", "embedding"})

    def test_files_equal_standard_output(self):
        text = self.write("in.txt", lines(TEXTS))
        for fmt in ("jsonl", "npy", "f32", "csv"):
            out = self.embed(fmt)
            nothing, _ = self.ok("embed", "-m", self.model, "--format", fmt, "-o",
                                 self.path("out"), text)
            self.assertEqual(nothing, b"")
            self.assertEqual(self.read("out"), out)
            with open(self.path("redirected"), "wb") as file:  # a file on standard output
                done = subprocess.run([PROGRAM, "embed", "-qm", self.model, "--format", fmt, text],
                                      stdout=file, env=environment(), check=False)
            self.assertEqual(done.returncode, OK)
            self.assertEqual(self.read("redirected"), out)

    def test_a_device_is_taken_by_name(self):
        self.assertEqual(self.embed("f32", "--device", "cpu"), self.embed("f32"))
        for command in (["embed"], ["similar", "--pairs"], ["info"]):
            for name in ("nowhere", "cuda:9999"):
                arguments = [*command, "--device", name, "-m", self.model]
                done = subprocess.run([PROGRAM, *arguments], input=b"a\nb\n", capture_output=True,
                                      env=environment(), check=False)
                self.assertNotEqual(done.returncode, OK)
                self.assertIn(name.encode(), done.stderr)
                self.assertEqual(done.stdout, b"")

    def test_no_texts(self):
        for source in (["-"], [self.write("empty.txt", "")]):
            for more in ([], ["-o", self.path("none.npy")]):
                out, err = self.ok("embed", "-m", self.model, "--format", "npy", *more, *source)
                data = self.read("none.npy") if more else out
                self.assertEqual(np.load(io.BytesIO(data)).shape, (0, self.dims))
                self.assertEqual(err, "")
            for fmt in ("jsonl", "f32", "csv"):
                out, _ = self.ok("embed", "-m", self.model, "--format", fmt, *source)
                self.assertEqual(out, b"")

    def test_vectors_have_length_one_unless_asked(self):
        array = np.frombuffer(self.embed("f32"), "<f4").reshape(-1, self.dims).astype(np.float64)
        # the squares of `dims` floats, each rounded once, and the rounding of the sum
        tolerance = (self.dims + 2) * 2.0 ** -24
        self.assertTrue((np.abs(np.linalg.norm(array, axis=1) - 1) <= tolerance).all())
        bare = np.frombuffer(self.embed("f32", "--no-normalize"), "<f4").reshape(-1, self.dims)
        norms = np.linalg.norm(bare.astype(np.float64), axis=1)
        self.assertTrue((np.abs(norms - 1) > 0.01).all())
        scaled = bare / norms[:, None]
        self.assertTrue((np.abs(scaled - array) <= 4 * tolerance).all())

    def test_options_reach_the_model(self):
        plain = self.embed("f32")
        for arguments in (["--pooling", "cls"], ["--dtype", "bf16"], ["--prompt-name", "query"],
                          ["--max-tokens", "4"], ["--truncate", "start"]):
            self.assertNotEqual(self.embed("f32", *arguments), plain, arguments)
        prompted = self.embed("f32", texts=["query: the cat", "query: a"])
        self.assertEqual(self.embed("f32", "--prompt-name", "query", texts=["the cat", "a"]),
                         prompted)


class SameBits(ProgramTest):
    def test_threads_batches_and_neighbours_change_nothing(self):
        rng = np.random.default_rng(3)
        words = "the a cat dog sun moon rain river bread hello world".split()
        texts = [" ".join(rng.choice(words, rng.integers(0, 40))) for _ in range(300)]
        text = self.write("many.txt", lines(texts))
        want, _ = self.ok("embed", "-m", self.model, "-f", "f32", "-t", "1", text)
        self.assertEqual(len(want), 300 * self.dims * 4)
        for arguments in (["-t", "2"], ["-t", "5"], ["-b", "64"], ["-b", "97", "-t", "3"],
                          ["-b", "65536"]):
            out, _ = self.ok("embed", "-m", self.model, "-f", "f32", *arguments, text)
            self.assertEqual(out, want, arguments)
        row = 4 * self.dims
        for i in (0, 7, 123, 299):
            out, _ = self.ok("embed", "-m", self.model, "-f", "f32", stdin=texts[i] + "\n")
            self.assertEqual(out, want[i * row:(i + 1) * row], texts[i])

    def test_more_texts_than_a_chunk_holds(self):
        texts = [f"the cat {i % 97} runs" for i in range(9000)]
        out, _ = self.ok("embed", "-m", self.model, "-f", "npy", stdin=lines(texts))
        array = np.load(io.BytesIO(out))
        self.assertEqual(array.shape, (9000, self.dims))
        first = array[:97].tobytes()
        for start in range(97, 9000 - 97, 97):
            self.assertEqual(array[start:start + 97].tobytes(), first)
        rows = jsonl(self.ok("embed", "-m", self.model, stdin=lines(texts))[0])
        self.assertEqual([row["index"] for row in rows], list(range(9000)))


class Lines(ProgramTest):
    def embed(self, data, *arguments):
        return self.ok("embed", "-m", self.model, "-f", "f32", *arguments, stdin=data)[0]

    def test_line_ends(self):
        want = self.embed("the cat\n\na dog\n")
        self.assertEqual(len(want), 3 * 4 * self.dims)
        for data in ("the cat\r\n\r\na dog\r\n", "the cat\n\na dog", "the cat\r\n\r\na dog",
                     "\ufeffthe cat\n\na dog\n"):
            self.assertEqual(self.embed(data), want, repr(data))
        self.assertEqual(len(self.embed("\n")), 4 * self.dims)  # one empty text
        self.assertEqual(self.embed("\r\n"), self.embed("\n"))

    def test_bytes_that_are_not_text(self):
        row = 4 * self.dims
        out = self.embed(b"the\x00cat\nthe \xff\xfe cat\n\xc3\n")
        self.assertEqual(len(out), 3 * row)
        self.assertEqual(out[row:], self.embed("the \ufffd\ufffd cat\n\ufffd\n"))

    def test_a_long_line(self):
        data = "the cat " * 200000
        rows = jsonl(self.ok("embed", "-m", self.model, stdin="a\n" + data + "\nb")[0])
        self.assertEqual([row["truncated"] for row in rows], [False, True, False])
        self.assertEqual(rows[1]["tokens"], 32)

    def test_a_line_without_end(self):
        """Memory is bounded, also where the input has no lines: /dev/zero, say."""
        for fmt in ("lines", "jsonl"):
            with open("/dev/zero", "rb") as zero:
                done = subprocess.run([PROGRAM, "embed", "-m", self.model, "-i", fmt], stdin=zero,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=environment(), check=False)
            self.assertEqual((done.returncode, done.stdout), (FAILED, b""))
            self.assertIn(b"standard input:1:1: the line is longer than 67108864", done.stderr)

    def test_lines_and_jsonl_agree(self):
        objects = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS)
        self.assertEqual(self.embed(objects, "--input-format", "jsonl"), self.embed(lines(TEXTS)))


class Jsonl(ProgramTest):
    def embed(self, data, *arguments):
        return self.ok("embed", "-m", self.model, "-i", "jsonl", *arguments, stdin=data)[0]

    def test_unicode_and_escapes(self):
        a = self.embed(r'{"text": "caf\u00e9 \ud83d\ude00 \"a\" \\ \/ \n \t b"}' + "\n", "-f", "f32")
        b = self.embed(json.dumps({"text": "caf\u00e9 \U0001f600 \"a\" \\ / \n \t b"},
                                  ensure_ascii=False) + "\n", "-f", "f32")
        self.assertEqual(a, b)

    def test_nul_is_part_of_the_text(self):
        rows = vectors(self.embed('{"text":"the cat"}\n{"text":"the\\u0000 cat dog"}\n'
                                  '{"text":"the"}\n{"text":"the cat dog"}\n'))
        # BERT's clean-up drops NUL, so the text is whole only if nothing stopped at it
        self.assertEqual(rows[1].tobytes(), rows[3].tobytes())
        self.assertNotEqual(rows[1].tobytes(), rows[2].tobytes())

    def test_other_fields_are_ignored_and_ids_repeated(self):
        ids = ['"x\\"y\\u0001é"', "17", "-3", "null", "true", '["a",1]', '{"k":"v"}',
               "9223372036854775807"]
        data = "".join('{"more":[1,{"text":"no"}],"id":%s,"text":"a","z":1.5e3}\n' % i for i in ids)
        rows = jsonl(self.embed(data))
        self.assertEqual([json.dumps(row["id"]) for row in rows],
                         [json.dumps(json.loads(i)) for i in ids])
        self.assertNotIn("id", jsonl(self.embed('{"text":"a"}\n'))[0])

    def test_integers_beyond_64_bits(self):
        row = jsonl(self.embed('{"hash":18446744073709551615,"id":5,"text":"a"}\n'))[0]
        self.assertEqual(json.dumps(row["id"]), "5")
        self.fails(FAILED, "embed", "-m", self.model, "-i", "jsonl", words=["64 bits", ":1:"],
                   stdin='{"id":18446744073709551615,"text":"a"}\n')

    def test_blank_lines_are_skipped_and_counted(self):
        rows = jsonl(self.embed('\n{"text":"a"}\r\n  \n\n{"text":"b"}'))
        self.assertEqual([row["index"] for row in rows], [0, 1])
        self.fails(FAILED, "embed", "-m", self.model, "-i", "jsonl", words=["standard input:4:"],
                   stdin='\n{"text":"a"}\n\n{"text":\n')

    def test_malformed_lines_name_file_line_and_column(self):
        for bad, column in (('{"text": "a"', None), ('{"text": 1}', 1), ('{"txt": "a"}', 1),
                            ('["a"]', 1), ('"a"', 1), ("17", 1), ("null", 1), ("{}", 1),
                            ('{"text": "a"} x', None), ('{"text": "\\ud800"}', None),
                            ("{'text': 'a'}", None), ('{"text": "a\x01b"}', None), ("nonsense", None),
                            ("[" * 5000, None)):
            data = '{"text":"a"}\n{"text":"b"}\n' + bad + "\n"
            path = self.write("bad.jsonl", data)
            err = self.fails(FAILED, "embed", "-m", self.model, "-i", "jsonl", path,
                             words=["bad.jsonl:3:"])
            self.assertRegex(err, r"bad\.jsonl:3:\d+: \S")
            if column:
                self.assertIn(f"bad.jsonl:3:{column}: ", err)
        self.fails(FAILED, "embed", "-m", self.model, "-i", "jsonl", words=[":1:"],
                   stdin=b'{"text":"\xff"}\n')

    def test_a_malformed_line_leaves_the_output_file_alone(self):
        self.write("out", "former")
        self.fails(FAILED, "embed", "-m", self.model, "-i", "jsonl", "-o", self.path("out"),
                   stdin='{"text":"a"}\n' * 5000 + "{\n", words=[":5001:"])
        self.assertEqual(self.read("out"), b"former")
        self.assert_no_leftovers()


class Counts(ProgramTest):
    def test_truncations_and_empty_texts_are_reported(self):
        data = lines(["a", "", "the cat " * 40, " \t", "b", "the dog " * 40])
        out, err = self.ok("embed", "-m", self.model, stdin=data)
        self.assertEqual([r["truncated"] for r in jsonl(out)],
                         [False, False, True, False, False, True])
        self.assertEqual([r["tokens"] for r in jsonl(out)], [3, 2, 32, 2, 3, 32])
        self.assertIn("2 of 6 texts were cut to 32 tokens, the first in line 3", err)
        self.assertIn("2 of 6 texts are empty, the first in line 2", err)
        self.assertEqual(err.count("\n"), 2)
        quiet, err = self.ok("embed", "-m", self.model, "--quiet", stdin=data)
        self.assertEqual((quiet, err), (out, ""))

    def test_truncate_sides(self):
        long = "the " * 29 + "cat cat cat dog dog dog"  # 35 tokens and two special ones, room for 30
        def one(text, *arguments):
            return self.ok("embed", "-m", self.model, "-f", "f32", "-q", *arguments,
                           stdin=text + "\n")[0]
        self.assertEqual(one(long), one("the " * 29 + "cat"))
        self.assertEqual(one(long, "--truncate", "start"), one("the " * 24 + "cat cat cat dog dog dog"))
        fits = "the " * 30
        self.assertEqual(one(fits, "--truncate", "error"), one(fits))

    def test_truncate_error_names_the_line(self):
        data = lines(["a", "b", "", "the cat " * 40, "c", "the dog " * 50])
        self.write("out", "former")
        for more in ([], ["-b", "64"], ["-t", "1"]):
            self.fails(FAILED, "embed", "-m", self.model, "--truncate", "error", *more, "-o",
                       self.path("out"), stdin=data, words=["standard input:4:1: ", "82", "32"])
        self.assertEqual(self.read("out"), b"former")
        self.assert_no_leftovers()

    def test_progress(self):
        text = self.write("p.txt", lines(TEXTS))
        _, err = self.ok("embed", "-m", self.model, "--progress", "json", text)
        last = json.loads([line for line in err.splitlines() if line.startswith("{")][-1])
        self.assertEqual((last["event"], last["texts"]), ("end", len(TEXTS)))
        self.assertEqual(last["bytes"], last["total_bytes"])
        self.assertEqual(set(last), {"event", "texts", "tokens", "bytes", "total_bytes", "seconds"})
        for arguments in (["--progress", "none"], [], ["--progress", "json", "--quiet"],
                          ["--progress", "bar", "--quiet"]):
            _, err = self.ok("embed", "-m", self.model, *arguments, text)
            self.assertNotIn("{", err)
            self.assertNotIn("\x1b", err)


class DamagedWeights(ProgramTest):
    def test_a_vector_that_is_not_finite_is_refused(self):
        """JSON cannot hold NaN, and a ranking by NaN is no ranking."""
        folder = self.path("nan")
        shutil.copytree(self.model, folder)
        path = os.path.join(folder, "model.safetensors")
        with open(path, "r+b") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
            at = header["embeddings.LayerNorm.bias"]["data_offsets"][0]
            file.seek(8 + length + at)
            file.write(struct.pack("<f", float("nan")))
        self.write("out", "former")
        for fmt in ("jsonl", "npy", "f32", "csv"):
            self.fails(FAILED, "embed", "-m", folder, "-f", fmt, "-o", self.path("out"),
                       stdin="a\nb\n", words=["standard input:1:1: ", "not finite"])
        self.assertEqual(self.read("out"), b"former")
        self.fails(FAILED, "similar", "-m", folder, "--query", "a", stdin="b\n",
                   words=["not finite"])


class RealModel(ProgramTest):
    """With all-MiniLM-L6-v2; the build leaves MSTAR_TEST_MODEL empty where there is none."""

    def test_samples(self):
        if not REAL_MODEL:
            return
        samples = os.path.join(os.environ["MSTAR_TEST_SOURCE"], "examples/data/samples.txt")
        out, err = self.ok("embed", "--model", REAL_MODEL, "--format", "npy", samples)
        self.assertEqual(err, "")
        array = np.load(io.BytesIO(out)).astype(np.float64)
        with open(samples, encoding="utf-8") as file:
            count = len(file.readlines())
        self.assertEqual(array.shape, (count, 384))
        # The samples are pairs: each one's nearest neighbour is its partner.
        scores = array @ array.T - 2 * np.eye(count)
        partner = scores.argmax(axis=1)
        self.assertEqual([int(partner[j]) for j in partner], list(range(count)))


if __name__ == "__main__":
    main()
