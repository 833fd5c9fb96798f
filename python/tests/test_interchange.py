"""Tensors of other frameworks, in and out: DLPack of both generations, good and bad capsules."""
import ctypes
import gc
import sys
import types

import numpy as np
import pytest
from dlpack_producer import Producer, Tensor, Versioned, _api, bfloat16, exchanging

import mstarc
from mstarc import ops
from mstarc.engine.resources.attn.ragged.wrappers import (
    FlashInferRaggedPrefillWrapper,
    RaggedPrefillWrapper,
)


@pytest.fixture
def wrapper():
    made = RaggedPrefillWrapper(2, 1, 16, device="cpu", q_data_type="float32")
    made.plan([0, 3])
    return made


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal((3, n, 16)).astype(np.float32) for n in (2, 1, 1)]


@pytest.mark.parametrize("more", [{}, {"versioned": False}, {"compact": True}, {"version": (1, 9)},
                                  {"flags": 1}, {"device": (3, 0)}],
                         ids=["1.1", "0.x", "no strides", "1.9", "read-only", "pinned"])
def test_producers(wrapper, qkv, more):
    want = wrapper.run(*qkv)
    given = [Producer(x, **more) for x in qkv]
    out = wrapper.run(*given)
    assert isinstance(out, mstarc.Tensor) and out.numpy().tobytes() == want.tobytes()
    assert [(x.handed, x.deleted) for x in given] == [(1, 1)] * 3


def test_strides_and_byte_offset(wrapper, qkv):
    want = wrapper.run(*qkv).tobytes()
    fused = np.concatenate(qkv, axis=1)
    parts = [Producer(fused[:, :2]), Producer(fused[:, 2:3]), Producer(fused[:, 3:])]
    assert wrapper.run(*parts).numpy().tobytes() == want
    backwards = Producer(np.ascontiguousarray(qkv[0][::-1, :, ::-1])[::-1, :, ::-1])
    assert wrapper.run(backwards, *qkv[1:]).numpy().tobytes() == want

    def shift(struct):
        struct.tensor.data -= 64
        struct.tensor.byte_offset = 64
    assert wrapper.run(Producer(qkv[0], change=shift), *qkv[1:]).numpy().tobytes() == want


def test_offsets_through_dlpack():
    made = RaggedPrefillWrapper(1, 1, 8, device="cpu")
    for dtype in (np.int32, np.int64):
        made.plan(Producer(np.array([0, 2, 5], dtype)))
        assert made.num_segments == 2
    with pytest.raises(TypeError, match="float32"):
        made.plan(Producer(np.array([0, 2], np.float32)))


def spoil(**values):
    def change(struct):
        for name, value in values.items():
            setattr(struct.tensor, name, value)
    return change


@pytest.mark.parametrize("more, error, message", [
    ({"version": (2, 0)}, BufferError, "DLPack 2.0"),
    ({"name": b"used_dltensor_versioned"}, BufferError, "unused capsule"),
    ({"name": b"dltensor2"}, BufferError, "unused capsule"),
    ({"change": spoil(lanes=2)}, TypeError, "2 lanes"),
    ({"change": spoil(code=77)}, TypeError, "type code 77"),
    ({"change": spoil(bits=24)}, TypeError, "24 bits"),
    ({"change": spoil(ndim=-1)}, ValueError, "-1 dimensions"),
    ({"change": spoil(ndim=9)}, ValueError, "9 dimensions"),
    ({"change": spoil(data=None)}, ValueError, "no data"),
    ({"change": spoil(device_type=10)}, ValueError, "type 10"),
    ({"change": spoil(device_type=2)}, ValueError, r"device \(2, 0\); expected \(1, 0\)"),
    ({"device": (2, 1)}, ValueError, r"device \(2, 1\)"),
    ({"device": "cpu"}, BufferError, "__dlpack_device__"),
])
def test_bad_capsules(wrapper, qkv, more, error, message):
    fields = dict(more)
    device = fields.pop("device", (1, 0))
    given = Producer(qkv[0], device=device if isinstance(device, tuple) else (1, 0), **fields)
    given.device = device
    with pytest.raises(error, match=message):
        wrapper.run(given, *qkv[1:])
    consumed = more.get("version", (1, 1))[0] == 1 and "name" not in more and device != "cpu"
    assert given.deleted == (1 if consumed else 0)
    assert wrapper.run(*qkv).shape == (3, 2, 16)


