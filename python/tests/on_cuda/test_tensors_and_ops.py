"""Tensors of the package on cuda:0, the operations and the wrappers on them."""
import gc
import math
import sys
import types

import numpy as np
import pytest
from attention_reference import attention, check
from cuda_fixtures import mock, no_faults  # noqa: F401
from dlpack_producer import Producer, exchanging

import mstarc
from mstarc import ops
from mstarc.engine.resources.attn.ragged.wrappers import (
    PrefixedPrefillWrapper,
    RaggedCrossPrefillWrapper,
    RaggedPrefillWrapper,
)

GPU = "cuda:0"
DTYPES = ["float32", "bfloat16", "float16"]
EPSILON = {"float32": 2.0 ** -23, "bfloat16": 2.0 ** -8, "float16": 2.0 ** -11}


def there(array, dtype=None):
    return mstarc.tensor(array, dtype, device=GPU)


def here(tensor):
    assert str(tensor.device) == GPU
    return tensor.cpu().to("float32").numpy()


# ---- tensors -------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "uint8", "bool"])
def test_there_and_back(dtype, rng):
    array = rng.integers(0, 2 if dtype == "bool" else 100, (5, 3, 4)).astype(dtype)
    for given in (array, array[::2], array[:, 1:], array.transpose(2, 0, 1), array[:0], array[0, 0, 0]):
        tensor = there(given)
        assert tensor.device == mstarc.device(GPU) and tensor.shape == np.shape(given)
        back = tensor.cpu()
        assert str(back.device) == "cpu" and back.cpu() is back
        assert back.numpy().dtype == array.dtype and (back.numpy() == given).all()
        assert tensor.tolist() == np.asarray(given).tolist()
        assert (there(tensor).cpu().numpy() == given).all()
        assert (mstarc.tensor(tensor).numpy() == given).all()


def test_views_lie_where_they_lay(rng):
    array = rng.standard_normal((6, 4, 5)).astype("float32")
    tensor = there(array)
    for index in (np.s_[1:4], np.s_[2], np.s_[:, 1:3, ::2], np.s_[-1, :, 0]):
        assert (tensor[index].cpu().numpy() == array[index]).all()
    assert (tensor.reshape(6, 20)[1:].cpu().numpy() == array.reshape(6, 20)[1:]).all()
    assert (tensor[1:3].clone().cpu().numpy() == array[1:3]).all()
    assert (tensor[:, 1:3].clone().cpu().numpy() == array[:, 1:3]).all()
    assert repr(tensor) == "mstarc.Tensor(shape=(6, 4, 5), dtype=mstarc.float32, device='cuda:0')"


def test_rounding(rng):
    array = rng.standard_normal((7, 3)).astype("float32")
    want = mstarc.tensor(array, "bfloat16")
    for made in (there(array, "bfloat16"), there(array).to("bfloat16")):
        assert made.dtype == mstarc.bfloat16 and str(made.device) == GPU
        assert made.tolist() == want.tolist()


def test_zeros():
    tensor = mstarc.zeros(3, 2, dtype="bfloat16", device=GPU)
    assert tensor.tolist() == [[0, 0]] * 3
    assert mstarc.zeros(0, 2, device=GPU).tolist() == []
    with pytest.raises(ValueError, match="device"):
        mstarc.zeros(1, device="tpu")


def test_what_only_host_memory_has():
    tensor = there(np.ones(3, "float32"))
    with pytest.raises(TypeError, match=r"cuda:0; use .cpu\(\).numpy\(\)"):
        tensor.numpy()
    with pytest.raises(BufferError, match="cuda:0"):
        memoryview(tensor)
    with pytest.raises(TypeError, match=r"cuda:0; use .cpu\(\).numpy\(\)"):
        np.asarray(tensor)


def test_dlpack():
    tensor = there(np.arange(4, dtype="float32"))
    assert tensor.__dlpack_device__() == (2, 0)
    for keywords in ({}, {"stream": 1}, {"stream": -1}, {"max_version": (1, 1)},
                     {"dl_device": (2, 0), "copy": True, "stream": None}):
        assert "dltensor" in repr(tensor.__dlpack__(**keywords))
    for keywords, error in (({"dl_device": (1, 0)}, BufferError), ({"dl_device": (2, 1)}, BufferError),
                            ({"stream": "main"}, TypeError)):
        with pytest.raises(error):
            tensor.__dlpack__(**keywords)


