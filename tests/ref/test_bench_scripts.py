"""The scripts of bench/: what they decide without a clock.

Texts have the token counts of their mix, batches hold every text once and keep their limits, the
structures passed to the library have the sizes that it writes, and results come out as pictures
and tables that parse.
"""
import ctypes
import os
import pathlib
import random
import sys
import xml.etree.ElementTree

BENCH = pathlib.Path(os.environ["MSTAR_TEST_SOURCE"]) / "bench"
sys.path.insert(0, str(BENCH))

import tokenizers  # noqa: E402

import bench_chart  # noqa: E402
import compare_embed  # noqa: E402
import machine_facts  # noqa: E402
import make_texts  # noqa: E402
import peers  # noqa: E402
import results_table  # noqa: E402
import run_bench  # noqa: E402
import run_gpu  # noqa: E402


def check_texts(model):
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = make_texts.single_token_words(model)
    for place, mix in enumerate(make_texts.read_mixes().values()):
        texts = make_texts.make_texts(mix["lens"], words, place)
        assert [len(e.ids) for e in tokenizer.encode_batch(texts)] == mix["lens"], mix["name"]
        assert sum(mix["lens"]) == mix["tokens"], mix["name"]
        assert texts == make_texts.make_texts(mix["lens"], words, place)
        assert texts != make_texts.make_texts(mix["lens"], words, place + 1)


def check_batches():
    draw = random.Random(5)
    for _ in range(200):
        lengths = [draw.randint(1, 256) for _ in range(draw.randint(0, 300))]
        limit = draw.choice([256, 1000, 4096])
        for name in ("default", "sorted", "workers"):
            batches = peers.cut(lengths, {"name": name, "limit": limit})
            assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
            assert all(batches)
            for batch in batches if name != "default" else []:
                own = [lengths[i] for i in batch]
                padded = max(own) * len(own)
                assert padded <= limit
                assert padded - sum(own) <= peers.MAX_PADDING * padded
    assert peers.arrival_batches([1] * 70) == [list(range(32)), list(range(32, 64)),
                                               list(range(64, 70))]
    mix = make_texts.read_mixes()["C6"]["lens"]
    batches = peers.sorted_batches(mix, 1024)
    assert [len(batch) for batch in batches] == [31, 1]  # the long text pads no short one


def check_structures(path):
    """_init writes struct_size, which is the size that the library was compiled with."""
    library = ctypes.CDLL(path)
    for kind, init in ((peers.DeviceDesc, "mstar_device_desc_init"),
                       (peers.EncoderDesc, "mstar_encoder_desc_init")):
        room = ctypes.create_string_buffer(4096)
        getattr(library, init)(room)
        assert kind.from_buffer(room).struct_size == ctypes.sizeof(kind), init


def check_rows():
    rows = [(peer, setting) for peer in peers.PEERS
            for setting in peers.settings(peer, 2, "libmstar.so", [512, 1024])]
    labels = [(peer, peers.label(peer, setting)) for peer, setting in rows]
    assert len(set(labels)) == len(labels)
    for _, setting in rows:
        env = peers.worker_environment(2, setting)
        assert env["OMP_NUM_THREADS"] == ("1" if setting["name"] == "workers" else "2")
        assert env["HF_HUB_OFFLINE"] == "1"
    assert len(peers.settings("onnxruntime", 1, "", [512])) == 2  # one thread has no two workers


def compare_lines():
    line = dict.fromkeys(compare_embed.COLUMNS, "")
    facts = {"machine": "A & B <C>", "isa": "avx2", "threads": "2", "commit": "c", "rounds": "1",
             "date": "d"}
    full = {"peer": "mstar", "setting": "f32", "mix": "C4", "ms_median": "2.5",
            "ratio_to_ours": "1.000", "peak_rss_mb": "90", "min_cosine": "0.9999999",
            "version": "v"}
    missing = {"peer": "onnxruntime", "setting": "default", "mix": "C4", "reason": "not installed"}
    return [line | facts | full, line | facts | missing], facts


