"""The wrappers and the runners on cupy's arrays on cuda:0. Needs cupy and a card: run_on_a_gpu.py runs
this where cupy is installed.
"""
import numpy as np
import pytest
from gpu_mark import needs_a_gpu

cupy = pytest.importorskip("cupy")

from mstarc import ops  # noqa: E402
from mstarc.engine.accelerator_graph_config import PackedAcceleratorGraphConfig  # noqa: E402
from mstarc.engine.accelerator_graph_runner import AcceleratorGraphRunner  # noqa: E402
from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper  # noqa: E402
from mstarc.model.submodule_base import NodeInputs, Submodule  # noqa: E402

pytestmark = needs_a_gpu("cupy", cupy.cuda.is_available())

GPU = "cuda:0"


def qkv():
    rng = np.random.default_rng(3)
    return [cupy.asarray(rng.standard_normal((9, n, 64)).astype("float16")) for n in (4, 2, 2)]


def test_a_wrapper():
    wrapper = RaggedPrefillWrapper(4, 2, 64, device=GPU, q_data_type="float16")
    arrays = qkv()
    wrapper.plan([0, 4, 9])
    out = wrapper.run(*arrays)
    assert type(out) is cupy.ndarray and out.dtype == "float16"
    wrapper.plan(cupy.asarray([0, 4, 9]))
    assert wrapper.info["offset_syncs"] == 1
    assert (wrapper.run(*arrays) == out).all()
    wide = wrapper.run(*(x.astype("float32") for x in arrays))
    assert (wide == out).all()
    fused = cupy.concatenate(arrays, axis=1)
    views = [fused[:, :4], fused[:, 4:6], fused[:, 6:]]
    assert (wrapper.run(*views) == out).all()
    turned = [cupy.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0) for x in arrays]
    assert (wrapper.run(*turned) == out).all()
    assert wrapper.info["input_syncs"] == 0


def test_dtypes_without_bfloat16():
    """Where cupy has no bfloat16, the default dtype, a TypeError says so."""
    wrapper = RaggedPrefillWrapper(4, 2, 64, device=GPU)
    wrapper.plan([0, 4, 9])
    if hasattr(cupy, "bfloat16"):
        assert wrapper.run(*qkv()).dtype == cupy.bfloat16
    else:
        with pytest.raises(TypeError, match="bfloat16"):
            wrapper.run(*qkv())


def test_the_callers_stream():
    wrapper = RaggedPrefillWrapper(4, 2, 64, device=GPU, q_data_type="float16")
    arrays = qkv()
    wrapper.plan([0, 4, 9])
    want = wrapper.run(*arrays) * 2
    cupy.cuda.get_current_stream().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        wrapper.plan([0, 4, 9])
        late = wrapper.run(*(x + 0 for x in arrays)) * 2
    stream.synchronize()
    assert (late == want).all()


def test_operations():
    x = cupy.asarray(np.random.default_rng(1).standard_normal((5, 8)).astype("float32"))
    out = ops.activate(x, "relu")
    assert type(out) is cupy.ndarray and (out == cupy.maximum(x, 0)).all()


class Network(Submodule):
    def preprocess(self, engine_inputs, inputs):
        return {"x": cupy.concatenate([one.tensor_inputs["x"] for one in inputs])}

    def forward_batched(self, engine_inputs, tensors):
        assert type(tensors["x"]) is cupy.ndarray
        return {"x": ops.activate(tensors["x"] * 2 + 1, "relu") - 1}


def inputs(n):
    x = np.random.default_rng(n).standard_normal((n, 8)).astype("float32")
    return NodeInputs({"x": cupy.asarray(x)}, input_seq_len=n)


def test_cupy_callables_are_captured():
    config = PackedAcceleratorGraphConfig("walk", [8, 16], inputs, capture_batch_sizes=[2])
    runner = AcceleratorGraphRunner(Network(), [config], device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 2, runner.failures
    for lengths in ([3, 4], [8, 8], [1, 9]):
        given = [inputs(n) for n in lengths]
        x = cupy.concatenate([one.tensor_inputs["x"] for one in given])
        for eager in (False, True):
            result = runner.run("walk", ["a", "b"], given, eager=eager)
            assert result.replayed is not eager and type(result["x"]) is cupy.ndarray
            assert (result["x"] == cupy.maximum(x * 2 + 1, 0) - 1).all()
