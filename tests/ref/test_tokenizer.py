"""Tokenizers against the tokenizers package: ids, type ids, offsets and special flags.

Three parts, all with fixed seeds: every code point there is, in several surroundings; more than
10,000 generated strings through the real model; and generated tokenizers (normalizers,
pre-tokenizers, post-processors, added tokens with every flag) over small vocabularies that hold
every token the strings are made of, so that a difference in the text shows as a difference in ids.
"""
import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

SANITIZE = os.environ.get("MSTAR_TEST_SANITIZE", "")


def preload_sanitizer():
    """A sanitized library needs its runtime in the process before Python starts."""
    if not SANITIZE or os.environ.get("MSTAR_TEST_PRELOADED"):
        return
    name = "libtsan.so" if "thread" in SANITIZE else "libasan.so"
    path = subprocess.check_output(["gcc", "-print-file-name=" + name], text=True).strip()
    environment = dict(os.environ, LD_PRELOAD=path, MSTAR_TEST_PRELOADED="1")
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    os.execve(sys.executable, [sys.executable] + sys.argv, environment)


preload_sanitizer()

from tokenizers import AddedToken, Tokenizer  # noqa: E402
from tokenizers import models, normalizers, pre_tokenizers, processors  # noqa: E402

INT32 = ctypes.POINTER(ctypes.c_int32)


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("bytes", ctypes.c_size_t)]


class Desc(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("add_special_tokens", ctypes.c_int32),
        ("max_tokens", ctypes.c_int64),
        ("truncate", ctypes.c_int),
        ("reserved", ctypes.c_int32),
    ]


