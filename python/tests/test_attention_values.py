"""Values of the wrappers against float64, over random layouts, dims, dtypes and modes."""
import numpy as np
import pytest
from attention_reference import attention, check, rounded
from hypothesis import given
from hypothesis import strategies as st

import mstarc
from mstarc.engine.resources.attn.ragged import dense_wrappers, wrappers

DTYPES = ["float32", "bfloat16", "float16"]
KINDS = ["RaggedPrefillWrapper", "RaggedCrossPrefillWrapper", "PrefixedPrefillWrapper"]


def as_float32(out):
    return out.to("float32").numpy() if isinstance(out, mstarc.Tensor) else np.asarray(out, np.float32)


def offsets(lengths):
    return [0, *np.cumsum(lengths, dtype=int).tolist()]


@st.composite
def problems(draw):
    kv_heads = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(KINDS))
    segments = draw(st.integers(0, 5))
    length = st.integers(0, 40) | st.sampled_from([1, 63, 64, 65, 130])
    q_lengths = [draw(length) for _ in range(segments)]
    if kind == "RaggedPrefillWrapper":
        kv_lengths = q_lengths
    elif kind == "PrefixedPrefillWrapper":
        kv_lengths = [n + draw(length) for n in q_lengths]
    else:
        kv_lengths = [draw(length) for _ in q_lengths]
    return dict(
        kind=kind, heads=kv_heads * draw(st.integers(1, 3)), kv_heads=kv_heads,
        dim=draw(st.integers(1, 32) | st.sampled_from([64, 72, 80, 128, 129, 256])),
        q_lengths=q_lengths, kv_lengths=kv_lengths, dtype=draw(st.sampled_from(DTYPES)),
        causal=draw(st.booleans()) and kind != "RaggedCrossPrefillWrapper",
        graph=draw(st.booleans()), scale=draw(st.sampled_from([None, 0.0, 0.3, -0.2])),
        spare=draw(st.integers(0, 3)), layout=draw(st.sampled_from(["NHD", "HND"])),
        given=draw(st.sampled_from(["float32", "float64", "float16"])),
        strided=draw(st.booleans()), seed=draw(st.integers(0, 2**32 - 1)))


def make_tensor(rng, problem, rows, heads):
    """Values of the caller's dtype, as a view with strides where the problem says so."""
    values = rng.standard_normal((rows, heads, problem["dim"])).astype(problem["given"])
    if not problem["strided"]:
        return values
    wide = np.full((2 * rows, heads + 1, 2 * problem["dim"] + 1), np.nan, problem["given"])
    view = wide[::2, 1:, 1::2][::-1]
    view[:] = values
    return view


def make_wrapper(problem):
    ceilings = dict(max_num_segments=len(problem["q_lengths"]) + 1,
                    max_total_tokens=sum(problem["q_lengths"]) + problem["spare"],
                    max_total_kv_tokens=sum(problem["kv_lengths"]) + problem["spare"],
                    accelerator_graph=True) if problem["graph"] else {}
    cls = getattr(wrappers, "FlashInfer" + problem["kind"])
    wrapper = cls(np.empty(1 << 22, np.uint8), problem["heads"], problem["kv_heads"], problem["dim"],
                  kv_layout=problem["layout"], device="cpu", sm_scale=problem["scale"],
                  q_data_type=problem["dtype"], **ceilings)
    layouts = [offsets(problem["q_lengths"])]
    if problem["kind"] != "RaggedPrefillWrapper":
        layouts.append(offsets(problem["kv_lengths"]))
    if problem["kind"] != "RaggedCrossPrefillWrapper":
        layouts.append(problem["causal"])
    wrapper.plan(*layouts)
    return wrapper


@given(problems())
def test_any_problem(problem):
    rng = np.random.default_rng(problem["seed"])
    q_offsets, kv_offsets = offsets(problem["q_lengths"]), offsets(problem["kv_lengths"])
    wrapper = make_wrapper(problem)
    q = make_tensor(rng, problem, q_offsets[-1] + problem["spare"], problem["heads"])
    k, v = (make_tensor(rng, problem, kv_offsets[-1] + problem["spare"], problem["kv_heads"])
            for _ in range(2))
    for x, end in ((q, q_offsets[-1]), (k, kv_offsets[-1]), (v, kv_offsets[-1])):
        x[end:] = np.nan  # no row past the plan may be read
    hnd = problem["layout"] == "HND"
    out = wrapper.run(q, *(x.transpose(1, 0, 2) if hnd else x for x in (k, v)))
    assert isinstance(out, mstarc.Tensor if problem["dtype"] == "bfloat16" else np.ndarray)
    assert out.dtype == problem["dtype"]
    scale = problem["dim"] ** -0.5 if problem["scale"] is None else problem["scale"]
    assert wrapper.sm_scale == scale and wrapper.num_segments == len(problem["q_lengths"])
    want, bound = attention(np.nan_to_num(q), np.nan_to_num(k), np.nan_to_num(v), q_offsets,
                            kv_offsets, problem["causal"], scale, problem["dtype"])
    got = as_float32(out)
    check(got, want, bound)
    assert not got[q_offsets[-1]:].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_segment_has_the_same_bits_alone(dtype, rng):
    lengths = [5, 0, 33, 1, 64]
    q = rng.standard_normal((sum(lengths), 4, 24)).astype(np.float32)
    k, v = (rng.standard_normal((sum(lengths), 2, 24)).astype(np.float32) for _ in range(2))
    eager = wrappers.RaggedPrefillWrapper(4, 2, 24, device="cpu", q_data_type=dtype)
    graph = wrappers.RaggedPrefillWrapper(4, 2, 24, 7, 200, device="cpu", accelerator_graph=True,
                                          q_data_type=dtype)
    eager.plan(offsets(lengths), causal=True)
    graph.plan(offsets(lengths), causal=True)
    together = as_float32(eager.run(q, k, v))
    assert together.tobytes() == as_float32(graph.run(q, k, v)).tobytes()
    begin = 0
    for length in lengths:
        part = slice(begin, begin + length)
        eager.plan([0, length], causal=True)
        assert as_float32(eager.run(q[part], k[part], v[part])).tobytes() == together[part].tobytes()
        begin += length


