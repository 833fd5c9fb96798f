"""The wrappers on torch's tensors. Needs torch, which the other tests do without:
pytest python/tests/torch. The parts on a GPU need a library that has its backend.
"""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mstarc  # noqa: E402
from mstarc.engine.accelerator_graph_config import BatchedAcceleratorGraphConfig  # noqa: E402
from mstarc.engine.resources.attn.ragged.wrappers import (  # noqa: E402
    FlashInferRaggedPrefillWrapper,
    RaggedPrefillWrapper,
)
from mstarc.model.submodule_base import NodeInputs  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def make(**more):
    return RaggedPrefillWrapper(4, 2, 24, **{"device": torch.device("cpu"), **more})


def qkv(dtype=torch.float32):
    torch.manual_seed(1)
    return [torch.randn(9, n, 24).to(dtype) for n in (4, 2, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", [*DTYPES, torch.float64])
def test_dtypes_in_and_out(dtype, given):
    wrapper = make(q_data_type=dtype)
    assert wrapper.q_data_type is dtype and wrapper.device == torch.device("cpu")
    wrapper.plan(torch.tensor([0, 4, 9]))
    q, k, v = qkv(given)
    out = wrapper.run(q, k, v)
    assert type(out) is torch.Tensor and out.dtype is dtype and out.is_contiguous()
    plain = wrapper.run(*(x.to(dtype).float().numpy() for x in (q, k, v)))
    plain = torch.from_dlpack(plain) if isinstance(plain, mstarc.Tensor) else torch.from_numpy(plain)
    assert torch.equal(out, plain)


def test_a_fused_projection_is_not_copied():
    wrapper = make(q_data_type=torch.float32)
    wrapper.plan(torch.tensor([0, 4, 9], dtype=torch.int32))
    q, k, v = qkv()
    fused = torch.cat([q, k, v], dim=1)
    assert torch.equal(wrapper.run(fused[:, :4], fused[:, 4:6], fused[:, 6:]), wrapper.run(q, k, v))
    assert torch.equal(wrapper.run(q.transpose(1, 2).contiguous().transpose(1, 2), k, v),
                       wrapper.run(q, k, v))


def test_against_torch():
    wrapper = make(q_data_type=torch.float32)
    wrapper.plan([0, 4, 9])
    q, k, v = qkv()
    for part in (slice(0, 4), slice(4, 9)):
        want = torch.nn.functional.scaled_dot_product_attention(
            *(x[part].transpose(0, 1).double() for x in (q, k, v)), enable_gqa=True)
        got = wrapper.run(q, k, v)[part].transpose(0, 1).double()
        assert ((got - want).abs() <= 64 * 2.0 ** -24 * v.abs().max()).all()


def test_defaults_are_torchs():
    wrapper = FlashInferRaggedPrefillWrapper(torch.empty(1 << 22, dtype=torch.uint8), 4, 2, 24,
                                             device="cpu")
    assert wrapper.q_data_type is torch.bfloat16 and wrapper.device == torch.device("cpu")
    assert mstarc.bfloat16 == torch.bfloat16 and torch.bfloat16 == mstarc.bfloat16
    assert mstarc.device("cuda") == torch.device("cuda") and torch.device("cuda:1") == mstarc.device(1)
    assert mstarc.float16.to_torch() is torch.float16
    wrapper.plan([0, 4, 9])
    assert torch.zeros(1).to(wrapper.q_data_type).dtype is torch.bfloat16


def test_tensors_of_ours():
    wrapper = make()
    wrapper.plan([0, 4, 9])
    tensor = wrapper.run(*(x.numpy() for x in qkv()))
    taken = torch.from_dlpack(tensor)
    assert taken.dtype is torch.bfloat16 and torch.equal(taken, wrapper.run(*qkv()))
    del tensor
    assert torch.isfinite(taken).all()


def test_gradients_are_refused_or_ignored():
    wrapper = make(q_data_type=torch.float32)
    wrapper.plan([0, 4, 9])
    q, k, v = qkv()
    out = wrapper.run(q, k, v)
    with torch.no_grad():
        again = wrapper.run(q.requires_grad_(), k, v)
    assert torch.equal(out, again) and not again.requires_grad


def test_templates_are_cloned():
    template = NodeInputs({"x": torch.zeros(3)}, {"deep": [torch.ones(1)]}, None, 1)
    row = BatchedAcceleratorGraphConfig("decode", template).get_node_inputs(1, 0)[0]
    row.tensor_inputs["x"] += 1
    row.kwargs["deep"][0] += 1
    assert not template.tensor_inputs["x"].any() and template.kwargs["deep"][0] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_on_a_gpu():
    with pytest.raises(ValueError, match="q lies on"):
        wrapper = make()
        wrapper.plan(torch.tensor([0, 4, 9], device="cuda"))
        assert wrapper.info["offset_syncs"] == 1
        wrapper.run(*(x.cuda() for x in qkv()))
    assert np is not None
