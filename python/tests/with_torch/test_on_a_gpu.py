"""The wrappers on torch's tensors on cuda:0: `make check-gpu` runs this, where a skip is a failure.

Without a card, or with a library that was built without CUDA, every test is skipped with the reason.
"""
import numpy as np
import pytest
from attention_reference import attention, check
from gpu_mark import needs_a_gpu

torch = pytest.importorskip("torch")

from mstarc.engine.resources.attn.ragged.dense_wrappers import FA3RaggedPrefillWrapper  # noqa: E402
from mstarc.engine.resources.attn.ragged.wrappers import (  # noqa: E402
    FlashInferRaggedPrefillWrapper,
    PrefixedPrefillWrapper,
    RaggedCrossPrefillWrapper,
    RaggedPrefillWrapper,
)


pytestmark = needs_a_gpu("torch", torch.cuda.is_available())

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
KINDS = [RaggedPrefillWrapper, RaggedCrossPrefillWrapper, PrefixedPrefillWrapper]


def make(cls=RaggedPrefillWrapper, **more):
    return cls(4, 2, 64, **{"q_data_type": torch.bfloat16, **more})


def tensors(rows, kv_rows, dtype=torch.bfloat16, seed=0):
    made = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(n, heads, 64, generator=made, device="cuda").to(dtype)
            for n, heads in ((rows, 4), (kv_rows, 2), (kv_rows, 2))]


def compare(out, inputs, q_offsets, kv_offsets, causal, dtype):
    assert out.is_cuda and out.dtype is dtype
    q, k, v = (x.float().cpu().numpy() for x in inputs)
    want, bound = attention(q, k, v, q_offsets, kv_offsets, causal, 64 ** -0.5, DTYPES[dtype],
                            tensor_cores=True)
    check(out.float().cpu().numpy(), want, bound)


@pytest.mark.parametrize("cls", KINDS)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("causal", [False, True])
def test_values(cls, dtype, causal):
    wrapper = make(cls, q_data_type=dtype)
    assert str(wrapper.device).startswith("cuda")
    for lengths, more in (([5, 0, 130], 0), ([1], 70), ([300, 7], 9)):
        q_offsets = np.cumsum([0, *lengths])
        kv_offsets = q_offsets if cls is RaggedPrefillWrapper else \
            np.cumsum([0, *(n + more for n in lengths)])
        given = [q_offsets] if cls is RaggedPrefillWrapper else [q_offsets, kv_offsets]
        is_causal = causal and cls is not RaggedCrossPrefillWrapper
        wrapper.plan(*given, **({"causal": True} if is_causal else {}))
        inputs = tensors(q_offsets[-1], kv_offsets[-1], dtype)
        compare(wrapper.run(*inputs), inputs, q_offsets, kv_offsets, is_causal, dtype)


def test_the_callers_stream():
    """Work follows what the caller's own stream has queued, and is followed by it."""
    wrapper = make()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        wrapper.plan([0, 64])
        inputs = tensors(64, 64)
        torch.cuda._sleep(50_000_000)
        late = [x * 1 for x in inputs]
        out = wrapper.run(*late)
        doubled = out * 2
    side.synchronize()
    assert torch.equal(doubled, out * 2)
    compare(out, inputs, [0, 64], [0, 64], False, torch.bfloat16)


