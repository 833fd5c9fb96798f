"""mstarc.Embedder on cuda:0: the vectors of the CPU, and the bits of a text alone."""
import numpy as np
import pytest
from cuda_fixtures import mock, no_faults  # noqa: F401
from tiny_encoder import WIDTH, make_encoder

import mstarc

TEXTS = ["the cat", "the old dog sleep", "sun moon river " * 15, "", "new"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vectors(dtype, tmp_path):
    folder = make_encoder(tmp_path)
    here = mstarc.Embedder(folder, dtype=dtype).encode(TEXTS)
    embedder = mstarc.Embedder(folder, device="cuda:0", dtype=dtype)
    there = embedder.encode(TEXTS)
    assert there.shape == (len(TEXTS), WIDTH) and there.dtype == np.float32
    bound = 2.0 ** -5 if dtype == "bfloat16" else 2.0 ** -14  # of vectors of length 1, through a layer
    assert (np.abs(there - here) <= bound).all()
    for text, vector in zip(TEXTS, there):
        assert embedder.encode(text).tobytes() == vector.tobytes()
    assert embedder.encode(TEXTS, batch_size=2).tobytes() == there.tobytes()
    plain = embedder.encode(TEXTS, normalize=False)
    lengths = np.linalg.norm(plain.astype("float64"), axis=1, keepdims=True)
    assert (np.abs(lengths - 1) > 0.1).all() and (np.abs(plain / lengths - there) <= 2.0 ** -20).all()