class Tokens(ctypes.Structure):
    _fields_ = [
        ("ids", INT32),
        ("type_ids", INT32),
        ("starts", INT32),
        ("ends", INT32),
        ("special", ctypes.POINTER(ctypes.c_int8)),
        ("count", ctypes.c_int64),
        ("untruncated_count", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
    ]


LIBRARY = ctypes.CDLL(os.environ["MSTAR_TEST_LIBRARY"])
LIBRARY.mstar_last_error.restype = ctypes.c_char_p
LIBRARY.mstar_tokenizer_get_token.restype = ctypes.c_char_p
LIBRARY.mstar_tokenizer_get_vocab_size.restype = ctypes.c_int64


class Ours:
    def __init__(self, path):
        self.handle = ctypes.c_void_p()
        status = LIBRARY.mstar_tokenizer_load(path.encode(), ctypes.byref(self.handle))
        if status != 0:
            raise ValueError(LIBRARY.mstar_last_error().decode())
        self.tokens = Tokens()

    def encode(self, text, pair=None, special=True, max_tokens=-1, truncate=0):
        """ids, type ids, offsets, special flags, untruncated count."""
        first = text if isinstance(text, bytes) else text.encode()
        second = pair if pair is None or isinstance(pair, bytes) else pair.encode()
        desc = Desc(ctypes.sizeof(Desc), int(special), max_tokens, truncate, 0)
        status = LIBRARY.mstar_tokenizer_encode(
            self.handle,
            ctypes.byref(desc),
            ctypes.byref(Text(first, len(first))),
            None if second is None else ctypes.byref(Text(second, len(second))),
            ctypes.byref(self.tokens),
        )
        if status != 0:
            raise ValueError(LIBRARY.mstar_last_error().decode())
        out, n = self.tokens, self.tokens.count
        return (
            out.ids[:n],
            out.type_ids[:n],
            list(zip(out.starts[:n], out.ends[:n])),
            out.special[:n],
            out.untruncated_count,
        )

    def release(self):
        LIBRARY.mstar_tokens_release(ctypes.byref(self.tokens))
        LIBRARY.mstar_tokenizer_release(self.handle)


class Checker:
    """Compares encodings, and keeps the first differences to print them."""

    def __init__(self, name):
        self.name, self.checked, self.wrong = name, 0, []

    def same(self, got, encoding, what):
        self.checked += 1
        want = (
            encoding.ids,
            encoding.type_ids,
            encoding.offsets,
            encoding.special_tokens_mask,
        )
        for part, a, b in zip(("ids", "type ids", "offsets", "special"), got, want):
            if a != b:
                self.wrong.append(f"{what}: {part}\n    got  {a[:40]}\n    want {b[:40]}")
                return

    def equal(self, got, want, what):
        self.checked += 1
        if got != want:
            self.wrong.append(f"{what}: got {got!r}, want {want!r}")

    def finish(self):
        print(f"{self.name}: {self.checked} compared, {len(self.wrong)} differ")
        for line in self.wrong[:10]:
            print("  " + line)
        return not self.wrong and self.checked > 0


# ---- strings ------------------------------------------------------------------------------------

# First and last code points of blocks that have something to say to a tokenizer.
BLOCKS = {
    "ascii": [(0x20, 0x7E)],
    "control": [(0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x200B, 0x200F), (0x202A, 0x202E),
                (0x2060, 0x206F), (0xFEFF, 0xFEFF), (0xE0001, 0xE007F), (0x600, 0x605),
                (0x890, 0x891), (0x8E2, 0x8E2), (0x110CD, 0x110CD), (0x13430, 0x1343F)],
    "space": [(0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680),
              (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F),
              (0x3000, 0x3000), (0x180E, 0x180E)],
    "latin": [(0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "ligature": [(0xFB00, 0xFB06), (0x132, 0x133), (0x1C4, 0x1CC), (0xFB13, 0xFB17)],
    "mark": [(0x300, 0x36F), (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0),
             (0xFE20, 0xFE2F), (0x302A, 0x302F), (0x1D165, 0x1D172), (0x898, 0x8FF)],
    "greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "cyrillic": [(0x400, 0x52F)],
    "hebrew arabic": [(0x591, 0x5F4), (0x610, 0x6FF), (0xFB1D, 0xFB4F)],
    "indic": [(0x900, 0xDFF), (0x11000, 0x1107F), (0x11930, 0x11946)],
    "thai tibetan": [(0xE00, 0xFFF)],
    "hangul": [(0x1100, 0x11FF), (0xAC00, 0xD7A3)],
    "kana": [(0x3040, 0x30FF), (0xFF00, 0xFFEF)],
    "ideograph": [(0x3400, 0x3410), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x20020),
                  (0x2A6D0, 0x2A700), (0x2B81E, 0x2B922), (0x2F800, 0x2FA1F), (0x2EBF0, 0x2EBF4)],
    "punctuation": [(0x2010, 0x205E), (0x2E00, 0x2E5D), (0x3001, 0x3030), (0xA1, 0xBF),
                    (0x166D, 0x166E), (0x111C5, 0x111CD), (0x1144B, 0x1145D)],
    "symbol": [(0x2100, 0x23FF), (0x2460, 0x24FF), (0x3200, 0x33FF), (0x1F100, 0x1F1FF)],
    "emoji": [(0x1F300, 0x1F64F), (0x1F900, 0x1F9FF), (0x200D, 0x200D), (0xFE0F, 0xFE0F),
              (0x1F3FB, 0x1F3FF)],
    "private": [(0xE000, 0xE0FF), (0xF0000, 0xF00FF), (0x10FFF0, 0x10FFFF)],
    "unassigned": [(0x378, 0x379), (0x2FE0, 0x2FEF), (0x1FA70, 0x1FAFF), (0x323B0, 0x323F0),
                   (0xFFF0, 0xFFFF), (0x1FFFE, 0x1FFFF)],
    "new case": [(0x1C80, 0x1CBF), (0xA7C0, 0xA7DC), (0x10D50, 0x10D85), (0x16EA0, 0x16ED8),
                 (0x10400, 0x1044F), (0x1E900, 0x1E943)],
}
SPECIAL_LIKE = ["[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[CLS ]", "[ MASK]", "[mask]", "[MASK",
                "MASK]", "[[SEP]]", "[SEP][SEP]", "[SEP\u0301]", "[C\u0000LS]", "[unused1]", "##ing", "##"]
PIECES = ["İstanbul", "STRASSE", "straße", "ẞ", "ΟΔΟΣ", "ΣΑΣ ΣΣ", "ﬁne", "naïve", "cafe\u0301", "Å",
          "\u212b", "\u1e9b\u0323", "e\u0301\u0323", "\u0344", "\u0f73\u0f75\u0f81", "\u0958", "각", "\u1100\u1161\u11a8",
          "don't", "U.S.A.", "3.14", "1,000", "x²", "a_b", "C++", "👩‍👩‍👧‍👦", "🇩🇪", "☺️", "\ufffd", "\x00", "\ufeff",
          "\u00ad", "\u200b", "\r\n", "中文字", "日本語テスト", "한국어", "ไทย", "हिन्दी", "ﷺ", "㍿", "①", "\ud7ff", "\ue000"]


class Strings:
    def __init__(self, seed, words):
        self.random, self.words = random.Random(seed), words
        self.blocks = list(BLOCKS.values())

    def code_point(self, ranges):
        while True:
            low, high = self.random.choice(ranges)
            code = self.random.randint(low, high)
            if not 0xD800 <= code <= 0xDFFF:
                return chr(code)

    def piece(self):
        r = self.random
        kind = r.random()
        if kind < 0.30:
            word = r.choice(self.words)
            word = r.choice([word, word.upper(), word.capitalize(), word.swapcase()])
            return word + r.choice(["", " ", " ", ", ", "\u0301", "'s"])
        if kind < 0.70:
            ranges = r.choice(self.blocks)
            return "".join(self.code_point(ranges) for _ in range(r.randint(1, 8)))
        if kind < 0.78:
            return r.choice(SPECIAL_LIKE)
        if kind < 0.88:
            return r.choice(PIECES)
        if kind < 0.93:
            return self.code_point([(0, 0x10FFFF)])
        if kind < 0.96:
            return self.code_point(BLOCKS["space"]) * r.randint(1, 3)
        if kind < 0.98:
            return r.choice(self.words) * r.randint(10, 40)
        return self.code_point(r.choice(self.blocks)) * r.randint(95, 105)

    def text(self):
        r = self.random
        return "".join(self.piece() for _ in range(r.choice([0, 1, 1, 2, 3, 5, 8, 13, 30])))


# ---- part 1: every code point --------------------------------------------------------------------


PLANES = [(0, 0x32400), (0xE0000, 0xE0200)]


def check_code_points(ours, theirs, name, everything):
    """In a word, alone, under a mark, over one; 64 at a time, and singly where those differ. What
    lies outside PLANES is not assigned or private: whether it stays, goes or splits is all."""
    check = Checker("every code point, " + name)
    planes = [(0, 0x110000)] if everything else PLANES
    for low in (at for first, end in planes for at in range(first, end, 64)):
        codes = [chr(c) for c in range(low, low + 64) if not 0xD800 <= c <= 0xDFFF]
        inside = any(first <= low < end for first, end in PLANES)
        texts = [f"a{c}b {c}\u0301 o\u0345{c}\u0334" if inside else f"a{c}b " for c in codes]
        got, want = ours.encode("".join(texts)), theirs.encode("".join(texts))
        if got[0] == want.ids and got[2] == want.offsets:
            check.checked += len(codes)
            continue
        for c, text in zip(codes, texts):
            check.same(ours.encode(text), theirs.encode(text), ascii(c))
    check.equal(check.checked, sum(end - low for low, end in planes) - 0x800, "number of code points")
    return check.finish()


def code_point_vocab():
    """Every code point that may be assigned is a piece, so that no difference hides in [UNK]."""
    vocab = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
    for low, end in PLANES:
        for code in range(low, end):
            if code and not 0xD800 <= code <= 0xDFFF:
                vocab[chr(code)] = len(vocab)
                vocab["##" + chr(code)] = len(vocab)
    return vocab


def save(folder, name, tokenizer):
    path = os.path.join(folder, name + ".json")
    tokenizer.save(path)
    return path


# ---- part 2: the real model ----------------------------------------------------------------------


def check_model(folder):
    path = os.path.join(folder, "tokenizer.json")
    theirs = Tokenizer.from_file(path)
    theirs.no_padding()
    theirs.no_truncation()
    ours = Ours(folder)
    vocab = theirs.get_vocab()
    strings = Strings(1, [w for w in sorted(vocab) if w.isalpha()])
    texts = [strings.text() for _ in range(10000)] + SPECIAL_LIKE + PIECES + ["", " ", "\x00"]
    check = Checker("all-MiniLM-L6-v2")
    for text in texts:
        check.same(ours.encode(text), theirs.encode(text), ascii(text)[:200])
    for i in range(1000):
        a, b = texts[i], texts[i + 1000]
        check.same(ours.encode(a, b), theirs.encode(a, b), ascii((a, b))[:200])
        check.same(ours.encode(a, b, special=False),
                   theirs.encode(a, b, add_special_tokens=False), ascii((a, b))[:200])
    check.equal(LIBRARY.mstar_tokenizer_get_vocab_size(ours.handle), max(vocab.values()) + 1, "size")
    for word, number in vocab.items():
        check.equal(LIBRARY.mstar_tokenizer_get_token(ours.handle, number), word.encode(), number)
        check.equal(LIBRARY.mstar_tokenizer_get_id(ours.handle, word.encode()), number, word)
    for limit in (2, 3, 4, 5, 8, 17, 128):
        for truncate, side in ((0, "right"), (1, "left")):
            theirs.enable_truncation(limit, direction=side)
            for i in range(200):
                check.same(ours.encode(texts[i], max_tokens=limit, truncate=truncate),
                           theirs.encode(texts[i]), f"{limit} {side} {ascii(texts[i])[:160]}")
                if limit < 3:
                    continue
                a, b = texts[i], texts[i + 7]
                got = ours.encode(a, b, max_tokens=limit, truncate=truncate)
                check.same(got, theirs.encode(a, b), f"{limit} {side} {ascii((a, b))[:160]}")
    theirs.no_truncation()
    for i in range(200):
        whole = len(theirs.encode(texts[i]).ids)
        check.equal(ours.encode(texts[i], max_tokens=2)[4], whole, "untruncated count")
    # vocab.txt says the same as tokenizer.json
    with tempfile.TemporaryDirectory(dir=os.environ["MSTAR_TEST_BUILD"]) as copy:
        for name in ("vocab.txt", "tokenizer_config.json"):
            shutil.copy(os.path.join(folder, name), copy)
        older = Ours(copy)
        for text in texts[:2000]:
            check.same(older.encode(text), theirs.encode(text), "vocab.txt " + ascii(text)[:200])
        older.release()
    # bytes that are not UTF-8
    mixer = random.Random(2)
    bad = [b"\xff", b"a\x80b", b"\xe4\xb8", b"\xed\xa0\x80x", b"\xf0\x90\x80A", b"\xc0\xaf", b"\xf4\x90\x80\x80"]
    for i in range(2000):
        data = bytearray(texts[i].encode()[:60] if i % 2 else mixer.choice(bad) + b" the \xe2\x82")
        for _ in range(mixer.randint(1, 6)):
            data.insert(mixer.randint(0, len(data)), mixer.randint(0x80, 0xFF))
        data = bytes(data)
        check.same(ours.encode(data), theirs.encode(data.decode(errors="replace")), repr(data))
    ours.release()
    return check.finish()


# ---- part 3: generated tokenizers ----------------------------------------------------------------


def random_normalizer(r):
    def one():
        flags = [r.random() < 0.7 for _ in range(4)]
        return r.choice([
            lambda: normalizers.BertNormalizer(flags[0], flags[1], r.choice([None, True, False]), flags[3]),
            lambda: normalizers.BertNormalizer(flags[0], flags[1], r.choice([None, True, False]), flags[3]),
            normalizers.Lowercase, normalizers.StripAccents, normalizers.NFC, normalizers.NFD,
            normalizers.NFKC, normalizers.NFKD])()
    kind = r.random()
    if kind < 0.1:
        return None
    return one() if kind < 0.6 else normalizers.Sequence([one() for _ in range(r.randint(0, 4))])


def random_pre_tokenizer(r):
    def one():
        return r.choice([pre_tokenizers.BertPreTokenizer, pre_tokenizers.Whitespace,
                         pre_tokenizers.WhitespaceSplit, pre_tokenizers.Punctuation])()
    kind = r.random()
    if kind < 0.1:
        return None
    return one() if kind < 0.6 else pre_tokenizers.Sequence([one() for _ in range(r.randint(0, 3))])


def random_processor(r):
    a, b = r.randint(0, 2), r.randint(0, 2)
    return r.choice([
        lambda: None,
        lambda: processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
        lambda: processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1), trim_offsets=r.random() < 0.7,
                                             add_prefix_space=r.random() < 0.5),
        lambda: processors.TemplateProcessing(
            single=f"[CLS]:{b} $A:{a} [SEP]:{a}", pair=f"$B:{b} [SEP]:{b} [CLS] $A:{a}",
            special_tokens=[("[CLS]", 1), ("[SEP]", 2)]),
        lambda: processors.TemplateProcessing(single="$A [SEP]", pair="$A:1 $B:2",
                                              special_tokens=[("[SEP]", 2)]),
    ])()


