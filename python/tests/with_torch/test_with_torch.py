"""The wrappers on torch's tensors on the CPU. Needs torch, which the other tests do without:
pytest python/tests/with_torch.
"""
import subprocess
import sys

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


class Bare(torch.Tensor):
    """A tensor as of a torch without the table of C functions."""
    __module__ = "torch"
    __torch_function__ = torch._C._disabled_torch_function_impl
    __dlpack_c_exchange_api__ = None


class Asked(Bare):
    """The same, of a class with a `__dlpack__` of its own."""
    __module__ = "torch"

    def __dlpack__(self, **keywords):
        asked.append(keywords)
        return super().__dlpack__(**keywords)


asked = []


@pytest.mark.parametrize("kind", [Bare, Asked])
def test_tensors_without_the_table(kind):
    wrapper = make(q_data_type=torch.bfloat16)
    wrapper.plan([0, 4, 9])
    given = qkv(torch.bfloat16)
    want = wrapper.run(*given)
    fused = torch.cat(given, dim=1)
    asked.clear()
    for inputs in (given, [fused[:, :4], fused[:, 4:6], fused[:, 6:]]):
        out = wrapper.run(*(x.as_subclass(kind) for x in inputs))
        assert isinstance(out, torch.Tensor) and torch.equal(out.as_subclass(torch.Tensor), want)
    assert len(asked) >= (6 if kind is Asked else 0) and (kind is Asked or not asked)
    with pytest.raises(BufferError, match="require gradient"):
        wrapper.run(given[0].as_subclass(kind).requires_grad_(), *given[1:])


def test_a_torch_without_the_table():
    code = """
import torch
for kind in torch.Tensor.__mro__:
    if "__dlpack_c_exchange_api__" in vars(kind):
        del kind.__dlpack_c_exchange_api__
import mstarc
from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper
wrapper = RaggedPrefillWrapper(1, 1, 8, device="cpu", q_data_type=torch.bfloat16)
wrapper.plan([0, 3])
x = torch.ones(3, 1, 8, dtype=torch.bfloat16)
out = wrapper.run(x, x, x)
assert type(out) is torch.Tensor and out.dtype is torch.bfloat16 and torch.equal(out, x)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_outputs_are_ordinary_tensors():
    """They are made by a function of torch's that does little else."""
    wrapper = make(q_data_type=torch.float32)
    wrapper.plan([0, 4, 9])
    given = qkv()
    out = wrapper.run(*given)
    assert not out.requires_grad and out.is_leaf and not out.is_inference()
    assert out.stride() == out.contiguous().stride() and out.storage_offset() == 0
    assert out.untyped_storage().nbytes() == out.nbytes and out.resize_(20, 4, 24).shape[0] == 20
    with torch.inference_mode():
        assert wrapper.run(*given).is_inference()
    wrapper.plan([0])
    none = wrapper.run(*(x[:0] for x in given))
    assert none.shape == (0, 4, 24) and none.stride() == torch.empty(0, 4, 24).stride()


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


def test_a_name_that_torch_does_not_know():
    with pytest.raises(ValueError, match="tpu"):
        make(device="tpu")


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


def test_inside_compiled_code():
    """torch.compile goes around plan and run, and the numbers stay."""
    wrapper = make(q_data_type=torch.float32)

    def layer(q, k, v):
        wrapper.plan([0, 4, 9])
        return wrapper.run(q * 2, k, v) + 1

    inputs = qkv()
    want = layer(*inputs)
    compiled = torch.compile(layer, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(*inputs), want)


def test_templates_are_cloned():
    template = NodeInputs({"x": torch.zeros(3)}, {"deep": [torch.ones(1)]}, None, 1)
    row = BatchedAcceleratorGraphConfig("decode", template).get_node_inputs(1, 0)[0]
    row.tensor_inputs["x"] += 1
    row.kwargs["deep"][0] += 1
    assert not template.tensor_inputs["x"].any() and template.kwargs["deep"][0] == 1


# ---- backend="flashinfer" ------------------------------------------------------------------------

