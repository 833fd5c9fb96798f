"""Calls of the wrappers: what is accepted, what is refused and how, threads, memory."""
import array
import gc
import inspect
import threading

import numpy as np
import pytest

import mstarc
from mstarc.engine.resources.attn.ragged import wrappers
from mstarc.engine.resources.attn.ragged.dense_wrappers import FA3RaggedPrefillWrapper
from mstarc.engine.resources.attn.ragged.wrappers import (
    FlashInferRaggedPrefillWrapper,
    PrefixedPrefillWrapper,
    RaggedCrossPrefillWrapper,
    RaggedPrefillWrapper,
    padded_head_dim,
)


def make(cls=RaggedPrefillWrapper, heads=2, kv_heads=1, dim=16, **more):
    return cls(heads, kv_heads, dim, **{"device": "cpu", "q_data_type": "float32", **more})


def tensors(rows, heads=2, kv_heads=1, dim=16, dtype=np.float32):
    return [np.ones((rows, n, dim), dtype) for n in (heads, kv_heads, kv_heads)]


# ---- construction ---------------------------------------------------------------------------------

@pytest.mark.parametrize("dim, padded", [
    (1, 64), (32, 64), (64, 64), (65, 128), (72, 128), (80, 128), (96, 128), (112, 128), (128, 128),
    (129, 256), (192, 256), (256, 256), (0, 64), (-5, 64), (-10**30, 64)])
def test_padded_head_dim(dim, padded):
    assert padded_head_dim(dim) == padded


def test_padded_head_dim_refuses():
    for dim in (257, 10**30):
        with pytest.raises(ValueError, match="256"):
            padded_head_dim(dim)
    with pytest.raises(TypeError):
        padded_head_dim(64.0)
    with pytest.raises(ValueError, match="256"):
        make(dim=257)


def test_state_that_can_be_read():
    wrapper = RaggedCrossPrefillWrapper(4, 2, 72, 3, 50, device="cpu", accelerator_graph=True)
    assert (wrapper.num_qo_heads, wrapper.num_kv_heads, wrapper.head_dim, wrapper.padded_head_dim) \
        == (4, 2, 72, 128)
    assert wrapper.sm_scale == 72 ** -0.5 and wrapper.q_data_type == mstarc.bfloat16
    assert (wrapper.max_num_segments, wrapper.max_total_tokens, wrapper.max_total_kv_tokens) == (3, 50, 50)
    assert wrapper.num_segments == 0 and wrapper.accelerator_graph and str(wrapper.device) == "cpu"
    assert make(sm_scale=0).sm_scale == 0.0
    zero = RaggedCrossPrefillWrapper(1, 1, 8, 1, 4, 0, device="cpu", accelerator_graph=True)
    assert zero.max_total_kv_tokens == 0
    with pytest.raises(ValueError, match="kv"):
        zero.plan([0, 1], [0, 1])
    eager = make(max_num_segments=1, max_total_tokens=1)
    eager.plan([0, 5, 9])  # ceilings are for graph mode
    with pytest.raises(AttributeError):
        eager.sm_scale = 1.0


def test_graph_mode_needs_its_ceilings():
    for more, name in [({}, "max_num_segments"), ({"max_num_segments": 2}, "max_total_tokens"),
                       ({"max_total_tokens": 2}, "max_num_segments"),
                       ({"max_num_segments": 0, "max_total_tokens": 2}, "max_num_segments is 0"),
                       ({"max_num_segments": -3, "max_total_tokens": 2}, "max_num_segments is -3")]:
        with pytest.raises(AssertionError, match=name):
            make(accelerator_graph=True, **more)


@pytest.mark.parametrize("more, error, message", [
    ({"heads": 0}, ValueError, "num_qo_heads"),
    ({"heads": 3, "kv_heads": 2}, ValueError, "num_kv_heads"),
    ({"dim": 0}, ValueError, "head_dim"),
    ({"heads": 2**40}, ValueError, "num_qo_heads is 1099511627776"),
    ({"heads": "2"}, TypeError, "integer"),
    ({"max_total_tokens": -1}, ValueError, "max_total_tokens is -1"),
    ({"sm_scale": float("nan")}, ValueError, "sm_scale is nan"),
    ({"sm_scale": float("inf")}, ValueError, "sm_scale is inf"),
    ({"q_data_type": "float64"}, ValueError, "float64"),
    ({"q_data_type": "float8_e4m3fn"}, NotImplementedError, "fp8"),
    ({"q_data_type": None}, ValueError, "None"),
    ({"device": "tpu"}, ValueError, "tpu"),
    ({"device": "cpu:3"}, ValueError, "cpu"),
    ({"device": "no device"}, ValueError, "no device"),
    ({"device": None}, TypeError, "device is None"),
])
def test_bad_arguments(more, error, message):
    with pytest.raises(error, match=message):
        make(**more)