def random_added(r, strings, normalizer):
    """No two that normalise to one pattern: which of them wins, the package leaves to chance."""
    contents = ["[MASK]", "[CLS]", "[SEP]", "the", " q", "Foo", "foo ", "É", "e\u0301", "ab", "abc", "b",
                "\u00a0x", "中", "x\u0301y", r.choice(strings.words)]
    tokens, seen = [], set()
    for content in r.sample(contents, r.randint(0, 8)):
        token = AddedToken(content, single_word=r.random() < 0.3, lstrip=r.random() < 0.4,
                           rstrip=r.random() < 0.4, normalized=r.random() < 0.5,
                           special=r.random() < 0.3)
        pattern = content
        if token.normalized and normalizer is not None:
            pattern = normalizer.normalize_str(content)
        if (token.normalized, pattern) not in seen:
            tokens.append(token)
        seen.add((token.normalized, pattern))
    return tokens


def small_vocab(r, texts):
    """Every code point of the texts and of all their normal forms, alone and continuing; and some
    longer pieces of the texts."""
    letters = set("abcdefghijklmnopqrstuvwxyz0123456789")
    nfkd, lower = normalizers.NFKD(), normalizers.Lowercase()
    nfkc, nfd, nfc = normalizers.NFKC(), normalizers.NFD(), normalizers.NFC()
    for text in texts:
        for form in (text, nfkd.normalize_str(text), nfkc.normalize_str(text),
                     nfd.normalize_str(text), nfc.normalize_str(text)):
            letters.update(form, lower.normalize_str(form))
    letters.discard("\x00")
    pieces = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
    for letter in sorted(letters):
        if r.random() < 0.95:
            pieces.setdefault(letter, len(pieces))
            pieces.setdefault("##" + letter, len(pieces))
    for text in texts:
        for word in lower.normalize_str(text).split()[:3]:
            start = r.randint(0, len(word) - 1)
            piece = word[start:start + r.randint(1, 5)].replace("\x00", "")
            if piece:
                pieces.setdefault(("##" if start else "") + piece, len(pieces))
    return pieces


