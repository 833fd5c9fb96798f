"""The package on jax's arrays on cuda:0: run_on_a_gpu.py runs this where jax finds a GPU."""
import os

import numpy as np
import pytest
from attention_reference import attention, check
from gpu_mark import needs_a_gpu

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # not most of the card's memory at once
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import mstarc  # noqa: E402
from mstarc import ops  # noqa: E402
from mstarc.engine.accelerator_graph_config import PackedAcceleratorGraphConfig  # noqa: E402
from mstarc.engine.accelerator_graph_runner import AcceleratorGraphRunner  # noqa: E402
from mstarc.engine.resources.attn.ragged.wrappers import (  # noqa: E402
    PrefixedPrefillWrapper,
    RaggedCrossPrefillWrapper,
    RaggedPrefillWrapper,
)
from mstarc.model.submodule_base import NodeInputs, Submodule  # noqa: E402


def gpus():
    try:
        return jax.devices("gpu")
    except RuntimeError:
        return []


pytestmark = needs_a_gpu("jax", bool(gpus()))

GPU = "cuda:0"
DTYPES = ["float32", "bfloat16", "float16"]
KINDS = [RaggedPrefillWrapper, RaggedCrossPrefillWrapper, PrefixedPrefillWrapper]


@pytest.fixture(autouse=True)
def on_the_gpu():
    with jax.default_device(gpus()[0]):
        yield


def is_there(array):
    return isinstance(array, jax.Array) and {place.platform for place in array.devices()} == {"gpu"}


def wide(array):
    return np.asarray(array.astype("float32"), dtype="float64")


def qkv(dtype, rows, kv_rows, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal((n, heads, 64)).astype("float32")).astype(dtype)
            for n, heads in ((rows, 4), (kv_rows, 2), (kv_rows, 2))]


@pytest.mark.parametrize("cls", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(cls, dtype):
    wrapper = cls(4, 2, 64, device=gpus()[0], q_data_type=jnp.dtype(dtype))
    q_offsets = np.array([0, 5, 5, 130])
    kv_offsets = q_offsets if cls is RaggedPrefillWrapper else np.array([0, 9, 12, 200])
    causal = cls is not RaggedCrossPrefillWrapper
    given = [q_offsets] if cls is RaggedPrefillWrapper else [q_offsets, jnp.asarray(kv_offsets)]
    wrapper.plan(*given, **({"causal": True} if causal else {}))
    assert wrapper.info["offset_syncs"] == len(given) - 1
    q, k, v = qkv(dtype, 133, kv_offsets[-1])
    out = wrapper.run(q, k, v)
    assert is_there(out) and out.dtype == dtype and out.shape == (133, 4, 64)
    assert wrapper.info["input_syncs"] == 1
    want, bound = attention(*map(wide, (q, k, v)), q_offsets, kv_offsets, causal, 64 ** -0.5, dtype,
                            tensor_cores=True)
    check(wide(out)[:130], want[:130], bound[:130] if np.ndim(bound) else bound)
    assert not wide(out)[130:].any()
    for again in (wrapper.run(*(x.astype("float32") for x in (q, k, v))),
                  wrapper.run(*(jnp.swapaxes(jnp.swapaxes(x, 0, 2), 0, 2) for x in (q, k, v)))):
        assert again.dtype == dtype and (again == out).all()


def test_memory_is_read_before_jax_gives_it_away():
    """Inputs that nobody else refers to; what jax makes next may lie where they did."""
    wrapper = RaggedPrefillWrapper(4, 2, 64, device=GPU, q_data_type="float32")
    wrapper.plan([0, 4096])
    arrays = qkv("float32", 4096, 4096)
    want = wrapper.run(*arrays)
    for turn in range(20):
        out = wrapper.run(*(x * 1.0 for x in arrays))
        junk = [jnp.full(x.shape, float(turn)) for x in arrays * 3]
        assert (out == want).all()
        del junk


def test_operations():
    rng = np.random.default_rng(1)
    x, weight = (jnp.asarray(rng.standard_normal(shape).astype("float32")) for shape in ((9, 32), (48, 32)))
    linear = ops.Linear(weight)
    made = linear(x)
    assert is_there(made) and np.abs(wide(made) - wide(x) @ wide(weight).T).max() < 1e-4
    assert (ops.activate(x, "relu") == jnp.maximum(x, 0)).all()
    assert (ops.embedding(x, jnp.array([1, 2], dtype="int32")) == x[1:3]).all()
    pooled = ops.pooling(x, jnp.array([0, 4, 9]))
    assert is_there(pooled) and np.abs(wide(pooled)[0] - wide(x)[:4].mean(0)).max() < 1e-6
    half = ops.normalize(x.astype("bfloat16"))
    assert is_there(half) and half.dtype == "bfloat16"
    with pytest.raises(ValueError, match="read-only"):  # jax's arrays never change
        ops.normalize(x, out=jnp.zeros_like(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_ours(dtype):
    x = qkv(dtype, 9, 9)[0]
    for device in (GPU, "cpu"):
        ours = mstarc.tensor(x, device=device)
        assert ours.dtype == dtype and (ours.cpu().to("float32").numpy() == wide(x)).all()
    back = jnp.from_dlpack(mstarc.tensor(x, device=GPU))
    assert is_there(back) and (back == x).all()


def test_arrays_of_another_device():
    wrapper = RaggedPrefillWrapper(4, 2, 64, device=GPU, q_data_type="float32")
    wrapper.plan([0, 9])
    q, k, v = qkv("float32", 9, 9)
    with pytest.raises(ValueError, match="k lies on DLPack device"):
        wrapper.run(q, jax.device_put(k, jax.devices("cpu")[0]), v)
    assert is_there(wrapper.run(q, k, v))


def test_inputs_of_a_runner():
    class Network(Submodule):
        def preprocess(self, engine_inputs, inputs):
            return {"x": jnp.concatenate([one.tensor_inputs["x"] for one in inputs]) * 1.0}

        def forward_batched(self, engine_inputs, tensors):
            return ops.activate(tensors["x"], "relu")

    def row(n):
        return NodeInputs({"x": jnp.asarray(np.random.default_rng(n).standard_normal((n, 8)), "float32")},
                          input_seq_len=n)

    config = PackedAcceleratorGraphConfig("walk", [8, 16], row, capture_batch_sizes=[2])
    runner = AcceleratorGraphRunner(Network(), [config], device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 2, runner.failures
    for lengths in ([3, 4], [8, 8], [1, 9]):
        inputs = [row(n) for n in lengths]
        want = np.maximum(np.concatenate([wide(one.tensor_inputs["x"]) for one in inputs]), 0)
        for eager in (False, True):
            result = runner.run("walk", ["a", "b"], inputs, eager=eager)
            assert result.replayed is not eager
            assert (result["x"].cpu().numpy() == want).all()