def test_a_device_that_is_not_there_says_so():
    """By name; one that is there serves."""
    for name, place in (("cuda", 0), ("cuda:1", 1), (1, 1), (Named("<CUDA Device 1>"), 1)):
        try:
            there = mstarc.device_info(f"cuda:{place}")["name"] == f"cuda:{place}"
        except (RuntimeError, ValueError):
            there = False
        if there:
            assert make(device=name).info["num_segments"] == 0
            continue
        with pytest.raises((RuntimeError, ValueError), match="cuda:|NVIDIA"):
            make(device=name)


class Named:
    """As torch's dtypes and devices: all that tells what it is is its text."""

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


@pytest.mark.parametrize("given, name", [
    (Named("torch.bfloat16"), "bfloat16"), ("torch.float16", "float16"), (np.float32, "float32"),
    (np.dtype("float16"), "float16"), ("bf16", "bfloat16"), (mstarc.bfloat16, "bfloat16"),
    ("half", "float16"), (np.dtype("float32"), "float32")])
def test_dtypes(given, name):
    wrapper = make(q_data_type=given, device=Named("cpu"))
    wrapper.plan([0, 1])
    out = wrapper.run(*tensors(1))
    assert out.dtype == name and getattr(mstarc, name) == given
    assert getattr(mstarc, name) != "int32" and getattr(mstarc, name) != 3


def test_defaults_are_equal_to_names_of_others():
    assert mstarc.device("cuda") == Named("cuda") and mstarc.device("cuda:0") != "cuda"
    assert mstarc.device(1) == "cuda:1" and mstarc.device("cuda:01").index == 1
    assert {mstarc.bfloat16: 1}[mstarc.bfloat16] == 1 and mstarc.bfloat16 != mstarc.float16
    import copy
    import pickle
    for value in (mstarc.float32, mstarc.device("cuda:2")):
        assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)


# ---- plan -----------------------------------------------------------------------------------------

OFFSETS = [[0, 2, 5], (0, 2, 5), range(0, 6, 5), np.array([0, 2, 5], np.int32),
           np.array([0, 2, 5], np.int64), np.array([0, 9, 2, 9, 5, 9], np.int16)[::2],
           np.array([5, 2, 0], np.uint8)[::-1], np.array([0, 5], np.uint64),
           array.array("i", [0, 5]), memoryview(array.array("q", [0, 5])),
           [np.int64(0), np.int32(5)], [0] * 400 + [5]]


@pytest.mark.parametrize("offsets", OFFSETS, ids=lambda x: type(x).__name__)
def test_offsets_that_are_accepted(offsets):
    wrapper = make()
    assert wrapper.plan(offsets) is None
    assert wrapper.num_segments == len(offsets) - 1
    assert wrapper.info["num_tokens"] == 5 and wrapper.info["offset_syncs"] == 0


def test_lengths_of_64_bits():
    """BR-095: 64-bit offsets are read as such, value by value, and one that 32 bits do not hold is
    refused: nothing is ever taken for an array of 32-bit ones."""
    q, kv = [0, 1, 2], [0, 5, 14]
    rng = np.random.default_rng(95)
    values = [rng.standard_normal((rows, 8, 64), np.float32) for rows in (2, 14, 14)]
    for cls in (RaggedCrossPrefillWrapper, PrefixedPrefillWrapper):
        wrapper = cls(8, 8, 64, device="cpu", q_data_type="float32")
        results = []
        for dtype in (np.int32, np.int64, np.uint64):
            wrapper.plan(np.array(q, dtype), np.array(kv, dtype))
            results.append(np.asarray(wrapper.run(*values)))
        assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
        assert np.abs(results[0]).max(axis=(1, 2)).min() > 0  # the second sequence too
        for side in ((np.array([0, 1, 2**32 + 2]), kv), (q, np.array([0, 5, 2**32 + 14]))):
            with pytest.raises(ValueError, match="4294967"):
                wrapper.plan(*side)