def test_negative_sizes(wrapper, qkv):
    given = Producer(qkv[0])
    given.shape[1] = -2
    with pytest.raises(ValueError, match="size -2 in dimension 1"):
        wrapper.run(given, *qkv[1:])
    assert given.deleted == 1


def test_fp8_is_not_there_yet(wrapper, qkv):
    for code in (10, 12):
        given = Producer(np.zeros((3, 2, 16), np.uint8), code=code)
        with pytest.raises(NotImplementedError, match="fp8"):
            wrapper.run(given, *qkv[1:])
        assert given.deleted == 1


@pytest.mark.parametrize("answer", [None, 3, "capsule"])
def test_methods_that_give_no_capsule(wrapper, qkv, answer):
    class Odd:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **keywords):
            return answer

    with pytest.raises(BufferError, match="unused capsule"):
        wrapper.run(Odd(), *qkv[1:])


def test_exceptions_of_producers_come_through(wrapper, qkv):
    class Refuses:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **keywords):
            raise LookupError("gradients are needed")

    with pytest.raises(LookupError, match="gradients"):
        wrapper.run(Refuses(), *qkv[1:])


def test_a_deleter_may_be_missing(wrapper, qkv):
    given = Producer(qkv[0])
    given.struct.deleter = None
    wrapper.run(given, *qkv[1:])
    assert given.deleted == 0


def test_arrays_that_never_change_are_not_written_to(qkv):
    """jax's capsules need not say so."""
    class OfJax(Producer):
        __module__ = "jaxlib"

    out = np.zeros((3, 16), np.float32)
    with pytest.raises(ValueError, match="out is read-only"):
        ops.normalize(qkv[1][:, 0], out=OfJax(out))
    with pytest.raises(ValueError, match="workspace_buffer is read-only"):
        FlashInferRaggedPrefillWrapper(OfJax(np.zeros(1 << 22, np.uint8)), 2, 1, 16, device="cpu")
    assert not out.any() and ops.normalize(qkv[1][:, 0], out=Producer(out)).array is out and out.any()


# ---- the table of C functions ---------------------------------------------------------------------

def test_the_table_is_preferred(wrapper, qkv):
    want = wrapper.run(*qkv).tobytes()
    given, asked, producer = exchanging(qkv[0])
    assert wrapper.run(given, *qkv[1:]).numpy().tobytes() == want
    assert asked == [id(given)] and producer.handed == 0
    newer, asked, producer = exchanging(qkv[0], major=2)  # one that we do not know
    assert wrapper.run(newer, *qkv[1:]).numpy().tobytes() == want
    assert asked == [] and producer.handed == producer.deleted == 1


# ---- what comes out -------------------------------------------------------------------------------

def own(dtype="bfloat16"):
    made = RaggedPrefillWrapper(1, 1, 8, device="cpu", q_data_type=dtype)
    made.plan([0, 2])
    x = np.arange(16, dtype=np.float32).reshape(2, 1, 8)
    x[1] = x[0]
    return made.run(x, x, x) if dtype == "bfloat16" else made.run(Producer(x), x, x)


