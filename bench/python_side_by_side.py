#!/usr/bin/env python3
"""The package's calls beside those that a Python user would else make, in one process on the CPU.

    python bench/python_side_by_side.py --model build/models/all-MiniLM-L6-v2

mstarc.Embedder.encode beside sentence-transformers', on mixes of bench/problems/text-mixes.json, and
RaggedPrefillWrapper.run beside torch's scaled_dot_product_attention, called for each segment or once on
padded copies. Needs the package, numpy, torch and sentence-transformers. Calls take turns; prints a
Markdown table of medians in milliseconds, and how far the results are apart.
"""
import argparse
import os
import statistics
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from make_texts import make_texts, read_mixes, single_token_words  # noqa: E402

import mstarc  # noqa: E402
from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper  # noqa: E402

HEADS, KV_HEADS, DIM = 8, 2, 64
LENGTHS = [5, 512, 33, 128, 7, 260, 64, 1]


def medians_ms(calls, repeats):
    """Of calls that take turns, after one of each."""
    took = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, times in zip(calls, took):
            begin = time.perf_counter_ns()
            call()
            if turn > 0:
                times.append((time.perf_counter_ns() - begin) / 1e6)
    return [statistics.median(times) for times in took]


def row(what, theirs, ours, apart):
    print(f"| {what} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.1f} | {apart:.1e} |")


def compare_encoders(model, mixes, repeats):
    from sentence_transformers import SentenceTransformer
    theirs, ours = SentenceTransformer(model, device="cpu"), mstarc.Embedder(model)
    words, known = single_token_words(model), read_mixes()
    for name in mixes:
        texts = make_texts(known[name]["lens"], words, 1)
        their_call = lambda: theirs.encode(texts, normalize_embeddings=True)  # noqa: E731
        our_call = lambda: ours.encode(texts)  # noqa: E731
        apart = np.abs(their_call() - our_call()).max()
        row(f"encode {known[name]['what']}, beside sentence-transformers",
            *medians_ms([their_call, our_call], repeats), apart)


def compare_attention(dtype, repeats):
    offsets = [0, *np.cumsum(LENGTHS).tolist()]
    torch.manual_seed(0)
    q, k, v = (torch.randn(offsets[-1], heads, DIM).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
    wrapper = RaggedPrefillWrapper(HEADS, KV_HEADS, DIM, device="cpu", q_data_type=dtype)
    attend = torch.nn.functional.scaled_dot_product_attention
    parts = [slice(begin, end) for begin, end in zip(offsets, offsets[1:])]

    def ours():
        wrapper.plan(offsets)
        return wrapper.run(q, k, v)

    def each():
        return torch.cat([attend(*(x[part].transpose(0, 1)[None] for x in (q, k, v)), enable_gqa=True)[0]
                          .transpose(0, 1) for part in parts])

    def padded():
        mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
        rows = [torch.nn.utils.rnn.pad_sequence(x.split(LENGTHS), batch_first=True).transpose(1, 2)
                for x in (q, k, v)]
        return attend(*rows, attn_mask=mask[:, None, None], enable_gqa=True).transpose(1, 2)[mask]

    took = medians_ms([each, padded, ours], repeats)
    for name, call, theirs in (("a call a segment", each, took[0]), ("padded", padded, took[1])):
        apart = (call().float() - ours().float()).abs().max()
        row(f"attention of {len(LENGTHS)} segments in {str(dtype).removeprefix('torch.')}, beside torch's, {name}",
            theirs, took[2], float(apart))


def main():
    parser = argparse.ArgumentParser(description="the package beside other packages of Python")
    parser.add_argument("--model", default="build/models/all-MiniLM-L6-v2", help="folder of the encoder")
    parser.add_argument("--mixes", nargs="*", default=["C4", "C6", "C2"], help="of texts")
    parser.add_argument("--repeats", type=int, default=7, help="calls of each (default 7)")
    given = parser.parse_args()
    print("| what | theirs, ms | ours, ms | times as fast | apart |\n|---|---|---|---|---|")
    with torch.inference_mode():
        compare_encoders(given.model, given.mixes, given.repeats)
        for dtype in (torch.float32, torch.bfloat16):
            compare_attention(dtype, given.repeats * 5)


if __name__ == "__main__":
    main()