def check_results(folder):
    lines, facts = compare_lines()
    picture = compare_embed.draw(lines, facts)
    xml.etree.ElementTree.fromstring(picture)
    assert "not installed" in picture and "2.5 ms" in picture
    table = results_table.compare_tables(lines)
    assert "| 2.5 (1.00) |" in table and "onnxruntime: not installed" in table
    document = {"machine": "m", "isa": "avx2", "threads": 2, "dtype": "f32", "peak_gflops": 200.0}
    attn = [{"name": "W2", "us": 1234.56, "gflops": 120.0, "of_peak": 0.6, "runs": 5},
            {"name": "W6", "skipped": "more work than --max-gflop"}]
    linear = [{"name": "384x384", "rows": n, "us": 5.0, "gflops": 160.0, "of_peak": 0.8, "runs": 5}
              for n in (1, 64)]
    lines = [line for bench, rows in (("attn", attn), ("linear", linear))
             for line in run_bench.flatten(bench, "", document | {"rows": rows}, "c")]
    assert lines[0]["us"] == "1235" and lines[1]["note"]
    xml.etree.ElementTree.fromstring(run_bench.draw(lines))
    path = pathlib.Path(folder) / "bench-scripts.md"
    block = "a\n<!-- results {} -->\nold\n<!-- end of results -->\nb\n"
    csv_path = pathlib.Path(folder) / "bench-scripts.csv"
    with open(csv_path, "w", encoding="utf-8", newline="") as file:
        writer = run_bench.csv.DictWriter(file, run_bench.COLUMNS)
        writer.writeheader()
        writer.writerows(lines)
    path.write_text(block.format(csv_path), encoding="utf-8")
    sys.argv = ["results_table.py", "--write", str(path)]
    results_table.main()
    text = path.read_text(encoding="utf-8")
    assert "60 %" in text and "old" not in text and text.endswith("results -->\nb\n")
    path.unlink()
    csv_path.unlink()


def check_numbers():
    assert [machine_facts.plain(v) for v in (12071.3, 0.0123456, 3.0)] == ["12070", "0.01235", "3"]
    assert machine_facts.slug("Intel(R) Xeon(R) CPU E5 @ 2.2GHz", "avx2") == "intel-xeon-e5-avx2"
    assert bench_chart.shade(-1) == bench_chart.shade(0) != bench_chart.shade(1)


def check_cosine(folder):
    import numpy
    path = pathlib.Path(folder) / "bench-scripts.f32"
    want = numpy.eye(3, 4)
    for vectors, good in ((want, True), (want[::-1], False), (want * numpy.nan, False),
                          (want * 0, False), (want[:2], False)):
        vectors.astype(numpy.float32).tofile(path)
        assert (compare_embed.min_cosine(path, want) == 1.0) == good
    path.unlink()


def check_gpu_picture():
    """A bar for each figure that a row has, each with its number; nothing for one that it lacks."""
    notes, rows = run_gpu.read(BENCH / "results/h200.csv")
    assert len(rows) == 31 and notes[0].startswith("NVIDIA H200")
    root = xml.etree.ElementTree.fromstring(run_gpu.draw(notes, rows))
    texts = [node.text for node in root.iter() if node.text]
    for row in rows:
        assert row["name"] in texts
    figures = sum(bool(row[key]) for row in rows for key, _, _ in run_gpu.KINDS)
    assert sum(text.endswith(" us") for text in texts) == figures == 4 * 31
    few = xml.etree.ElementTree.fromstring(run_gpu.draw(notes, [{"name": "x", "us": "7.5"}]))
    assert [node.text for node in few.iter() if node.text and node.text.endswith(" us")] == ["7.5 us"]


def main():
    folder = os.environ["MSTAR_TEST_BUILD"]
    check_texts(os.environ["MSTAR_TEST_MODEL"])
    check_batches()
    if not os.environ.get("MSTAR_TEST_SANITIZE"):  # its runtime would have to be loaded first
        check_structures(os.environ["MSTAR_TEST_LIBRARY"])
    check_rows()
    check_results(folder)
    check_gpu_picture()
    check_numbers()
    check_cosine(folder)
    print("bench scripts: texts, batches, structures, rows, results, a GPU picture, numbers, cosine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
