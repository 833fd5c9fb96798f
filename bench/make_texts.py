#!/usr/bin/env python3
"""Texts with exact token counts, for the mixes of bench/problems/text-mixes.json.

A text of n tokens is n - 2 words drawn with a fixed seed from the words that are one token each,
between [CLS] and [SEP]. Which word is drawn does not matter to the time of a forward pass, its
length in letters does to the time of tokenising, so words are drawn from the whole vocabulary.
Standard library only; the same seed gives the same texts on every machine.

    python3 bench/make_texts.py --model build/models/all-MiniLM-L6-v2 --out build/bench/texts
"""
import argparse
import json
import pathlib
import random
import re

HERE = pathlib.Path(__file__).resolve().parent
MIXES = HERE / "problems" / "text-mixes.json"
SPECIAL_TOKENS = 2  # [CLS] and [SEP]
SEED = 20260


def read_mixes(path=MIXES):
    """name -> {"what": ..., "tokens": ..., "lens": [...]}"""
    return {mix["name"]: mix for mix in json.loads(pathlib.Path(path).read_text(encoding="utf-8"))}


def single_token_words(model):
    """Words of plain lower-case letters that the vocabulary holds whole: WordPiece takes the
    longest match first, so each is one token."""
    with open(pathlib.Path(model) / "vocab.txt", encoding="utf-8") as file:
        words = [line.rstrip("\n") for line in file]
    return [word for word in words if re.fullmatch(r"[a-z]{3,}", word)]


def make_texts(lens, words, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choice(words) for _ in range(n - SPECIAL_TOKENS)) for n in lens]


def write_texts(model, folder, names=None):
    """Writes one file a mix, one text a line; returns name -> path."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    words = single_token_words(model)
    paths = {}
    for place, (name, mix) in enumerate(read_mixes().items()):
        if names is not None and name not in names:
            continue
        texts = make_texts(mix["lens"], words, SEED + place)
        paths[name] = folder / f"{name}.txt"
        paths[name].write_text("\n".join(texts) + "\n", encoding="utf-8")
    return paths


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="build/models/all-MiniLM-L6-v2")
    parser.add_argument("--out", default="build/bench/texts")
    parser.add_argument("--mixes", help="names with commas; default: all")
    given = parser.parse_args()
    names = given.mixes.split(",") if given.mixes else None
    for name, path in write_texts(given.model, given.out, names).items():
        print(f"{name}  {path}")


if __name__ == "__main__":
    main()
