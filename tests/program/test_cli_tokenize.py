"""mstar tokenize against the tokenizers package, on the tiny model and on all-MiniLM-L6-v2."""
import json
import os

import numpy as np
from tokenizers import Tokenizer

from cli_support import FAILED, REAL_MODEL, USAGE, ProgramTest, jsonl, main, make_vocabulary

TEXTS = ["Hello, world", "", "the cat's bread-river", "  blanks \t everywhere  ",
         "caf\u00e9 na\u00efve \u00dcber", "\u65e5\u672c\u8a9e text", "emoji \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467",
         "[CLS] look [SEP] alikes [MASK]", "x" * 150, "a\u0301\u0327 marks", "tab\tand \u00a0 blank",
         "\u202eright to left", "1234567890 !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "the " * 300]


class Tokenize(ProgramTest):
    def oracle(self, folder=None):
        tokenizer = Tokenizer.from_file(os.path.join(folder or self.model, "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def tokenize(self, texts, *arguments, folder=None):
        data = "".join(json.dumps({"text": t}) + "\n" for t in texts)
        out, _ = self.ok("tokenize", "-m", folder or self.model, "-i", "jsonl", "-q", *arguments,
                         stdin=data)
        return out

    def compare(self, folder=None):
        tokenizer = self.oracle(folder)
        for special in (True, False):
            rows = jsonl(self.tokenize(TEXTS, *([] if special else ["--no-special"]),
                                       folder=folder))
            self.assertEqual(len(rows), len(TEXTS))
            for i, (row, text) in enumerate(zip(rows, TEXTS)):
                want = tokenizer.encode(text, add_special_tokens=special)
                self.assertEqual(set(row), {"index", "truncated", "ids", "tokens", "offsets"})
                self.assertEqual((row["index"], row["truncated"]), (i, False))
                self.assertEqual(row["ids"], want.ids, text)
                self.assertEqual(row["tokens"], want.tokens, text)
                self.assertEqual([tuple(pair) for pair in row["offsets"]], want.offsets, text)

    def test_tiny_model(self):
        self.compare()

    def test_real_model(self):
        if REAL_MODEL:
            self.compare(REAL_MODEL)

    def test_formats_agree(self):
        rows = jsonl(self.tokenize(TEXTS))
        ids = self.tokenize(TEXTS, "--format", "ids").decode().split("\n")
        self.assertEqual(ids.pop(), "")
        self.assertEqual([[int(i) for i in line.split()] for line in ids],
                         [row["ids"] for row in rows])
        tokens = self.tokenize(TEXTS, "--format", "tokens").decode().split("\n")
        self.assertEqual(tokens.pop(), "")
        self.assertEqual([line.split(" ") for line in tokens], [row["tokens"] for row in rows])

    def test_truncation(self):
        tokenizer = self.oracle()
        for limit in (2, 3, 7, 100):
            for side in ("end", "start"):
                tokenizer.enable_truncation(limit, direction="right" if side == "end" else "left")
                rows = jsonl(self.tokenize(TEXTS, "--max-tokens", limit, "--truncate", side))
                for row, text in zip(rows, TEXTS):
                    self.assertEqual(row["ids"], tokenizer.encode(text).ids, (limit, side, text))
                    self.assertLessEqual(len(row["ids"]), limit)
                self.assertTrue(any(row["truncated"] for row in rows))
        out, err = self.ok("tokenize", "-m", self.model, "--max-tokens", 4,
                           stdin="a b c d\na\n\na b c\n")
        self.assertEqual([row["truncated"] for row in jsonl(out)], [True, False, False, True])
        self.assertIn("2 of 4 texts were cut to 4 tokens, the first in line 1", err)
        self.assertIn("1 of 4 texts are empty, the first in line 3", err)

    def test_truncate_error_names_the_line(self):
        arguments = ["tokenize", "-m", self.model, "--max-tokens", 4, "--truncate", "error", "-o",
                     self.path("out")]
        self.write("out", "former")
        self.fails(FAILED, *arguments, stdin="a\nb\n\na b c d e\n",
                   words=["standard input:4:1: ", "7", "4"])
        self.assertEqual(self.read("out"), b"former")
        self.ok(*arguments, stdin="a b\n")

    def test_a_limit_without_room(self):
        self.fails(USAGE, "tokenize", "-m", self.model, "--max-tokens", 1, stdin="a\n",
                   words=["--max-tokens is 1", "2"])
        out, _ = self.ok("tokenize", "-m", self.model, "--max-tokens", 1, "--no-special", "-f",
                         "tokens", stdin="the cat\n")
        self.assertEqual(out, b"the\n")

    def test_ids_of_objects_are_repeated(self):
        out, _ = self.ok("tokenize", "-m", self.model, "-i", "jsonl",
                         stdin='{"id":"x","text":"a"}\n{"text":"b"}\n')
        self.assertEqual([row.get("id") for row in jsonl(out)], ["x", None])

    def test_files_instead_of_a_folder(self):
        want, _ = self.ok("tokenize", "-m", self.model, stdin="the cat\n")
        out, _ = self.ok("tokenize", "-m", os.path.join(self.model, "tokenizer.json"),
                         stdin="the cat\n")
        self.assertEqual(out, want)
        self.write("vocab.txt", "\n".join(make_vocabulary()) + "\n")
        out, _ = self.ok("tokenize", "-m", self.path("vocab.txt"), stdin="the cat\n")
        self.assertEqual(out, want)

    def test_many_texts(self):
        rng = np.random.default_rng(11)
        texts = ["".join(rng.choice(list("abc XY.\u00e9\u4e2d"), rng.integers(0, 30)))
                 for _ in range(3000)]
        tokenizer = self.oracle()
        rows = jsonl(self.tokenize(texts))
        self.assertEqual([row["ids"] for row in rows],
                         [e.ids for e in tokenizer.encode_batch(texts)])


if __name__ == "__main__":
    main()
