"""The operations against float64, alone and in any batch, and what they refuse."""
import math

import numpy as np
import pytest
from attention_reference import HALF_ULP, SMALLEST, UNIT, check, rounded
from dlpack_producer import Producer, bfloat16
from hypothesis import given
from hypothesis import strategies as st

import mstarc
from mstarc import ops

DTYPES = ["float32", "bfloat16", "float16"]
ROWS = st.integers(0, 40)


def make(rng, shape, dtype):
    """A tensor of a dtype, and its values as float64."""
    values = rng.standard_normal(shape).astype("float32")
    return mstarc.tensor(values, dtype), rounded(values, dtype)


def values(tensor):
    return np.array(tensor.tolist()).reshape(tensor.shape)


def result_bound(want, error, dtype):
    return error + HALF_ULP[dtype] * (np.abs(want) + error) + 2 * SMALLEST[dtype]


@given(ROWS, st.integers(1, 70), st.integers(1, 50), st.sampled_from(DTYPES), st.booleans())
def test_linear(rows, width, out_width, dtype, biased):
    rng = np.random.default_rng(rows * 7919 + width)
    x, xs = make(rng, (rows, width), dtype)
    residual, rs = make(rng, (rows, out_width), dtype)
    weight = rng.standard_normal((out_width, width)).astype("float32")
    bias = rng.standard_normal(out_width).astype("float32") if biased else None
    got = ops.Linear(weight, bias)(x, residual)
    assert got.dtype == dtype and got.shape == (rows, out_width)
    w, b = weight.astype("float64"), 0 if bias is None else bias.astype("float64")
    want = xs @ w.T + b + rs
    error = (width + 4) * UNIT * (np.abs(xs) @ np.abs(w).T + np.abs(b) + np.abs(rs))
    check(values(got), want, result_bound(want, error, dtype))


@given(ROWS, st.integers(1, 70), st.sampled_from(DTYPES), st.booleans(), st.booleans())
def test_norms(rows, width, dtype, rms, residual):
    rng = np.random.default_rng(rows * 7919 + width)
    x, xs = make(rng, (rows, width), dtype)
    r, rs = make(rng, (rows, width), dtype)
    weight, bias = rng.standard_normal((2, width)).astype("float32")
    if rms:
        got = ops.rms_norm(x, weight, 1e-3, residual=r if residual else None)
    else:
        got = ops.layer_norm(x, weight, bias, 1e-3, residual=r if residual else None)
    y = xs + (rs if residual else 0)
    mean = 0 if rms else y.mean(1, keepdims=True)
    scale = 1 / np.sqrt(((y - mean) ** 2).mean(1, keepdims=True) + 1e-3)
    want = (y - mean) * scale * weight + (0 if rms else bias)
    spread = (np.abs(y) + np.abs(y).mean(1, keepdims=True)) * scale * np.abs(weight)
    off_centre = 1 + (np.abs(y).mean(1, keepdims=True) * scale) ** 2  # the variance's own error
    error = (2 * width + 16) * UNIT * (spread * off_centre + np.abs(bias))
    check(values(got), want, result_bound(want, error, dtype))


