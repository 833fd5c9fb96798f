"""The package on jax's arrays on the CPU. Needs jax, which the other tests do without:
pytest python/tests/with_jax.
"""
import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import mstarc  # noqa: E402
from mstarc import ops  # noqa: E402
from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper  # noqa: E402

DTYPES = ["float32", "bfloat16", "float16"]


@pytest.fixture(autouse=True)
def on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def qkv(dtype, rng):
    return [jnp.asarray(rng.standard_normal((9, n, 24)), dtype=dtype) for n in (4, 2, 2)]


def wide(array):
    return np.asarray(array.astype("float32"), dtype="float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(dtype, rng):
    wrapper = RaggedPrefillWrapper(4, 2, 24, device=jax.devices("cpu")[0], q_data_type=jnp.dtype(dtype))
    for offsets in (jnp.array([0, 4, 9]), [0, 4, 9], jnp.array([0, 4, 9], dtype="int8")):
        wrapper.plan(offsets)
    q, k, v = qkv(dtype, rng)
    out = wrapper.run(q, k, v)
    assert isinstance(out, jax.Array) and out.dtype == dtype and out.shape == (9, 4, 24)
    plain = wrapper.run(*(np.asarray(x.astype("float32")) for x in (q, k, v)))
    assert (wide(out) == np.array(plain.tolist())).all()
    fused = jnp.concatenate([q, k, v], axis=1)
    for again in (wrapper.run(fused[:, :4], fused[:, 4:6], fused[:, 6:]),
                  wrapper.run(*(x.astype("float32") for x in (q, k, v))),
                  wrapper.run(jnp.swapaxes(jnp.swapaxes(q, 0, 2), 0, 2), k, v)):
        assert again.dtype == dtype and (again == out).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations(dtype, rng):
    x = qkv(dtype, rng)[0].reshape(9, 96)
    for made in (ops.normalize(x), ops.Linear(jnp.ones((5, 96), dtype=dtype))(x), ops.activate(x, "relu"),
                 ops.pooling(x, jnp.array([0, 4, 9]))):
        assert isinstance(made, jax.Array) and made.dtype == dtype
    assert (wide(ops.activate(x, "relu")) == np.maximum(wide(x), 0)).all()
    assert isinstance(ops.embedding(x, jnp.array([1, 2])), jax.Array)
    with pytest.raises(ValueError, match="read-only"):  # jax's arrays never change
        ops.normalize(x, out=jnp.zeros_like(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_ours(dtype, rng):
    x = qkv(dtype, rng)[0]
    ours = mstarc.tensor(x)
    assert ours.dtype == dtype and (jnp.from_dlpack(ours) == x).all()
