"""mstarc.Embedder: the shape of the call, and the program's own bytes."""
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import mstarc

TEXTS = ["The cat sleeps on the sofa", "A kitten naps on a couch", "", "Quarterly revenue rose",
         "naïve café — 漢字 \0 and a NUL", "word " * 400]


@pytest.fixture
def embedder(model):
    return mstarc.Embedder(model)


def program(model, texts, *options):
    """What `mstar embed` makes of the texts: the same library through another door."""
    binary = os.environ.get("MSTAR_TEST_PROGRAM", "")
    if not os.path.exists(binary):
        pytest.skip("MSTAR_TEST_PROGRAM names no program")
    done = subprocess.run([binary, "embed", "--model", model, "--format", "f32", *options],
                          input="\n".join(texts).encode(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32).reshape(len(texts), -1)


def test_values_are_the_programs(embedder, model):
    lines = [text for text in TEXTS if text and "\0" not in text]
    vectors = embedder.encode(lines)
    assert vectors.dtype == np.float32 and vectors.shape == (len(lines), 384)
    assert vectors.tobytes() == program(model, lines).tobytes()
    assert np.abs(np.linalg.norm(vectors.astype(np.float64), axis=1) - 1).max() <= 400 * 2.0 ** -24
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > similarity[0, 2]  # cat and kitten, not revenue


def test_shapes(embedder):
    all_at_once = embedder.encode(TEXTS)
    assert embedder.encode(TEXTS[0]).shape == (384,)
    assert (embedder.encode(TEXTS[0]) == all_at_once[0]).all()
    assert embedder.encode([]).shape == (0, 384)
    for batch_size in (1, 2, 100):
        assert embedder.encode(TEXTS, batch_size).tobytes() == all_at_once.tobytes()
    assert embedder.encode(tuple(TEXTS), batch_size=4).tobytes() == all_at_once.tobytes()
    assert embedder.encode(np.array(TEXTS[:2])).tobytes() == all_at_once[:2].tobytes()
    assert embedder.get_sentence_embedding_dimension() == 384
    assert embedder.max_seq_length == embedder.info["max_tokens"] == 256
    assert "bert" in repr(embedder) and all_at_once.flags.writeable


def test_without_numpy(embedder, monkeypatch):
    want = embedder.encode(TEXTS[:2])
    monkeypatch.setitem(sys.modules, "numpy", None)
    both, one = embedder.encode(TEXTS[:2]), embedder.encode(TEXTS[1])
    assert type(both) is type(one) is mstarc.Tensor and (both.shape, one.shape) == ((2, 384), (384,))
    assert both.tolist() == want.tolist() and one.tolist() == want[1].tolist()


def test_progress(embedder, capsys):
    quiet = embedder.encode(TEXTS[:3])
    assert capsys.readouterr() == ("", "")
    loud = embedder.encode(TEXTS[:3], batch_size=2, show_progress_bar=True)
    shown = capsys.readouterr()
    assert shown.out == "" and "2/3 texts" in shown.err and "3/3 texts" in shown.err
    assert loud.tobytes() == quiet.tobytes()
    assert embedder.encode([], show_progress_bar=True).shape == (0, 384)


def test_normalize(model, tmp_path):
    """A folder whose modules do not normalise: only then do the two differ."""
    for name in os.listdir(model):
        os.symlink(os.path.join(model, name), tmp_path / name)
    (tmp_path / "modules.json").unlink()
    (tmp_path / "modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},'
        ' {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]')
    embedder = mstarc.Embedder(tmp_path)
    raw, unit = embedder.encode(TEXTS, normalize=False), embedder.encode(TEXTS, normalize=True)
    lengths = np.linalg.norm(raw.astype(np.float64), axis=1)
    assert (np.abs(lengths - 1) > 0.1).all()
    want = raw / lengths[:, None]
    assert (np.abs(unit - want) <= (raw.shape[1] + 4) * 2.0 ** -24 * np.abs(want) + 2.0 ** -126).all()
    folder = mstarc.Embedder(model)  # here the folder normalises, and neither call changes that
    assert folder.info["normalize"] is True
    assert folder.encode(TEXTS[:1], normalize=False).tobytes() != raw[:1].tobytes()


def test_options(model):
    short = mstarc.Embedder(model, max_seq_length=8, num_threads=1, dtype=mstarc.bfloat16)
    assert short.max_seq_length == 8 and short.info["dtype"] == "bfloat16"
    assert short.encode(["word " * 6]).tobytes() == short.encode(["word " * 9]).tobytes()
    assert short.encode([]).shape == (0, 384)
    with pytest.raises(ValueError, match="8"):
        mstarc.Embedder(model, max_seq_length=8, truncate="error").encode(["word " * 9])


@pytest.mark.parametrize("more, error, message", [
    ({"num_threads": 0}, ValueError, "num_threads is 0"),
    ({"max_seq_length": 0}, ValueError, "max_seq_length is 0"),
    ({"truncate": "middle"}, ValueError, "truncate is 'middle'"),
    ({"dtype": "int8"}, ValueError, "int8"), ({"dtype": "float16"}, (ValueError, NotImplementedError), "dtype"),
    ({"device": "tpu"}, ValueError, "tpu"), ({"prompt_name": "no such"}, Exception, "no such"),
])
def test_bad_options(model, more, error, message):
    with pytest.raises(error, match=message):
        mstarc.Embedder(model, **more)


def test_bad_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        mstarc.Embedder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        mstarc.Embedder(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises((ValueError, FileNotFoundError)):
        mstarc.Embedder(tmp_path)


def test_bad_texts(embedder):
    for sentences, error in [([1], TypeError), (["a", None], TypeError), (5, TypeError),
                             (["\ud800"], UnicodeEncodeError)]:
        with pytest.raises(error):
            embedder.encode(sentences)
    with pytest.raises(ValueError, match="batch_size is 0"):
        embedder.encode(["a"], batch_size=0)
    assert embedder.encode(["a"]).shape == (1, 384)


def test_threads(embedder):
    want = embedder.encode(TEXTS).tobytes()
    got = []
    threads = [threading.Thread(target=lambda: got.append(embedder.encode(TEXTS).tobytes() == want))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [True] * 4


def test_nothing_stays(model):
    mstarc.Embedder(model)
    before = mstarc.memory_info()["live_bytes"]
    for _ in range(3):
        mstarc.Embedder(model, num_threads=1).encode(TEXTS[:2])
    assert mstarc.memory_info()["live_bytes"] == before