def test_a_copy_for_another_stream_is_there(mock):
    """What the caller's stream was given comes before what the reader's gets, the copy too."""
    if not mock.is_there:
        return  # a card has no stream of that address
    tensor, reader = there(np.arange(4, dtype="float32")), 4096
    for copy in (None, True):
        capsule = tensor.__dlpack__(stream=reader, copy=copy)
        assert mock.is_after(reader, None), capsule


def test_strides_of_another_frameworks_array(rng):
    """cupy hands out negative strides as they are."""
    array = rng.standard_normal((6, 5, 4)).astype("float32")
    middle = array[1:-1]
    for given in (middle[::-1], middle[:, ::-1], middle[::-2, ::-1, ::-1], middle.transpose(2, 0, 1)[::-1],
                  middle[:0, ::-1], middle[0, 0, ::-1]):
        there_already = Producer(given, device=(2, 0))
        for made in (mstarc.tensor(there_already), there(there_already)):
            assert (made.cpu().numpy() == given).all() and made.shape == given.shape


def test_memory_is_given_back(mock):
    def make():
        there(np.ones((64, 64), "float32")).clone().cpu()
    for _ in range(20):  # what uploads are staged in is kept
        make()
    gc.collect()
    live, held = mock.live(), mstarc.memory_info()["live_bytes"]
    for _ in range(20):
        make()
    gc.collect()
    assert mock.live() == live and mstarc.memory_info()["live_bytes"] == held


# ---- operations ----------------------------------------------------------------------------------

