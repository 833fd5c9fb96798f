"""Cases K25 of the known faults: tokens against the tokenizers package, and as the cases list them.

"uncased" is the model of MSTAR_TEST_MODEL as it is; "cased" is the same vocabulary, with the cased
texts' own tokens in unused places, and a normalizer that neither lowers case nor strips accents. The
reference for every text is the tokenizers package: what it gives is right here, also where another
library gives something else.
"""
import json
import os
import shutil
import sys
import tempfile

import test_tokenizer as support  # sets the sanitizer's runtime up first

from tokenizers import Tokenizer

SOURCE = os.environ["MSTAR_TEST_SOURCE"]
IDS = ("BR-232", "BR-233", "BR-234", "BR-235", "BR-236")

CASED_TOKENS = ("Il", "\u00e1", "##\u0301")


class Pair:
    """One tokenizer.json under both implementations."""

    def __init__(self, path):
        self.ours = support.Ours(path)
        self.theirs = Tokenizer.from_file(path)
        self.theirs.no_truncation()
        self.theirs.no_padding()
        self.unknown = self.theirs.token_to_id("[UNK]")

    def encode(self, check, text, what):
        got = self.ours.encode(text)
        check.same(got, self.theirs.encode(text), what)
        return got[0]


def write_cased(model, path):
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as file:
        content = json.load(file)
    assert content["normalizer"]["type"] == "BertNormalizer"
    content["normalizer"].update(lowercase=False, strip_accents=False)
    vocab = content["model"]["vocab"]
    for number, token in enumerate(CASED_TOKENS):
        vocab[token] = vocab.pop(f"[unused{number}]")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def run_case(check, pair, case):
    """Each listed text: the reference's ids, the ids of same_as, [UNK] or not as is_unk says."""
    known = {"text", "note", "same_as", "is_unk"}
    for entry in case["trigger"]["cases"]:
        assert set(entry) <= known, (case["id"], entry)
        text = entry["text"]
        what = f"{case['id']} {ascii(text)[:60]}"
        ids = pair.encode(check, text, what)
        if "same_as" in entry:
            check.equal(ids, pair.encode(check, entry["same_as"], what), what)
        if "is_unk" in entry:
            check.equal(pair.unknown in ids, entry["is_unk"], what)


# Beyond the reference, what a case says in prose.

def private_use_is_unknown(check, pair, texts):  # BR-232
    """U+F059 is category Co: the reference drops it as a control character, and "Il" is what is left."""
    ids = pair.encode(check, texts[0], "BR-232")
    check.equal(ids, pair.encode(check, "Il", "BR-232"), "BR-232")
    check.equal(ids[1:-1], [pair.theirs.token_to_id("Il")], "BR-232 without the character")


def capitals_and_punctuation_split(check, pair, texts):  # BR-233
    for text in texts:
        check.equal(pair.unknown in pair.encode(check, text, "BR-233"), False, "BR-233 has no [UNK]")


def limit_counts_code_points(check, pair, texts):  # BR-234
    """The last text has 100 code points in 200 bytes; lower-casing has no word context."""
    check.equal(len(texts[-1]), 100, "BR-234")
    check.equal(len(texts[-1].encode()), 200, "BR-234")
    check.equal(pair.unknown in pair.encode(check, texts[-1], "BR-234"), False, "BR-234 100 code points")
    # the twin at one more
    check.equal(pair.encode(check, texts[-1] + "\u00e9", "BR-234")[1:-1], [pair.unknown], "BR-234 101")


def long_words_of_two_bytes(check, pair, texts):  # BR-235
    check.equal(len(texts[0].encode()), 120, "BR-235")
    check.equal(pair.unknown in pair.encode(check, texts[0], "BR-235"), False, "BR-235")


def both_forms_differ(check, pair, texts):  # BR-236
    """Cased models do not compose: the two forms have different tokens."""
    want = (["\u00e1"], ["a", "##\u0301"])
    for text, tokens in zip(texts, want):
        ids = [pair.theirs.token_to_id(token) for token in tokens]
        check.equal(pair.encode(check, text, "BR-236")[1:-1], ids, "BR-236")


PROSE = dict(zip(IDS, (private_use_is_unknown, capitals_and_punctuation_split,
                       limit_counts_code_points, long_words_of_two_bytes, both_forms_differ)))


def main():
    model = os.environ.get("MSTAR_TEST_MODEL", "")
    if not os.path.exists(os.path.join(model, "tokenizer.json")):
        print("MSTAR_TEST_MODEL has no tokenizer.json: the cases need its vocabulary")
        return 1
    with open(os.path.join(SOURCE, "tests/data/known-faults.json"), encoding="utf-8") as file:
        cases = {case["id"]: case for case in json.load(file)}
    folder = tempfile.mkdtemp(dir=os.environ["MSTAR_TEST_BUILD"])
    good = True
    try:
        path = os.path.join(folder, "tokenizer.json")
        write_cased(model, path)
        pairs = {"uncased": Pair(os.path.join(model, "tokenizer.json")), "cased": Pair(path)}
        for name in IDS:
            check = support.Checker(name)
            case = cases[name]
            assert case["expect"]["outcome"] == "tokens_equal"
            pair = pairs[case["trigger"]["model"]]
            run_case(check, pair, case)
            PROSE[name](check, pair, [entry["text"] for entry in case["trigger"]["cases"]])
            good &= check.finish()
        for pair in pairs.values():
            pair.ours.release()
    finally:
        shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