@pytest.mark.parametrize("offsets, error, message", [
    ([], ValueError, "empty"), ([1, 2], ValueError, "0"), ([0, 3, 2], ValueError, "2"),
    ([0, 2**31], ValueError, r"\[1\] is 2147483648"), ([0, -1], ValueError, r"\[1\] is -1"),
    ([0, 10**30], ValueError, r"\[1\] is 1000000000000000000"),
    (np.array([0, 2**31]), ValueError, r"\[1\] is 2147483648"),
    (np.array([0, 2**64 - 1], np.uint64), ValueError, r"\[1\]"),
    ([0, 2.0], TypeError, r"\[1\] is 2.0"), (["0"], TypeError, "integers"),
    (np.array([0.0, 2.0]), TypeError, "float64"), (np.array([False, True]), TypeError, "bool"),
    (np.array([[0, 2]]), ValueError, "2 dimensions"), (np.array(0), ValueError, "0 dimensions"),
    ("02", TypeError, "str"), (b"\0\2", TypeError, "bytes"), (None, TypeError, "NoneType"),
    (5, TypeError, "int"), (iter([0, 2]), TypeError, "iterator"),
    ({0, 2}, TypeError, "set"), (np.array(["a"]), TypeError, "format"),
])
def test_offsets_that_are_refused(offsets, error, message):
    wrapper = make()
    wrapper.plan([0, 3])
    with pytest.raises(error, match=message):
        wrapper.plan(offsets)
    assert wrapper.num_segments == 1  # the former plan stays in force
    assert wrapper.run(*tensors(3)).shape == (3, 2, 16)


def test_pairs_of_layouts():
    for cls in (RaggedCrossPrefillWrapper, PrefixedPrefillWrapper):
        wrapper = make(cls)
        with pytest.raises(ValueError, match="2.*1|1.*2"):
            wrapper.plan([0, 1, 2], [0, 2])
        with pytest.raises(ValueError, match="kv_cu_seqlens"):
            wrapper.plan([0, 1], [0, -2])
        with pytest.raises(TypeError):
            wrapper.plan([0, 1])
    with pytest.raises(TypeError):
        make(RaggedCrossPrefillWrapper).plan([0, 1], [0, 1], True)
    with pytest.raises(TypeError):
        make().plan([0, 1], [0, 1], False)


def test_ceilings():
    wrapper = make(max_num_segments=2, max_total_tokens=10, accelerator_graph=True)
    for offsets, message in [([0, 1, 2, 3], "3.*2"), ([0, 11], "11.*10")]:
        with pytest.raises(ValueError, match=message):
            wrapper.plan(offsets)
    wrapper.plan([0, 10])
    with pytest.raises(AssertionError, match="q has 11 rows; max_total_tokens is 10"):
        wrapper.run(*tensors(11))


# ---- run ------------------------------------------------------------------------------------------

def test_run_before_plan():
    with pytest.raises(RuntimeError, match="plan"):
        make().run(*tensors(3))


@pytest.mark.parametrize("place, change, error, message", [
    (0, lambda x: x[:2], ValueError, "q"), (1, lambda x: x[:2], ValueError, "k"),
    (2, lambda x: x[:2], ValueError, "v"), (0, lambda x: x[:, :1], ValueError, "q"),
    (1, lambda x: x[..., :8], ValueError, "k"), (2, lambda x: x[0], ValueError, "v has 2 dimensions"),
    (0, lambda x: x.tolist(), TypeError, "q is a <class 'list'>"),
    (0, lambda x: None, TypeError, "q is a <class 'NoneType'>"),
    (1, lambda x: x.astype(complex), TypeError, "k has elements of format 'Zd'"),
    (2, lambda x: x.astype("U1"), TypeError, "v has elements of format"),
    (2, lambda x: x.astype(">f4"), TypeError, "v has elements of format '>f'"),
    (1, lambda x: x.astype("uint16"), TypeError, "k has dtype uint16"),
    (0, lambda x: np.zeros((3, 2, 16), [("a", "f4"), ("b", "i1")])["a"], ValueError, "stride"),
    (0, lambda x: np.zeros([1] * 9 + [3]), ValueError, "9 dimensions|10 dimensions"),
])
def test_bad_tensors(place, change, error, message):
    wrapper = make()
    wrapper.plan([0, 3])
    given = tensors(3)
    given[place] = change(given[place])
    with pytest.raises(error, match=message):
        wrapper.run(*given)
    assert wrapper.run(*tensors(3)).shape == (3, 2, 16)