def close(got, want, dtype, work):
    """work: roundings of numbers no larger than the largest of want."""
    scale = max(np.abs(want).max(initial=0), 1)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= (EPSILON[dtype] + work * 2.0 ** -23) * scale).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear(dtype, rng):
    weight, bias = rng.standard_normal((9, 6)), rng.standard_normal(9)
    x, residual = rng.standard_normal((5, 6)), rng.standard_normal((5, 9))
    linear = ops.Linear(weight.astype("float32"), bias.astype("float32"), device=GPU)
    assert linear.in_features == 6 and linear.out_features == 9
    given = [there(a.astype("float32"), dtype) for a in (x, residual)]
    x, residual = (here(a).astype("float64") for a in given)
    out = linear(*given)
    assert out.dtype == dtype
    close(here(out), x @ weight.astype("float32").T + bias.astype("float32") + residual, dtype, 40)
    parts = ops.Linear([there(weight[:4].astype("float32")), weight[4:].astype("float32")])
    close(here(parts(given[0])), x @ weight.astype("float32").T, dtype, 40)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(dtype, rng):
    x32, residual32 = rng.standard_normal((2, 7, 12)).astype("float32")
    weight, bias = rng.standard_normal((2, 12)).astype("float32")
    x, residual = there(x32, dtype), there(residual32, dtype)
    w, b = there(weight), there(bias)
    plain, other = here(x).astype("float64"), here(residual).astype("float64")
    y = plain + other
    centred = y - y.mean(1, keepdims=True)
    want = centred / np.sqrt((centred ** 2).mean(1, keepdims=True) + 1e-5) * weight + bias
    close(here(ops.layer_norm(x, w, b, residual=residual)), want, dtype, 60)
    want = y / np.sqrt((y ** 2).mean(1, keepdims=True) + 1e-6) * weight
    close(here(ops.rms_norm(x, w, residual=residual)), want, dtype, 60)
    close(here(ops.normalize(x)), plain / np.sqrt((plain ** 2).sum(1, keepdims=True)), dtype, 40)
    gelu = plain * (1 + np.vectorize(math.erf)(plain / math.sqrt(2))) / 2
    close(here(ops.activate(x, "gelu")), gelu, dtype, 20)
    out = mstarc.zeros(7, 12, dtype=dtype, device=GPU)
    assert ops.activate(x, "relu", out=out) is out
    assert (here(out) == np.maximum(plain, 0)).all()
    heads = there(x32.reshape(7, 2, 6), dtype)
    angle = np.arange(7)[:, None, None] * 10000.0 ** (-np.arange(3) / 3)
    a, b = np.split(here(heads).astype("float64"), 2, axis=2)
    want = np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 2)
    close(here(ops.rotary(heads, np.arange(7, dtype="int32"))), want, dtype, 20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_and_pooling(dtype, rng):
    tables = [there(rng.standard_normal((n, 8)).astype("float32"), dtype) for n in (20, 5)]
    ids = [rng.integers(0, n, 9).astype("int32") for n in (20, 5)]
    want = sum(here(table).astype("float64")[i] for table, i in zip(tables, ids))
    made = ops.embedding(tables, ids)
    assert type(made) is mstarc.Tensor and made.dtype == dtype
    close(here(made), want, dtype, 4)
    rows = here(made).astype("float64")
    for offsets in (np.array([0, 4, 4, 9], "int32"), [0, 4, 4, 9], there(np.array([0, 4, 4, 9]))):
        pooled = here(ops.pooling(made, offsets))
        close(pooled, np.stack([rows[:4].mean(0), np.zeros(8), rows[4:].mean(0)]), dtype, 10)


def test_operations_on_two_devices(rng):
    x32 = rng.standard_normal((3, 4)).astype("float32")
    x, ones = there(x32), np.ones(4, "float32")
    linear = ops.Linear(np.eye(4, dtype="float32"), device=GPU)
    for call in (lambda: linear(x32), lambda: linear(x, x32), lambda: linear(x, out=np.zeros_like(x32)),
                 lambda: ops.layer_norm(x, ones), lambda: ops.normalize(x32, out=there(x32)),
                 lambda: ops.Linear(np.eye(4, dtype="float32"))(x)):
        with pytest.raises(ValueError, match=r"lies on DLPack device"):
            call()
    with pytest.raises(ValueError, match="cuda:77"):
        ops.normalize(Producer(x32, device=(2, 77)))


# ---- wrappers ------------------------------------------------------------------------------------

@pytest.mark.parametrize("cls", [RaggedPrefillWrapper, RaggedCrossPrefillWrapper, PrefixedPrefillWrapper])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("graph", [False, True])
def test_attention(cls, dtype, graph, rng, mock):
    more = {"max_num_segments": 4, "max_total_tokens": 32, "max_total_kv_tokens": 64,
            "accelerator_graph": True} if graph else {}
    wrapper = cls(4, 2, 16, device=GPU, q_data_type=dtype, **more)
    q_offsets = np.array([0, 5, 5, 12])
    kv_offsets = q_offsets if cls is RaggedPrefillWrapper else np.array([0, 9, 12, 30])
    causal = cls is not RaggedCrossPrefillWrapper
    given = [q_offsets] if cls is RaggedPrefillWrapper else [q_offsets, there(kv_offsets)]
    wrapper.plan(*given, **({"causal": True} if causal else {}))
    assert wrapper.info["offset_syncs"] == len(given) - 1
    arrays = [rng.standard_normal((n, h, 16)).astype("float32")
              for n, h in ((14, 4), (kv_offsets[-1] + 2, 2), (kv_offsets[-1] + 2, 2))]
    tensors = [there(a, dtype) for a in arrays]
    out = wrapper.run(*tensors)
    assert out.dtype == dtype and not here(out)[12:].any()
    want, bound = attention(*(here(t) for t in tensors), q_offsets, kv_offsets, causal, 0.25, dtype,
                            tensor_cores=not mock.is_there)
    check(here(out)[:12], want[:12], bound[:12] if np.ndim(bound) else bound)


# ---- streams and memory of other frameworks ------------------------------------------------------

class Late(Producer):
    """Notes the stream that it is asked for, and how often the host had waited when it is let go."""

    def __init__(self, array, mock):
        super().__init__(array, device=(2, 0))
        self.mock, self.streams, self.waits = mock, [], []

    def _delete(self, pointer):
        self.waits.append(self.mock.waits())
        super()._delete(pointer)

    def __dlpack__(self, **keywords):
        self.streams.append(keywords["stream"])
        return super().__dlpack__(**keywords)


class OfCupy(Late):
    """cupy frees in the order of its streams."""
    __module__ = "cupy"


@pytest.mark.parametrize("cls", [Late, OfCupy])
def test_memory_is_given_back_when_it_has_been_read(cls, mock):
    wrapper = RaggedPrefillWrapper(1, 1, 8, device=GPU, q_data_type="float32")
    wrapper.plan([0, 3])
    if not mock.is_there:
        return  # a card reads no host memory
    heads, rows = np.ones((3, 1, 8), "float32"), np.ones((3, 8), "float32")
    given = [cls(array, mock) for array in (heads, heads, rows, rows[0])]
    wrapper.run(there(heads), *given[:2])
    ops.layer_norm(there(rows), given[3], residual=given[2])
    waits = cls is Late
    for first, second in (given[:2], given[2:]):  # let go one after the other
        assert abs(first.waits[0] - second.waits[0]) == waits
    assert wrapper.info["input_syncs"] == waits
    wrapper.run(*(there(heads) for _ in range(3)))
    assert wrapper.info["input_syncs"] == waits


def test_arrays_are_asked_for_on_the_stream_that_reads(mock, monkeypatch):
    """torch's, once torch works on a GPU, also for what is no array of torch's; of a device that is not
    there torch is not asked."""
    if not mock.is_there:
        return  # a card has no stream of that address
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(
        is_initialized=lambda: True, is_available=lambda: True,
        current_stream=lambda index: [types.SimpleNamespace(cuda_stream=8192)][index])
    monkeypatch.setitem(sys.modules, "torch", torch)
    given = Late(np.ones((3, 8), "float32"), mock)
    ops.activate(given, "relu")
    given.device, given.struct.tensor.device_id = (2, 77), 77
    with pytest.raises(ValueError, match="cuda:77"):
        ops.activate(given, "relu")
    assert given.streams == [8192, 1]


def cupy_of(monkeypatch, current):
    """A module in cupy's place. Its arrays offer a buffer of other contents, as cupy's offer one that they
    refuse; work goes to stream 8192 of the device that is in use."""
    cupy = types.ModuleType("cupy")

    class ndarray(bytearray):
        def __init__(self, shape, dtype):
            super().__init__(8)
            self.array = np.full(shape, 7, dtype)
            self.made_on = current[-1]

        shape = property(lambda self: self.array.shape)
        strides = property(lambda self: self.array.strides)
        dtype = property(lambda self: self.array.dtype)
        data = property(lambda self: types.SimpleNamespace(ptr=self.array.ctypes.data, device_id=0))

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            current.append(self.index)

        def __exit__(self, *error):
            current.pop()

    ndarray.__module__ = "cupy"
    cupy.ndarray, cupy.float32 = ndarray, np.float32
    cupy.cuda = types.SimpleNamespace(
        get_current_stream=lambda index: types.SimpleNamespace(ptr=8192), Device=Device,
        runtime=types.SimpleNamespace(getDevice=lambda: current[-1]))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return cupy


@pytest.mark.parametrize("device", [0, 1])
def test_arrays_of_cupy_are_read_by_their_attributes(device, mock, monkeypatch, rng):
    if not mock.is_there:
        return  # tests/with_cupy has those of a card
    cupy = cupy_of(monkeypatch, [device])
    wrapper = RaggedPrefillWrapper(2, 1, 16, device=GPU, q_data_type="float32")
    wrapper.plan([0, 4, 9])
    given = [cupy.ndarray((9, heads, 16), "float32") for heads in (2, 1, 1)]
    for one in given:
        one.array[:] = rng.standard_normal(one.shape)
    out = wrapper.run(*given)
    assert type(out) is cupy.ndarray and out.made_on == 0
    assert wrapper.info["input_syncs"] == 0
    assert (out.array == here(wrapper.run(*(there(one.array) for one in given)))).all()
    given[0].array = np.repeat(given[0].array, 3, axis=0)[::3]  # a view with strides
    assert (wrapper.run(*given).array == out.array).all()
    given[0].array = given[0].array.astype("complex64")
    with pytest.raises(TypeError, match="q is a .*ndarray"):  # and has no __dlpack__ to be asked
        wrapper.run(*given)


def test_the_table_tells_the_stream(mock):
    if not mock.is_there:
        return
    given, asked, _ = exchanging(np.ones((3, 8), "float32"), device=(2, 0), stream=12288)
    made = ops.activate(given, "relu")
    assert (2, 0) in asked and not mock.is_after(4096, 12288)
    made.__dlpack__(stream=4096)
    assert here(made).all()


def test_streams_are_as_many_as_there_are(mock):
    if not mock.is_there:
        return
    tensor = there(np.arange(4, dtype="float32"))
    for reader in range(4096, 4096 + 16 * 100, 16):
        tensor.__dlpack__(stream=reader)
        assert mock.is_after(reader, None)