def test_tensor():
    tensor = own()
    assert tensor.shape == (2, 1, 8) and tensor.ndim == 3 and len(tensor) == 2
    assert tensor.nbytes == 32 and tensor.dtype == mstarc.bfloat16 and tensor.device == "cpu"
    assert repr(tensor) == "mstarc.Tensor(shape=(2, 1, 8), dtype=mstarc.bfloat16)"
    assert tensor.tolist() == [[list(map(float, range(8)))]] * 2
    assert (tensor.to("float32").numpy() == tensor.to(np.float16).numpy()).all()
    with pytest.raises(TypeError, match="bfloat16"):
        tensor.numpy()
    with pytest.raises((BufferError, ValueError), match="bfloat16"):
        memoryview(tensor)
    with pytest.raises(TypeError, match="bfloat16"):
        np.asarray(tensor)
    assert np.asarray(tensor, dtype="float64").tolist() == tensor.tolist()
    assert (np.array(tensor.to("float32"), copy=True) == tensor.tolist()).all()
    with pytest.raises(ValueError, match="int32"):
        tensor.to("int32")
    with pytest.raises(TypeError):
        mstarc.Tensor()
    copied = tensor.clone()
    assert copied is not tensor and copied.tolist() == tensor.tolist()


def test_buffers_share_memory():
    for dtype, letter in (("float32", "f"), ("float16", "e")):
        tensor = own(dtype)
        view = memoryview(tensor)
        assert view.format == letter and view.shape == (2, 1, 8) and view.c_contiguous
        array = np.asarray(tensor)
        array[0, 0, 0] = 41
        assert tensor.tolist()[0][0][0] == 41 and array.ctypes.data % 256 == 0
        kept = np.from_dlpack(tensor)
        assert np.shares_memory(kept, array)
        del tensor, array, view
        gc.collect()
        assert kept[0, 0, 0] == 41  # the memory lives as long as someone looks at it


def read_capsule(capsule, name):
    get = _api.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


def test_arrays_that_take_a_copy_are_refused_without_one():
    tensor = own()
    wide = tensor.to("float32")
    assert wide.__array__(copy=False).ctypes.data == wide.__array__("float32").ctypes.data
    assert wide.__array__("float32", copy=True).ctypes.data != wide.__array__().ctypes.data
    assert wide.__array__("float64").dtype == np.float64
    for call in (lambda: tensor.__array__("float32", copy=False), lambda: wide.__array__("float64", copy=False),
                 lambda: wide.__array__("float16", copy=False)):
        with pytest.raises(ValueError, match="without a copy"):
            call()


def test_capsules():
    tensor = own()
    assert tensor.__dlpack_device__() == (1, 0)
    managed = Versioned.from_address(read_capsule(tensor.__dlpack__(max_version=(1, 0)),
                                                  b"dltensor_versioned"))
    del managed
    capsule = tensor.__dlpack__(max_version=(1, 3), copy=True)
    managed = Versioned.from_address(read_capsule(capsule, b"dltensor_versioned"))
    assert (managed.major, managed.flags & 2, managed.tensor.code, managed.tensor.bits) == (1, 2, 4, 16)
    plain = Versioned.from_address(read_capsule(tensor.__dlpack__(max_version=(1, 1), copy=False),
                                                b"dltensor_versioned"))
    assert plain is not None
    for older in (tensor.__dlpack__(), tensor.__dlpack__(max_version=(0, 8))):
        legacy = Tensor.from_address(read_capsule(older, b"dltensor"))
        assert (legacy.ndim, legacy.code, list(legacy.shape[:3])) == (3, 4, [2, 1, 8])
    for keywords, error in [({"stream": 1}, BufferError), ({"dl_device": (2, 0)}, BufferError),
                            ({"dl_device": 3}, TypeError), ({"max_version": 1}, TypeError),
                            ({"nothing": 1}, TypeError)]:
        with pytest.raises(error):
            tensor.__dlpack__(**keywords)
    assert tensor.__dlpack__(dl_device=(1, 0)) is not None