ACTIVATIONS = {
    "none": lambda x: x,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_activations(name, dtype, rng):
    x, xs = make(rng, (5, 33), dtype)
    want = ACTIVATIONS[name](xs)
    error = 32 * UNIT * (np.abs(xs) + 1)
    check(values(ops.activate(x, name)), want, result_bound(want, error, dtype))
    if name != "none":
        fused = ops.Linear(np.eye(33, dtype="float32"), activation=name)(x)
        check(values(fused), want, result_bound(want, 40 * UNIT * (np.abs(xs) + 1), dtype))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim, rotary_dim", [(8, None), (12, 8), (6, 2), (5, 0)])
def test_rotary(interleaved, dim, rotary_dim, rng):
    x, xs = make(rng, (7, 3, dim), "float32")
    positions = np.array([0, 1, 5, 1000, -3, 7, 2 ** 20])
    size = dim if rotary_dim is None else rotary_dim
    want = xs.copy()
    for pair in range(size // 2):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + size // 2)
        angle = (positions * 500.0 ** (-2 * pair / size))[:, None]
        want[:, :, a] = xs[:, :, a] * np.cos(angle) - xs[:, :, b] * np.sin(angle)
        want[:, :, b] = xs[:, :, a] * np.sin(angle) + xs[:, :, b] * np.cos(angle)
    got = ops.rotary(x, positions, 500.0, rotary_dim, interleaved)
    # the angle is a product of two doubles of relative error 2^-52
    error = (8 * UNIT + 2.0 ** -50 * np.abs(positions))[:, None, None] * np.abs(xs).max()
    check(values(got), want, result_bound(want, error, "float32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(dtype, rng):
    words, ws = make(rng, (11, 6), dtype)
    places, ps = make(rng, (4, 6), dtype)
    ids, positions = [0, 10, 3, 3], np.array([3, 2, 1, 0])
    got = ops.embedding([words, places], [ids, positions])
    want = ws[ids] + ps[positions]
    check(values(got), want, result_bound(want, UNIT * np.abs(want), dtype))
    alone = ops.embedding(words, np.array(ids, "int32"))
    assert alone.dtype == dtype and (np.float64(values(alone)) == ws[ids]).all()
    for bad in (11, -1):
        with pytest.raises(ValueError, match=f"{bad}.*1[01]|1[01].*{bad}"):
            ops.embedding(words, [0, bad])


def pooled(xs, offsets, mode, skip):
    rows = []
    for s, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:])):
        part, n = xs[begin + skip[s]:end], max(end - begin - skip[s], 0)
        weights = np.arange(skip[s] + 1, end - begin + 1)[:, None]
        rows.append(np.zeros(xs.shape[1]) if n == 0 else {
            "cls": lambda: part[0], "lasttoken": lambda: part[-1], "max": lambda: part.max(0),
            "mean": lambda: part.mean(0), "mean_sqrt_len": lambda: part.sum(0) / math.sqrt(n),
            "weightedmean": lambda: (part * weights).sum(0) / weights.sum()}[mode]())
    return np.array(rows)


@pytest.mark.parametrize("mode", ["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"])
@pytest.mark.parametrize("skip", [[0, 0, 0, 0], [1, 0, 2, 9]])
def test_pooling(mode, skip, rng):
    x, xs = make(rng, (14, 5), "float32")
    offsets = [0, 4, 4, 11, 14]
    want = pooled(xs, offsets, mode, skip)
    got = ops.pooling(x, offsets, mode, skip if any(skip) else None)
    check(values(got), want, result_bound(want, 64 * UNIT * np.abs(xs).max(), "float32"))


def test_normalize(rng):
    x, xs = make(rng, (3, 9), "float32")
    want = xs / np.linalg.norm(xs, axis=1, keepdims=True)
    check(values(ops.normalize(x)), want, result_bound(want, 32 * UNIT * np.abs(want), "float32"))
    assert values(ops.normalize(mstarc.zeros(1, 4))).tolist() == [[0.0] * 4]


def test_a_row_has_its_bits_in_any_batch(rng):
    x = rng.standard_normal((23, 40)).astype("float32")
    weight = rng.standard_normal((64, 40)).astype("float32")
    linear, scale = ops.Linear(weight, activation="gelu"), np.ones(64, "float32")
    whole = ops.layer_norm(linear(x), scale)
    for i in range(23):
        assert ops.layer_norm(linear(x[i:i + 1]), scale).tobytes() == whole[i:i + 1].tobytes()


def test_frameworks_and_views(rng):
    """numpy gives numpy, other producers a Tensor; strided rows are read as they lie."""
    x = rng.standard_normal((6, 8)).astype("float32")
    want = ops.normalize(x)
    assert type(want) is np.ndarray and want.dtype == np.float32
    assert type(ops.normalize(mstarc.tensor(x))) is mstarc.Tensor
    assert values(ops.normalize(Producer(x))).astype("float32").tobytes() == want.tobytes()
    wide = np.concatenate([x, x], 1)
    assert ops.normalize(wide[:, 8:]).tobytes() == want.tobytes()
    assert ops.normalize(np.asfortranarray(x)).tobytes() == want.tobytes()  # by a copy
    assert ops.normalize(x[::-1])[::-1].tobytes() == want.tobytes()
    assert ops.normalize(x.astype("float64")).dtype == np.float32
    halves = ops.normalize(bfloat16(x))
    assert type(halves) is mstarc.Tensor and halves.dtype == "bfloat16"


def test_out(rng):
    x = rng.standard_normal((6, 8)).astype("float32")
    want = ops.normalize(x)
    poison = np.full((6, 16), np.nan, "float32")
    out = poison[:, 4:12]
    assert ops.normalize(x, out=out) is out and out.tobytes() == want.tobytes()
    assert np.isnan(poison[:, :4]).all() and np.isnan(poison[:, 12:]).all()
    halves = mstarc.zeros(6, 8, dtype="float16")
    assert ops.normalize(x, out=halves) is halves
    assert values(halves).astype("float16").tobytes() == want.astype("float16").tobytes()
    same = x.copy()
    assert ops.normalize(same, out=same) is same and same.tobytes() == want.tobytes()
    frozen = x.copy()
    frozen.flags.writeable = False
    for bad, message in ((frozen, "read-only"), (np.zeros((5, 8), "float32"), "shape"),
                         (np.zeros((6, 16), "float32")[:, ::2], "contiguous")):
        with pytest.raises(ValueError, match=f"out.*{message}"):
            ops.normalize(x, out=bad)


@pytest.mark.parametrize("call, error, message", [
    (lambda x: ops.normalize(None), TypeError, "x is None"),
    (lambda x: ops.normalize([1.0]), TypeError, "x is a"),
    (lambda x: ops.normalize(x[0]), ValueError, "x has 1 dimensions"),
    (lambda x: ops.activate(x, "gelu_new"), ValueError, "gelu_new.*gelu_tanh"),
    (lambda x: ops.layer_norm(x, np.ones(7, "float32")), ValueError, "weight.*7"),
    (lambda x: ops.pooling(x, [0, 7]), ValueError, "7"),
    (lambda x: ops.pooling(x, []), ValueError, "empty"),
    (lambda x: ops.pooling(x, [0, 6], "median"), ValueError, "median"),
    (lambda x: ops.pooling(x, [0, 6], skip=[1, 2]), ValueError, "skip has 2 entries; expected 1"),
    (lambda x: ops.Linear(x, x[0]), ValueError, "bias"),
    (lambda x: ops.Linear([], []), ValueError, "0 weights"),
    (lambda x: ops.Linear(x)(x[:, :5]), ValueError, "5"),
    (lambda x: ops.Linear(x, activation="swish"), ValueError, "swish"),
    (lambda x: ops.embedding(x, [[0]]), TypeError, "ids"),
    (lambda x: ops.embedding([x, x], [[0, 1], [0]]), ValueError, "ids has 1 entries; expected 2"),
    (lambda x: ops.rotary(x.reshape(6, 1, 8), [0] * 5), ValueError, "positions has 5"),
    (lambda x: ops.rotary(x.reshape(6, 1, 8), [0] * 6, rotary_dim=3), ValueError, "3"),
    (lambda x: ops.normalize(Producer(x, device=(2, 0))), RuntimeError, "cuda:0"),
])
def test_refusals(call, error, message, rng):
    with pytest.raises(error, match=message):
        call(rng.standard_normal((6, 8)).astype("float32"))


# ---- the tensor of the package -------------------------------------------------------------------

@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_slices_are_numpys(shape, data):
    array = np.arange(math.prod(shape), dtype="int32").reshape(shape)
    tensor = mstarc.tensor(array)
    index = tuple(
        data.draw(st.one_of(st.slices(size).filter(lambda s: (s.step or 1) > 0),
                            *([st.integers(-size, size - 1)] if size else [])))
        for size in shape[:data.draw(st.integers(0, len(shape)))])
    got, want = tensor[index], array[index]
    assert got.shape == want.shape and np.asarray(got).tolist() == want.tolist()
    assert np.asarray(got.clone()).tolist() == want.tolist()
    assert np.from_dlpack(got).tolist() == want.tolist()
    assert got.tolist() == want.tolist()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_reshape_is_numpys_where_it_takes_no_copy(shape, data):
    array = np.arange(2 * math.prod(shape), dtype="float32").reshape(*shape[:-1], 2 * shape[-1])
    cut = data.draw(st.sampled_from([slice(None), slice(0, shape[-1])]))
    view, tensor = array[..., cut], mstarc.tensor(array)[(slice(None),) * (len(shape) - 1) + (cut,)]
    factors, rest = [], view.size
    while rest > 1:
        factor = data.draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0]))
        factors.append(factor)
        rest //= factor
    made = view.reshape(factors)
    if np.shares_memory(made, array):
        assert np.asarray(tensor.reshape(*factors)).tolist() == made.tolist()
        assert tensor.reshape(tuple(factors)).shape == made.shape
    else:
        with pytest.raises(ValueError, match="without a copy"):
            tensor.reshape(*factors)


