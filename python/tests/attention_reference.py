"""Ragged attention in float64 from its definition, with a bound on the error of each element.

u = 2^-24, gamma(n) = n u. A score's error is E = gamma(D + 4) |scale| sum |q||k|; weights then move
by a factor of at most exp(2 E), sums over n keys by gamma(2 n + 16), and the result is rounded to
its dtype. Levels that multiply pairs of bf16 also round each weight to bf16, and a GPU's tensor cores
take weights in the dtype of v: half an ulp of each, or half the least step of f16.
"""
import numpy as np

UNIT = 2.0 ** -24
HALF_ULP = {"float32": 2.0 ** -24, "bfloat16": 2.0 ** -8, "float16": 2.0 ** -11}
SMALLEST = {"float32": 2.0 ** -126, "bfloat16": 2.0 ** -126, "float16": 2.0 ** -25}


def bf16(values):
    """float32 rounded to bfloat16 (nearest, ties to even), as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return bits.astype(np.uint32).view(np.float32).reshape(np.shape(values))


def rounded(values, dtype):
    """What the wrapper's cast makes of values."""
    values = np.asarray(values).astype(np.float32)
    return {"float32": values, "float16": values.astype(np.float16).astype(np.float32),
            "bfloat16": bf16(values)}[dtype].astype(np.float64)


def attention(q, k, v, q_offsets, kv_offsets, causal, scale, dtype, tensor_cores=False):
    """out [T, H, D] and its bound; q, k, v hold any floats and are rounded to dtype first."""
    rounds = dtype == "bfloat16" or (tensor_cores and dtype == "float16")
    weight_ulp, weight_step = (HALF_ULP[dtype], SMALLEST[dtype]) if rounds else (0.0, 0.0)
    q, k, v = (rounded(x, dtype) for x in (q, k, v))
    heads, group, dim = q.shape[1], q.shape[1] // k.shape[1], q.shape[2]
    out = np.zeros((q.shape[0], heads, dim))
    bound = np.zeros_like(out)
    for begin, end, kv_begin, kv_end in zip(q_offsets[:-1], q_offsets[1:], kv_offsets[:-1],
                                            kv_offsets[1:]):
        rows, keys = end - begin, kv_end - kv_begin
        if rows == 0 or keys == 0:
            continue
        visible = np.ones((rows, keys), bool)
        if causal:
            visible = np.arange(keys)[None, :] <= keys - rows + np.arange(rows)[:, None]
        for head in range(heads):
            qs = q[begin:end, head]
            ks, vs = k[kv_begin:kv_end, head // group], v[kv_begin:kv_end, head // group]
            scores = np.where(visible, scale * (qs @ ks.T), -np.inf)
            seen = visible.any(1)
            top = np.where(seen, scores.max(1), 0)
            weights = np.exp(scores - top[:, None])
            weights /= np.where(seen, weights.sum(1), 1)[:, None]
            error = (dim + 4) * UNIT * abs(scale) * np.where(
                visible, np.abs(qs) @ np.abs(ks).T, 0).max(1)
            magnitude = weights @ np.abs(vs)
            moved = np.expm1(2 * error + 16 * UNIT)[:, None] + (2 * keys + 16) * UNIT
            out[begin:end, head] = weights @ vs
            bound[begin:end, head] = (moved + weight_ulp) * magnitude + \
                weight_step * visible @ np.abs(vs)
    bound += HALF_ULP[dtype] * (np.abs(out) + bound) + 2 * SMALLEST[dtype]
    return out, bound


def check(got, want, bound):
    """NaN fails, and so does a wrong shape."""
    assert got.shape == want.shape
    wrong = ~(np.abs(got.astype(np.float64) - want) <= bound)
    assert not wrong.any(), (np.argwhere(wrong)[:3], got[wrong][:3], want[wrong][:3])