@pytest.mark.parametrize("cls", KINDS)
def test_inside_the_callers_capture(cls):
    """run inside torch.cuda.graph, plan outside: any layout under the ceilings replays."""
    wrapper = make(cls, max_num_segments=4, max_total_tokens=64, max_total_kv_tokens=128,
                   accelerator_graph=True)
    kv_rows = 64 if cls is RaggedPrefillWrapper else 128
    static = tensors(64, kv_rows)
    wrapper.run(*static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = wrapper.run(*static)
    for seed, lengths in enumerate(([16] * 4, [64], [7, 0, 30], [1])):
        q_offsets = np.cumsum([0, *lengths])
        kv_offsets = q_offsets if cls is RaggedPrefillWrapper else np.cumsum(
            [0, *(2 * n for n in lengths)])
        wrapper.plan(*([q_offsets] if cls is RaggedPrefillWrapper else [q_offsets, kv_offsets]))
        for buffer, fresh in zip(static, tensors(64, kv_rows, seed=seed)):
            buffer.copy_(fresh)
        out.fill_(float("nan"))
        graph.replay()
        compare(out, static, q_offsets, kv_offsets, False, torch.bfloat16)
        assert not out[q_offsets[-1]:].any()


def test_outputs_are_ordinary_tensors():
    """They are made by a function of torch's that does little else, in the memory that torch works in."""
    wrapper = make()
    wrapper.plan([0, 9])
    inputs = tensors(9, 9)
    out = wrapper.run(*inputs)
    assert not out.requires_grad and out.is_leaf and out.device == inputs[0].device
    assert out.stride() == (256, 64, 1) and out.untyped_storage().nbytes() == out.nbytes
    with torch.inference_mode():
        assert wrapper.run(*inputs).is_inference()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = wrapper.run(*inputs)
    within = [(part["address"], part["address"] + part["total_size"]) for part in pool.snapshot()]
    assert any(begin <= kept.data_ptr() < end for begin, end in within)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    del out
    assert torch.cuda.memory_allocated() < held


def test_tensors_without_the_table():
    class Bare(torch.Tensor):
        __module__ = "torch"
        __torch_function__ = torch._C._disabled_torch_function_impl
        __dlpack_c_exchange_api__ = None

    wrapper = make()
    inputs = tensors(9, 9)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        wrapper.plan([0, 4, 9])
        torch.cuda._sleep(20_000_000)
        out = wrapper.run(*((x * 1).as_subclass(Bare) for x in inputs))
        want = wrapper.run(*inputs)
    side.synchronize()
    assert torch.equal(out.as_subclass(torch.Tensor), want) and wrapper.info["input_syncs"] == 0


def test_offsets_on_the_device_cost_a_wait():
    wrapper = make()
    inputs = tensors(9, 9)
    wrapper.plan(torch.tensor([0, 4, 9], device="cuda"))
    assert wrapper.info["offset_syncs"] == 1
    compare(wrapper.run(*inputs), inputs, [0, 4, 9], [0, 4, 9], False, torch.bfloat16)


def test_views_casts_and_rows_past_the_plan():
    wrapper = make()
    wrapper.plan([0, 4, 9])
    q, k, v = tensors(12, 12)
    fused = torch.cat([q, k, v], dim=1)
    out = wrapper.run(fused[:, :4], fused[:, 4:6], fused[:, 6:])
    assert torch.equal(out, wrapper.run(q, k, v)) and not out[9:].any()
    assert torch.equal(out, wrapper.run(*(x.float() for x in (q, k, v))))
    assert torch.equal(out, wrapper.run(*(x.transpose(0, 2).contiguous().transpose(0, 2)
                                          for x in (q, k, v))))


def test_workspaces_layouts_and_siblings():
    q, k, v = tensors(9, 9)
    plain = make()
    plain.plan([0, 4, 9])
    want = plain.run(q, k, v)
    workspace = torch.empty(max(plain.info["workspace_bytes"], 1) + 64, dtype=torch.uint8, device="cuda")
    flash = FlashInferRaggedPrefillWrapper(workspace, 4, 2, 64, kv_layout="HND")
    flash.plan([0, 4, 9])
    hnd = [x.transpose(0, 1).contiguous() for x in (k, v)]
    assert torch.equal(flash.run(q, *hnd), want)
    dense = make(FA3RaggedPrefillWrapper)
    dense.plan([0, 4, 9])
    assert (dense.run(q, k, v).float() - want.float()).abs().max() <= 2.0 ** -6 * v.abs().max()
    with pytest.raises(ValueError, match="workspace_buffer lies on"):
        FlashInferRaggedPrefillWrapper(torch.empty(1 << 22, dtype=torch.uint8), 4, 2, 64)


def test_tensors_of_another_device():
    on_gpu, on_cpu = make(), make(device="cpu")
    host = [x.cpu() for x in tensors(9, 9)]
    for wrapper, inputs, others in ((on_gpu, tensors(9, 9), host), (on_cpu, host, tensors(9, 9))):
        wrapper.plan([0, 4, 9])
        for place, name in enumerate("qkv"):
            given = [*inputs[:place], others[place], *inputs[place + 1:]]
            with pytest.raises(ValueError, match=f"{name} lies on DLPack device"):
                wrapper.run(*given)
        with pytest.raises(ValueError, match="q lies on DLPack device"):
            wrapper.run(*others)
    with pytest.raises(ValueError, match=r"q lies on DLPack device \(1, 0\)"):
        on_gpu.run(*(x.float().numpy() for x in host))
    inputs = tensors(9, 9)
    compare(on_gpu.run(*inputs), inputs, [0, 4, 9], [0, 4, 9], False, torch.bfloat16)