def test_views_keep_their_memory_and_write_through(rng):
    tensor = mstarc.zeros(4, 6)
    view = tensor[1:3, 2:4]
    np.asarray(view)[:] = 7
    assert np.asarray(tensor).sum() == 28
    del tensor
    assert np.asarray(view).sum() == 28
    with pytest.raises(BufferError, match="contiguous"):
        memoryview(view).obj.__buffer__(0) if hasattr(view, "__buffer__") else bytes_of(view)
    for bad, error in ((5, IndexError), ((0, 0, 0), IndexError), (slice(None, None, -1), ValueError),
                       ("x", TypeError)):
        with pytest.raises(error):
            view[bad]
    for bad in ((5,), (-1, -1), (3, -1), (-2, 2)):
        with pytest.raises(ValueError):
            view.clone().reshape(*bad)
    assert view.clone().reshape(-1).shape == (4,) and mstarc.zeros(0, 3).reshape(3, -1).shape == (3, 0)


def bytes_of(view):
    """Asks for a buffer without strides."""
    import io
    io.BytesIO().write(view)


def test_making_tensors():
    for dtype in ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"):
        made = mstarc.zeros(2, 3, dtype=dtype)
        assert made.dtype == dtype and made.dtype == np.dtype(dtype) and not np.asarray(made).any()
        assert mstarc.tensor(np.ones(3, dtype)).tolist() == [1, 1, 1]
    assert mstarc.zeros(2, dtype="bfloat16").tolist() == [0.0, 0.0]
    assert mstarc.tensor(np.array([1 + 2 ** -9, 3]), mstarc.bfloat16).tolist() == [1.0, 3.0]
    for bad, error in (((-1,), ValueError), ((1,) * 9, ValueError), ((2 ** 62, 2), MemoryError)):
        with pytest.raises(error):
            mstarc.zeros(*bad)
    with pytest.raises(ValueError):
        mstarc.zeros(1, dtype="complex64")
