"""mstar similar against the same ranking in numpy."""
import json
import re

import numpy as np

from cli_support import FAILED, NO_INPUT, ProgramTest, main

WORDS = "the a cat dog sun moon rain river bread sleep runs shines old new hello world".split()


class Similar(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rng = np.random.default_rng(5)
        cls.texts = [" ".join(rng.choice(WORDS, rng.integers(1, 7))) for _ in range(120)]
        cls.texts[40] = cls.texts[90] = cls.texts[17]  # ties, to be printed in the order of lines
        cls.texts[60] = ""

    def setUp(self):
        self.file = self.write("lines.txt", "".join(text + "\n" for text in self.texts))

    def embed(self, texts, *arguments):
        out, _ = self.ok("embed", "-qm", self.model, "-f", "f32", *arguments,
                         stdin="".join(text + "\n" for text in texts))
        return np.frombuffer(out, "<f4").reshape(len(texts), self.dims).astype(np.float64)

    @staticmethod
    def cosine(a, b):
        """One pair at a time: equal vectors then give equal scores, whatever their rows."""
        return min(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)), 1.0)

    def similar(self, *arguments, **more):
        return json.loads(self.ok("similar", "-qm", self.model, "--json", *arguments, **more)[0])

    # The program's score is one f32 rounding away from a double sum of `dims` products; so is ours.
    @property
    def tolerance(self):
        return 2.0 ** -24 + 4 * self.dims * 2.0 ** -53

    def check(self, rows, want):
        """rows as printed against want, [(score, key), ...] in the order expected."""
        self.assertEqual(len(rows), len(want))
        for rank, (row, (score, _)) in enumerate(zip(rows, want), 1):
            self.assertEqual(row["rank"], rank)
            self.assertTrue(abs(row["score"] - score) <= self.tolerance, (row, score))

    def test_query_ranks_as_numpy(self):
        for query, prompt in (("the cat runs", []), ("rain", ["--prompt-name", "query"]),
                              ("no such word", ["--dtype", "bf16"]), ("", [])):
            lines = self.embed(self.texts, *prompt)
            vector = self.embed([query], *prompt)[0]
            order = sorted((-self.cosine(vector, line), i) for i, line in enumerate(lines)
                           if self.texts[i])
            for top in (1, 7, 10000):
                document = self.similar("--query", query, "--top", top, *prompt, self.file)
                rows = document["results"]
                self.check(rows, [(-s, i) for s, i in order[:top]])
                self.assertEqual([row["line"] for row in rows], [i + 1 for _, i in order[:top]])
                self.assertEqual([row["text"] for row in rows],
                                 [self.texts[i] for _, i in order[:top]])
            self.assertEqual((document["query"], document["model"], document["texts"]),
                             (query, self.model, len(self.texts)))

    def test_the_query_may_have_a_prompt_of_its_own(self):
        lines = self.embed(self.texts, "--prompt-name", "passage")
        vector = self.embed(["the cat"], "--prompt-name", "query")[0]
        score = [self.cosine(vector, line) for line in lines]
        best = max(range(len(score)), key=lambda i: (score[i], -i))
        row = self.similar("--query", "the cat", "--query-prompt-name", "query", "--prompt-name",
                           "passage", "--top", 1, self.file)["results"][0]
        self.assertEqual(row["line"], best + 1)
        self.assertTrue(abs(row["score"] - score[best]) <= self.tolerance)

    def test_pairs_rank_as_numpy(self):
        lines = self.embed(self.texts)
        order = sorted((-self.cosine(lines[a], lines[b]), a, b) for a in range(len(lines))
                       for b in range(a + 1, len(lines)) if self.texts[a] and self.texts[b])
        for top in (1, 5, 10000):
            rows = self.similar("--pairs", "--top", top, self.file)["pairs"]
            self.check(rows, [(-s, None) for s, _, _ in order[:top]])
            self.assertEqual([row["lines"] for row in rows],
                             [[a + 1, b + 1] for _, a, b in order[:top]])
        equal = [row["lines"] for row in rows if row["score"] == 1.0]
        self.assertLessEqual({(18, 41), (18, 91), (41, 91)}, set(map(tuple, equal)))
        self.assertEqual(equal, sorted(equal))
        for row in rows:
            self.assertEqual(row["texts"], [self.texts[line - 1] for line in row["lines"]])

    def test_text_says_the_same_as_json(self):
        rows = self.similar("--query", "the cat", "--top", 4, self.file)["results"]
        out, _ = self.ok("similar", "-qm", self.model, "--query", "the cat", "--top", 4, self.file)
        want = "".join(f"{row['score']:7.4f}  {row['line']:6d}  {row['text']}\n" for row in rows)
        self.assertEqual(out.decode(), want)
        pairs = self.similar("--pairs", "--top", 3, self.file)["pairs"]
        out, _ = self.ok("similar", "-qm", self.model, "--pairs", "--top", 3, self.file)
        found = re.findall(r"^ *(-?\d\.\d{4}) +(\d+)  (.*)\n +(\d+)  (.*)$", out.decode(), re.M)
        self.assertEqual(found, [(f"{p['score']:.4f}", str(p["lines"][0]), p["texts"][0],
                                  str(p["lines"][1]), p["texts"][1]) for p in pairs])

    def test_inputs(self):
        want = self.similar("--query", "the cat", self.file)
        with open(self.file, encoding="utf-8") as file:
            data = file.read()
        self.assertEqual(self.similar("--query", "the cat", stdin=data), want)
        objects = "".join(json.dumps({"text": text}) + "\n" for text in self.texts)
        self.assertEqual(self.similar("--query", "the cat", "-i", "jsonl", "-", stdin=objects),
                         want)
        self.assertEqual(self.similar("--query", "the cat", "-t", "2", "-b", "64", self.file), want)
        self.ok("similar", "-qm", self.model, "--query", "the cat", "--json", "-o",
                self.path("out"), self.file)
        self.assertEqual(json.loads(self.read("out")), want)
        self.assertEqual(self.similar("--query", "a", stdin="")["results"], [])
        self.assertEqual(self.similar("--pairs", stdin="one line\n")["pairs"], [])

    def test_texts_cannot_move_the_cursor(self):
        bad = b"the \x1b[2Jcat\x07 \xc2\x9b1m \xff\n"
        out, _ = self.ok("similar", "-qm", self.model, "--query", "a", stdin=bad)
        self.assertEqual(out.decode()[17:], "the ?[2Jcat? ?1m \ufffd\n")
        row = self.similar("--query", "a", stdin=bad)["results"][0]  # JSON keeps them, escaped
        self.assertEqual(row["text"], "the \x1b[2Jcat\x07 \u009b1m \ufffd")

    def test_pairs_are_bounded(self):
        self.fails(FAILED, "similar", "-m", self.model, "--pairs", stdin="a\n" * 50001,
                   words=["50000"])

    def test_failures(self):
        self.fails(NO_INPUT, "similar", "-m", self.model, "--query", "a", self.path("nothing"))
        self.fails(FAILED, "similar", "-m", self.model, "--query", "a " * 50, "--truncate", "error",
                   self.file, words=["--query", "52", "32"])
        self.fails(FAILED, "similar", "-m", self.model, "--query", "a", "-i", "jsonl",
                   stdin='{"text":"a"}\n{\n', words=["standard input:2:"])


if __name__ == "__main__":
    main()