def check_generated(folder, count):
    check = Checker("generated tokenizers")
    refused = 0
    for seed in range(count):
        r = random.Random(1000 + seed)
        strings = Strings(seed, ["the", "foo", "Foo", "abc", "quick", "é", "Été", "ab", "q", "Ġx"])
        texts = [strings.text()[:400] for _ in range(30)] + r.sample(PIECES, 5)
        texts += ["the  Foo\u00a0x q abc foo the.", "xthe the_ \u3000the\u3000 [MASK] a[SEP]É e\u0301 ab abcb"]
        vocab = small_vocab(r, texts)
        prefix = "##" if r.random() < 0.9 else ""
        theirs = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=prefix,
                                            max_input_chars_per_word=r.choice([100, 100, 5, 1000])))
        normalizer, splitter = random_normalizer(r), random_pre_tokenizer(r)
        processor = random_processor(r)
        if normalizer is not None:
            theirs.normalizer = normalizer
        if splitter is not None:
            theirs.pre_tokenizer = splitter
        if processor is not None:
            theirs.post_processor = processor
        theirs.add_tokens(random_added(r, strings, normalizer))
        path = save(folder, f"generated{seed}", theirs)
        try:
            ours = Ours(path)
        except ValueError as error:
            # a pattern that normalises to nothing makes the package match everywhere
            check.equal("is empty once normalised" in str(error), True, str(error))
            refused += 1
            continue
        theirs = Tokenizer.from_file(path)
        description = f"seed {seed} {normalizer} {splitter}"
        for text in texts:
            check.same(ours.encode(text), theirs.encode(text), f"{description} {ascii(text)[:160]}")
        for a, b in zip(texts, texts[1:]):
            check.same(ours.encode(a, b), theirs.encode(a, b), f"{description} {ascii((a, b))[:160]}")
            check.same(ours.encode(a, b, special=False), theirs.encode(a, b, add_special_tokens=False),
                       f"{description} {ascii((a, b))[:160]}")
        theirs.enable_truncation(9, direction="left")
        for a, b in zip(texts, texts[1:]):
            check.same(ours.encode(a, b, max_tokens=9, truncate=1), theirs.encode(a, b),
                       f"{description} left 9 {ascii((a, b))[:160]}")
        ours.release()
        os.remove(path)
    check.equal(refused < count // 10, True, f"{refused} of {count} refused")
    return check.finish()


FORMS = [
    ("BERT uncased", normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    ("BERT cased", normalizers.BertNormalizer(True, True, False, False), pre_tokenizers.Whitespace()),
    ("NFKD", normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]),
     pre_tokenizers.WhitespaceSplit()),
    ("NFKC", normalizers.NFKC(), pre_tokenizers.WhitespaceSplit()),
]


def check_every_code_point(folder):
    theirs = Tokenizer(models.WordPiece(code_point_vocab(), unk_token="[UNK]"))
    saved = json.loads(theirs.to_str())
    good = True
    for name, normalizer, splitter in FORMS[:1] if SANITIZE else FORMS:
        theirs.normalizer, theirs.pre_tokenizer = normalizer, splitter
        saved["normalizer"] = json.loads(normalizer.__getstate__())
        saved["pre_tokenizer"] = json.loads(splitter.__getstate__())
        path = os.path.join(folder, "codes.json")
        with open(path, "w") as file:
            file.write(json.dumps(saved))
        ours = Ours(path)
        good &= check_code_points(ours, theirs, name, name == FORMS[0][0])
        ours.release()
    return good


def main():
    folder = tempfile.mkdtemp(dir=os.environ["MSTAR_TEST_BUILD"])
    try:
        good = check_every_code_point(folder)
        good &= check_model(os.environ["MSTAR_TEST_MODEL"])
        good &= check_generated(folder, 30 if SANITIZE else 100)
    finally:
        shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