def test_results_go_on_as_inputs():
    made = RaggedPrefillWrapper(1, 1, 8, device="cpu")
    made.plan([0, 2])
    tensor = own()
    again = made.run(tensor, tensor, tensor)
    assert isinstance(again, mstarc.Tensor) and again.dtype == "bfloat16"
    mixed = made.run(bfloat16(tensor.to("float32").numpy()), tensor, tensor)
    assert mixed.tolist() == again.tolist()


def test_capsules_do_not_leak():
    tensor = own()
    tensor.__dlpack__(max_version=(1, 1))
    gc.collect()
    before = mstarc.memory_info()["live_bytes"]
    for _ in range(200):
        tensor.__dlpack__()
        tensor.__dlpack__(max_version=(1, 1))
        np.from_dlpack(tensor.to("float32"))
    gc.collect()
    assert mstarc.memory_info()["live_bytes"] == before


def test_numpy_subclasses_and_mapped_files(wrapper, qkv, tmp_path):
    want = wrapper.run(*qkv).tobytes()
    np.save(tmp_path / "q.npy", qkv[0])
    mapped = np.load(tmp_path / "q.npy", mmap_mode="r")
    out = wrapper.run(mapped, *qkv[1:])
    assert isinstance(out, np.ndarray) and out.tobytes() == want
    out = wrapper.run(memoryview(qkv[0]), *qkv[1:])
    assert isinstance(out, mstarc.Tensor) and out.numpy().tobytes() == want


def test_ml_dtypes_keep_their_framework(qkv):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    made = RaggedPrefillWrapper(2, 1, 16, device="cpu")
    made.plan([0, 3])
    given = [x.astype(ml_dtypes.bfloat16) for x in qkv]
    out = made.run(*given)
    assert isinstance(out, np.ndarray) and out.dtype == ml_dtypes.bfloat16
    plain = made.run(*(x.astype(np.float32) for x in given))
    assert (out.astype(np.float32) == plain.to("float32").numpy()).all()


# ---- streams of GPUs -----------------------------------------------------------------------------

class _Streams:
    """torch or cupy, as far as streams go."""

    def __init__(self, torch):
        self.asked = []
        self.ready = True
        self.cuda = self
        if torch:
            self.is_initialized = lambda: self.ready
            self.current_stream = lambda index: self.asked.append(index) or types.SimpleNamespace(
                cuda_stream=70 + index)
        else:
            self.get_current_stream = lambda index: self.asked.append(index) or types.SimpleNamespace(
                ptr=90)


def test_work_goes_to_the_callers_stream(monkeypatch):
    from mstarc._frameworks import work_stream
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    of_cupy = type("ndarray", (), {"__module__": "cupy"})()
    assert work_stream(None, 1) == 0  # the default stream
    monkeypatch.setitem(sys.modules, "cupy", _Streams(torch=False))
    assert work_stream(None, 1) == 90 and sys.modules["cupy"].asked == [1]
    monkeypatch.setitem(sys.modules, "torch", _Streams(torch=True))
    assert work_stream(None, 1) == 71 and work_stream(object(), 0) == 70
    assert work_stream(of_cupy, 1) == 90
    sys.modules["torch"].ready = False  # torch has no work on a GPU
    assert work_stream(None, 1) == 90


def test_tensors_on_a_gpu_are_asked_for_on_that_stream(monkeypatch):
    """A producer that says it lies on CUDA is given the stream that will read; nothing is touched."""
    asked = {}

    class OnGpu(Producer):
        def __dlpack__(self, **keywords):
            asked.update(keywords)
            return super().__dlpack__(**keywords)

    wrapper = RaggedPrefillWrapper(1, 1, 4, device="cpu", q_data_type="float32")
    wrapper.plan([0, 2])
    there = OnGpu(np.zeros((2, 1, 4), "float32"), device=(2, 3))
    with pytest.raises(ValueError, match=r"q lies on DLPack device \(2, 3\)"):
        wrapper.run(there, there, there)
    assert asked["stream"] == 1 and there.deleted == there.handed == 1