class _FakeRagged:
    """The surface of flashinfer.BatchPrefillWithRaggedKVCacheWrapper that is used, on the CPU."""

    def __init__(self, workspace, layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
                 kv_indptr_buf=None):
        assert workspace.dtype is torch.uint8 and layout == "NHD"
        self.fixed = len(qo_indptr_buf) if use_cuda_graph else None
        self.most = None

    def plan(self, qo, kv, num_qo_heads, num_kv_heads, head_dim_qk, *, causal, sm_scale, q_data_type,
             kv_data_type):
        assert qo.dtype is kv.dtype is torch.int32 and q_data_type is kv_data_type
        assert self.fixed in (None, len(qo)) and len(qo) == len(kv)
        if self.fixed:
            self.most = self.most or int(qo[-1])
            assert qo[-1] <= self.most, "more rows than the first plan"
        self.causal, self.scale, self.dim = causal, sm_scale, head_dim_qk
        self.heads, self.qo, self.kv = (num_qo_heads, num_kv_heads), qo.tolist(), kv.tolist()

    def run(self, q, k, v, *, out):
        assert q.is_contiguous() and tuple(q.shape[1:]) == (self.heads[0], self.dim)
        group = self.heads[0] // self.heads[1]
        for a, b, c, d in zip(self.qo, self.qo[1:], self.kv, self.kv[1:]):
            if a == b or c == d:
                continue
            qs, ks, vs = (x.transpose(0, 1).double() for x in (q[a:b], k[c:d], v[c:d]))
            scores = qs @ ks.repeat_interleave(group, 0).transpose(1, 2) * self.scale
            if self.causal:
                keep = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - (b - a))
                scores = scores.masked_fill(~keep, -torch.inf)
            out[a:b] = (scores.softmax(-1) @ vs.repeat_interleave(group, 0)).transpose(0, 1).to(out)


@pytest.fixture
def fake_flashinfer(monkeypatch):
    import sys
    import types
    module = types.ModuleType("flashinfer")
    module.BatchPrefillWithRaggedKVCacheWrapper = _FakeRagged
    monkeypatch.setitem(sys.modules, "flashinfer", module)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("head_dim", [24, 64])
@pytest.mark.parametrize("kind", ["self", "cross", "prefixed"])
def test_work_goes_to_flashinfer(fake_flashinfer, graph, head_dim, kind):
    from mstarc.engine.resources.attn.ragged import wrappers
    cls = {"self": FlashInferRaggedPrefillWrapper, "cross": wrappers.FlashInferRaggedCrossPrefillWrapper,
           "prefixed": wrappers.FlashInferPrefixedPrefillWrapper}[kind]
    more = {"max_num_segments": 4, "max_total_tokens": 16, "max_total_kv_tokens": 40,
            "accelerator_graph": True} if graph else {}
    more |= {"device": "cpu", "q_data_type": torch.float32}
    theirs = cls(torch.empty(64, dtype=torch.uint8), 4, 2, head_dim, backend="flashinfer", **more)
    ours = cls(None, 4, 2, head_dim, **more)
    assert theirs.info["kernel"] == "flashinfer" and theirs.num_segments == 0
    for q_offsets, kv_offsets in (([0, 4, 9], [0, 6, 20]), ([0, 16], [0, 40]), ([0, 0, 1], [0, 3, 5])):
        for causal in ([False] if kind == "cross" else [False, True]):
            given = [q_offsets] if kind == "self" else [torch.tensor(q_offsets), kv_offsets]
            for wrapper in (theirs, ours):
                wrapper.plan(*given, **({} if kind == "cross" else {"causal": causal}))
            torch.manual_seed(2)
            rows = 16 if graph else q_offsets[-1] + 2
            q = torch.randn(rows, 4, head_dim)
            k, v = torch.randn(2, rows if kind == "self" else 40, 2, head_dim)
            got, want = theirs.run(q, k, v), ours.run(q, k, v)
            assert got.shape == want.shape and (got - want).abs().max() <= 256 * 2.0 ** -24 * v.abs().max()
            assert not got[q_offsets[-1]:].any()
    with pytest.raises(ValueError, match="cu_seqlens"):
        theirs.plan([1, 2], *([] if kind == "self" else [[0, 2]]))
    with pytest.raises((ValueError, AssertionError), match="q has"):
        theirs.run(torch.randn(17 if graph else 0, 4, head_dim), k, v)
    with pytest.raises(ValueError, match="k has shape"):
        theirs.run(q, k[..., :-1], v)
    with pytest.raises(TypeError, match="torch"):
        theirs.run(q.numpy(), k, v)


def test_flashinfer_needs_its_own(fake_flashinfer):
    with pytest.raises(NotImplementedError, match="HND"):
        FlashInferRaggedPrefillWrapper(torch.empty(9, dtype=torch.uint8), 4, 2, 64, kv_layout="HND",
                                       backend="flashinfer", device="cpu")
    with pytest.raises(TypeError, match="workspace_buffer"):
        FlashInferRaggedPrefillWrapper(None, 4, 2, 64, backend="flashinfer", device="cpu")
    wrapper = FlashInferRaggedPrefillWrapper(torch.empty(9, dtype=torch.uint8), 4, 2, 24,
                                             backend="flashinfer", device="cpu")
    with pytest.raises(RuntimeError, match="before plan"):
        wrapper.run(*qkv())