def test_read_only_inputs_and_misaligned_memory():
    wrapper = make()
    wrapper.plan([0, 3])
    q, k, v = tensors(3)
    want = wrapper.run(q, k, v)
    for x in (q, k, v):
        x.flags.writeable = False
    raw = np.zeros(q.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(q.shape)
    odd[:] = q
    for first in (q, odd, q.astype(np.float64)):
        out = wrapper.run(first, k, v)
        assert out.tobytes() == want.tobytes() and out.flags.writeable and out.flags.owndata


def test_outputs_are_new_memory():
    wrapper = make(max_num_segments=1, max_total_tokens=4, accelerator_graph=True)
    wrapper.plan([0, 3])
    q, k, v = tensors(4)
    first = wrapper.run(q, k, v)
    kept = first.copy()
    second = wrapper.run(q + 1, k, v * 2)
    assert not np.shares_memory(first, second) and (first == kept).all()


def test_signature_of_run():
    wrapper = make()
    wrapper.plan([0, 3])
    q, k, v = tensors(3)
    assert list(inspect.signature(wrapper.run).parameters) == ["q", "k", "v"]
    assert wrapper.run(v=v, k=k, q=q).shape == (3, 2, 16)
    with pytest.raises(TypeError):
        wrapper.run(q, k)


# ---- FlashInfer's constructor ---------------------------------------------------------------------

def test_workspaces():
    need = make().info["workspace_bytes"]

    def flash(workspace, **more):
        return FlashInferRaggedPrefillWrapper(workspace, 2, 1, 16, device="cpu",
                                              q_data_type="float32", **more)
    for workspace in (np.zeros(need + 64, np.uint8), bytearray(need + 64), None,
                      np.zeros(need // 4 + 16, np.float32), np.zeros((2, need + 64), np.int8)[1:]):
        wrapper = flash(workspace)
        wrapper.plan([0, 3])
        assert (wrapper.run(*tensors(3)) == 1).all()
    for workspace, error, message in [
            (np.zeros(need // 2, np.uint8), ValueError, f"needs {need}"),
            (np.zeros(0, np.uint8), ValueError, f"needs {need}"),
            (bytes(need + 64), ValueError, "read-only"), ("text", TypeError, "workspace_buffer"),
            (np.zeros((need, 2), np.uint8)[:, 0], ValueError, "contiguous")]:
        with pytest.raises(error, match=message):
            flash(workspace)
    held = bytearray(need + 64)
    wrapper = flash(held)
    with pytest.raises(BufferError):
        held.append(0)  # it cannot move while the wrapper may write to it
    del wrapper
    gc.collect()
    held.append(0)


def test_kernels_by_name():
    def flash(**more):
        return FlashInferRaggedPrefillWrapper(None, 2, 1, 16, device="cpu", **more)
    assert "scalar" in flash(backend="reference").info["kernel"]
    for backend in ("auto", "native"):
        flash(backend=backend)
    for backend in ("fa2", "fa3", "flashinfer", "cutlass"):
        with pytest.raises((NotImplementedError, ValueError), match=backend):
            flash(backend=backend)
    with pytest.raises(NotImplementedError, match="fa3") as refused:
        flash(backend="fa3")
    reason = FA3RaggedPrefillWrapper(2, 1, 16, device="cpu").info["kernel_reason"]
    assert reason == f"{flash().info['kernel_reason']}; not fa3: {refused.value}"
    for layout in ("NDH", "", "nhd"):
        with pytest.raises(ValueError, match="kv_layout"):
            flash(kv_layout=layout)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_segments'"):
        flash(max_segments=3)
    with pytest.raises(TypeError):
        FlashInferRaggedPrefillWrapper(None, 2, 1, 16, "NHD")


# ---- threads and memory ---------------------------------------------------------------------------

def test_threads_share_a_wrapper(rng):
    """Plans and runs of several threads on one object: each waits, none breaks another's."""
    wrapper = make(max_num_segments=1, max_total_tokens=64, accelerator_graph=True)
    q, k, v = (rng.standard_normal(x.shape).astype(np.float32) for x in tensors(64))
    wrapper.plan([0, 64])
    want = wrapper.run(q, k, v).tobytes()
    got = []

    def work():
        for _ in range(50):
            wrapper.plan([0, 64])
            got.append(wrapper.run(q, k, v).tobytes() == want)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 200 and all(got)


def test_the_interpreter_goes_on_during_run():
    """While one thread computes, another one counts: the lock is released."""
    wrapper = make(heads=8, kv_heads=8, dim=128)
    wrapper.plan([0, 3000])
    q, k, v = tensors(3000, 8, 8, 128)
    counts, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counts[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counts[0]
        wrapper.run(q, k, v)
        assert counts[0] > before
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("graph", [False, True])
def test_nothing_leaks(graph):
    more = dict(max_num_segments=3, max_total_tokens=9, accelerator_graph=True) if graph else {}

    def once():
        wrapper = make(**more)
        wrapper.plan([0, 3, 9])
        wrapper.run(*tensors(9, dtype=np.float64))
        for bad in (lambda: wrapper.plan([1]), lambda: wrapper.run(1, 2, 3), lambda: make(heads=0),
                    lambda: wrapper.run(*tensors(2))):
            with pytest.raises((ValueError, TypeError)):
                bad()

    once()
    gc.collect()
    before = mstarc.memory_info()
    objects = len(gc.get_objects())
    for _ in range(50):
        once()
    gc.collect()
    after = mstarc.memory_info()
    assert (after["live_bytes"], after["live_allocations"]) == (before["live_bytes"],
                                                                 before["live_allocations"])
    assert len(gc.get_objects()) < objects + 50
    assert wrappers is not None