def test_rows_that_see_no_key_are_zero(rng):
    q = rng.standard_normal((5, 1, 16)).astype(np.float32)
    kv = rng.standard_normal((2, 1, 16)).astype(np.float32)
    wrapper = wrappers.PrefixedPrefillWrapper(1, 1, 16, device="cpu", q_data_type="float32")
    wrapper.plan([0, 4, 5], [0, 2, 2], causal=True)
    out = wrapper.run(q, kv, kv)
    assert not out[:2].any() and out[2:4].any(axis=(1, 2)).all() and not out[4].any()


def test_graph_mode_replans_and_clears_the_tail(rng):
    """Large, small, large: nothing of an earlier layout or of the caller's tail comes through."""
    wrapper = wrappers.RaggedPrefillWrapper(2, 2, 72, 4, 512, device="cpu", accelerator_graph=True,
                                            q_data_type="float32")
    x = rng.standard_normal((512, 2, 72)).astype(np.float32)
    primed = wrapper.run(x, x, x)  # planned at its ceilings: 4 segments of 128
    want, bound = attention(x, x, x, [0, 128, 256, 384, 512], [0, 128, 256, 384, 512], False,
                            72 ** -0.5, "float32")
    check(primed, want, bound)
    assert wrapper.num_segments == 0
    for lengths in ([128] * 4, [100, 60, 30, 20], [100, 60, 30, 0], [190, 20, 0, 0], [7], [64] * 4) * 2:
        cu = offsets(lengths)
        x = rng.standard_normal((512, 2, 72)).astype(np.float32)
        x[cu[-1]:] = np.nan
        wrapper.plan(np.array(cu, np.int64))
        out = wrapper.run(x, x, x)
        want, bound = attention(np.nan_to_num(x), np.nan_to_num(x), np.nan_to_num(x), cu, cu, False,
                                72 ** -0.5, "float32")
        check(out, want, bound)
        assert not out[cu[-1]:].any() and wrapper.num_segments == len(lengths)


def test_fa3_siblings_agree(rng):
    x = rng.standard_normal((9, 2, 40)).astype(np.float32)
    base = wrappers.RaggedPrefillWrapper(2, 2, 40, device="cpu", q_data_type="float32")
    sibling = dense_wrappers.FA3RaggedPrefillWrapper(2, 2, 40, device="cpu", q_data_type="float32")
    for wrapper in (base, sibling):
        wrapper.plan([0, 4, 9])
    assert base.run(x, x, x).tobytes() == sibling.run(x, x, x).tobytes()


@pytest.mark.parametrize("given_dtype", ["int8", "int16", "int32", "int64", "uint8", "bool", "float64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_casts(given_dtype, dtype, rng):
    """One rounding from any dtype: with one key the output is v as it was cast."""
    x = (rng.standard_normal((6, 1, 300 % 256)) * 90).astype(given_dtype)
    wrapper = wrappers.RaggedPrefillWrapper(1, 1, x.shape[2], device="cpu", q_data_type=dtype,
                                            sm_scale=0.0)
    wrapper.plan(list(range(7)))
    assert (as_float32(wrapper.run(x, x, x)) == rounded(x, dtype)).all()


def test_a_broken_reference_is_noticed(rng):
    """The check itself: a neighbour's rows, a wrong scale and a NaN all fail it."""
    x = rng.standard_normal((8, 1, 16)).astype(np.float32)
    wrapper = wrappers.RaggedPrefillWrapper(1, 1, 16, device="cpu", q_data_type="float32")
    wrapper.plan([0, 3, 8])
    out = wrapper.run(x, x, x)
    for cu, scale in (([0, 4, 8], 0.25), ([0, 3, 8], 0.26)):
        with pytest.raises(AssertionError):
            check(out, *attention(x, x, x, cu, cu, False, scale, "float32"))
    out[0, 0, 0] = np.nan
    with pytest.raises(AssertionError):
        check(out, *attention(x, x, x, [0, 3, 8], [0, 3, 8], False, 0.25, "float32"))
