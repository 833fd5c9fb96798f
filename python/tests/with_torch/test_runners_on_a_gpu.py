"""Torch callables captured on cuda:0, the operations on torch's tensors, and the wrappers inside the
caller's own graphs. `make check-gpu` runs this; without a card every test is skipped with the reason.
"""
import gc
import weakref

import numpy as np
import pytest
from gpu_mark import needs_a_gpu
from runner_network import text

torch = pytest.importorskip("torch")

import mstarc  # noqa: E402
from mstarc import ops  # noqa: E402
from mstarc.engine.accelerator_graph_config import (  # noqa: E402
    BatchedAcceleratorGraphConfig,
    PackedAcceleratorGraphConfig,
    PiecewiseBatchedConfig,
    PiecewisePackedConfig,
)
from mstarc.engine.accelerator_graph_runner import (  # noqa: E402
    AcceleratorGraphRunner,
    PiecewiseAcceleratorGraphRunner,
)
from mstarc.engine.resources.attn.ragged.managers import (  # noqa: E402
    NodeResources,
    RaggedAttentionManager,
)
from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper  # noqa: E402
from mstarc.engine.step import SubmoduleStep  # noqa: E402
from mstarc.model.submodule_base import NodeInputs, Submodule  # noqa: E402


pytestmark = needs_a_gpu("torch", torch.cuda.is_available())

WIDTH, HEADS, WORDS = 64, 4, 50
DIM = WIDTH // HEADS
GPU = "cuda:0"


def segment_means(x, offsets):
    """One row a segment, in torch: a matrix that averages, made of the offsets on the device."""
    rows = torch.arange(x.shape[0], device=x.device)[None]
    inside = ((rows >= offsets[:-1, None]) & (rows < offsets[1:, None])).to(x.dtype)
    return inside @ x / inside.sum(1, keepdim=True).clamp(min=1)


class TorchNetwork(Submodule):
    """Torch throughout, but for attention: ids and offsets are torch's, on the device."""

    request_outputs = ("vectors",)

    def __init__(self, dtype=torch.bfloat16):
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(WORDS, WIDTH, device=GPU, dtype=dtype)
        self.norm = torch.nn.LayerNorm(WIDTH, device=GPU, dtype=dtype)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, device=GPU, dtype=dtype)
        self.out = torch.nn.Linear(WIDTH, WIDTH, device=GPU, dtype=dtype)
        self.capturing = []

    def declare_step(self, engine_inputs, inputs):
        return SubmoduleStep.of_lengths("self", engine_inputs.padded_request_ids,
                                        [one.input_seq_len for one in inputs])

    def preprocess(self, engine_inputs, inputs):
        ids = torch.from_numpy(np.concatenate([one.tensor_inputs["ids"] for one in inputs]))
        offsets = np.cumsum([0] + [one.input_seq_len for one in inputs], dtype="int64")
        return {"ids": ids.to(GPU), "offsets": torch.from_numpy(offsets).to(GPU)}

    def forward_batched(self, engine_inputs, tensors):
        assert all(type(tensor) is torch.Tensor and tensor.is_cuda for tensor in tensors.values())
        self.capturing.append(torch.cuda.is_current_stream_capturing())
        x = self.words(tensors["ids"])
        q, k, v = self.qkv(self.norm(x)).view(-1, 3, HEADS, DIM).unbind(1)
        context = engine_inputs.resources["self"].run(q, k, v)
        assert type(context) is torch.Tensor and context.is_cuda
        x = x + self.out(context.reshape(-1, WIDTH))
        return {"tokens": torch.nn.functional.gelu(x), "vectors": segment_means(x, tensors["offsets"])}


def config(tokens=(16, 32, 64), sizes=(1, 4)):
    return PackedAcceleratorGraphConfig("encode", list(tokens), text, capture_batch_sizes=list(sizes))


def make(network=None, **more):
    node = NodeResources({"self": RaggedAttentionManager(HEADS, HEADS, DIM, device=GPU)})
    runner = AcceleratorGraphRunner(network or TorchNetwork(), [config()], node, **more)
    runner.capture()
    assert not runner.failures and runner.info["num_captured"] == 6
    return runner


def run(runner, lengths, **more):
    return runner.run("encode", [f"r{i}" for i in range(len(lengths))],
                      [text(n, i) for i, n in enumerate(lengths)], **more)


def near(got, want):
    """bf16 through a few layers: torch chooses its products by the number of rows."""
    return (got.float() - want.float()).abs().max() <= 2.0 ** -5 * want.float().abs().max()


# ---- whole forwards ------------------------------------------------------------------------------

@pytest.mark.parametrize("slots", [1, 2])
def test_torch_callables_are_captured(slots):
    network = TorchNetwork()
    runner = make(network, num_slots=slots)
    assert True in network.capturing and str(runner.device) == GPU
    forwards = len(network.capturing)
    for lengths in ([8, 8, 8, 8], [3], [5, 0, 4], [64], [20, 20, 20], [16]):
        replayed = run(runner, lengths)
        assert replayed.replayed and len(network.capturing) == forwards
        kept = {name: replayed[name] for name in replayed}
        assert all(type(made) is torch.Tensor and made.is_cuda for made in kept.values())
        assert kept["tokens"].shape == (sum(lengths), WIDTH)
        assert kept["vectors"].shape == (len(lengths), WIDTH)
        eager = run(runner, lengths, eager=True)
        forwards = len(network.capturing)
        for name in kept:
            assert near(kept[name], eager[name])
        again = run(runner, lengths)
        for name in kept:
            assert torch.equal(again[name], kept[name])


def test_segments_do_not_meet():
    """In one bucket a segment's numbers do not depend on its neighbours' ids."""
    runner = make()
    ours = text(9, 3)
    kept = None
    for seed in range(4):
        inputs = [text(12, seed), ours, text(7, seed + 9)]
        made = runner.run("encode", ["a", "b", "c"], inputs)["tokens"][12:21]
        assert kept is None or torch.equal(made, kept)
        kept = made


def test_memory_stays_where_it_is():
    """Allocations of the caller's between replays do not reach what captures work in."""
    runner = make()
    want = {n: run(runner, [n])["tokens"] for n in (5, 16, 30, 60)}
    held = torch.cuda.memory_allocated()
    for turn in range(3):
        junk = [torch.full((1 << 20,), float("nan"), device=GPU) for _ in range(16)]
        torch.cuda.empty_cache()
        for n, tokens in want.items():
            assert torch.equal(run(runner, [n])["tokens"], tokens)
        del junk
    gc.collect()
    assert torch.cuda.memory_allocated() <= held


def test_the_callers_stream():
    """A step follows what the caller's stream has queued, and is followed by it."""
    network = TorchNetwork()
    runner = make(network)
    want = run(runner, [20, 9])["vectors"]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(3):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            doubled = run(runner, [20, 9])["vectors"] * 2
        side.synchronize()
        assert torch.equal(doubled, want * 2)
        assert torch.equal(run(runner, [20, 9])["vectors"], want)


def test_plans_ahead():
    runner = make(num_slots=2)
    names, inputs = ["r0", "r1"], [text(14, 0), text(3, 1)]
    want = run(runner, [14, 3])["vectors"]
    for _ in range(6):
        assert runner.pre_plan("encode", names, inputs) == "none"
        assert torch.equal(run(runner, [14, 3])["vectors"], want)


def test_what_cannot_be_captured_drops_its_bucket():
    class Syncs(TorchNetwork):
        def forward_batched(self, engine_inputs, tensors):
            made = super().forward_batched(engine_inputs, tensors)
            if len(engine_inputs.padded_request_ids) == 4:
                made["tokens"].sum().item()  # waits for the device
            return made

    node = NodeResources({"self": RaggedAttentionManager(HEADS, HEADS, DIM, device=GPU)})
    runner = AcceleratorGraphRunner(Syncs(), [config()], node)
    runner.capture()
    assert runner.info["num_captured"] == 3 and len(runner.failures) >= 3
    assert run(runner, [9]).replayed
    result = run(runner, [9, 9])
    assert result.miss == "not_captured" and torch.isfinite(result["vectors"]).all()
    assert torch.equal(torch.ones(3, device=GPU) * 2, torch.full((3,), 2.0, device=GPU))


def test_gradients_are_not_recorded():
    result = run(make(), [9])
    assert not result["tokens"].requires_grad
    eager = run(make(), [9], eager=True)
    assert not eager["tokens"].requires_grad


def test_a_runner_goes_with_its_memory():
    def serve():
        runner = make()
        run(runner, [20, 9])
        return weakref.ref(runner)

    def held():
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # one for each stream that products ran on
        return torch.cuda.memory_allocated(), mstarc.memory_info()["live_bytes"]

    serve()
    torchs, ours = held()
    for _ in range(3):
        gone = serve()
        gc.collect()
        assert gone() is None
    now = held()
    assert now[0] <= torchs and now[1] <= ours + (1 << 16)


def test_batched_configs():
    class Decode(Submodule):
        def __init__(self):
            self.layer = torch.nn.Linear(8, 8, device=GPU)

        def preprocess(self, engine_inputs, inputs):
            return {"x": torch.stack([one.tensor_inputs["x"] for one in inputs])}

        def forward_batched(self, engine_inputs, tensors):
            return torch.relu(self.layer(tensors["x"]))

    network = Decode()
    template = NodeInputs({"x": torch.zeros(8, device=GPU)}, input_seq_len=1)
    runner = AcceleratorGraphRunner(
        network, [BatchedAcceleratorGraphConfig("decode", template, capture_batch_sizes=[2, 4])], device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 2
    x = torch.randn(3, 8, device=GPU)
    inputs = [NodeInputs({"x": row}, input_seq_len=1) for row in x]
    with torch.no_grad():
        want = torch.relu(network.layer(x))
    for eager in (False, True):
        result = runner.run("decode", ["a", "b", "c"], inputs, eager=eager)
        assert result.replayed is not eager and result.num_tokens == 3
        assert result["x"].shape == result.view("x").shape == (3, 8)
        assert torch.allclose(result["x"], want, atol=1e-5)


# ---- regions -------------------------------------------------------------------------------------

def test_a_region_of_torch():
    layer = torch.nn.Linear(16, 16, device=GPU)
    made_inputs = lambda shape: {"x": torch.zeros(shape.total_tokens, 16, device=GPU)}  # noqa: E731
    region = PiecewisePackedConfig(
        capture_fn=lambda inputs: {"out": torch.tanh(layer(inputs.static_inputs["x"]))},
        make_static_inputs=made_inputs, capture_batch_sizes=[1], total_tokens=[8, 32])
    runner = PiecewiseAcceleratorGraphRunner(region, device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 2, runner.failures
    side = torch.cuda.Stream()
    for n in (8, 5, 32, 17):
        x = torch.randn(n, 16, device=GPU)
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            late = x * 2
            doubled = runner.run({"x": late}, seq_lens=[n])["out"] * 2
            want = torch.tanh(layer(x * 2)) * 2
        side.synchronize()
        assert type(doubled) is torch.Tensor and torch.allclose(doubled, want, atol=1e-5)


def test_a_batched_region_of_torch():
    layer = torch.nn.Linear(16, 16, device=GPU)
    region = PiecewiseBatchedConfig(
        capture_fn=lambda inputs: layer(inputs.static_inputs["x"]),
        make_static_inputs=lambda shape: {"x": torch.zeros(shape.bs, 3, 16, device=GPU)},
        capture_batch_sizes=[4, 2], seq_len=3)
    runner = PiecewiseAcceleratorGraphRunner(region, device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 2, runner.failures
    for bs in (1, 2, 3, 4):
        x = torch.randn(bs, 3, 16, device=GPU)
        result = runner.run({"x": x}, real_bs=bs)
        with torch.no_grad():
            want = layer(x)
        assert result["x"].shape == result.view("x").shape == (bs, 3, 16)
        assert torch.allclose(result["x"], want, atol=1e-5)


# ---- operations ----------------------------------------------------------------------------------

def test_operations_on_torchs_tensors():
    torch.manual_seed(0)
    x, weight = torch.randn(9, 32, device=GPU), torch.randn(48, 32, device=GPU)
    linear = ops.Linear(weight)
    out = linear(x)
    assert type(out) is torch.Tensor and out.is_cuda
    assert torch.allclose(out.double(), x.double() @ weight.double().T, atol=1e-4)
    ones = torch.ones(32, device=GPU)
    want = torch.nn.functional.layer_norm(x.double(), (32,))
    assert torch.allclose(ops.layer_norm(x, ones, 0 * ones).double(), want, atol=1e-5)
    half = x.to(torch.bfloat16)
    assert ops.normalize(half).dtype is torch.bfloat16
    assert torch.equal(ops.activate(x, "relu"), torch.relu(x))
    table = torch.randn(50, 32, device=GPU)
    ids = torch.randint(0, 50, (9,), dtype=torch.int32)
    assert torch.equal(ops.embedding(table, ids), table[ids.to(GPU).long()])
    assert torch.equal(ops.embedding(table, ids.to(GPU)), table[ids.to(GPU).long()])
    pooled = ops.pooling(x, torch.tensor([0, 4, 9], dtype=torch.int32))
    assert torch.allclose(pooled, torch.stack([x[:4].mean(0), x[4:].mean(0)]), atol=1e-6)
    shared = torch.from_dlpack(mstarc.tensor(np.arange(4, dtype="float32"), device=GPU))
    assert shared.is_cuda and shared.tolist() == [0, 1, 2, 3]


def test_operations_follow_the_callers_stream():
    side = torch.cuda.Stream()
    x = torch.randn(64, 32, device=GPU)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        out = ops.activate(x * 2, "relu") * 2
    side.synchronize()
    assert torch.equal(out, torch.relu(x * 2) * 2)


# ---- the caller's own graphs ---------------------------------------------------------------------

def test_a_layer_inside_the_callers_graph():
    """run and torch's layers in one torch.cuda.graph; plan outside; another layout a replay."""
    torch.manual_seed(0)
    wrapper = RaggedPrefillWrapper(HEADS, HEADS, DIM, max_num_segments=4, max_total_tokens=64,
                                   accelerator_graph=True)
    qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, device=GPU, dtype=torch.bfloat16)
    static = torch.zeros(64, WIDTH, device=GPU, dtype=torch.bfloat16)

    def layer(x):
        q, k, v = qkv(x).view(-1, 3, HEADS, DIM).unbind(1)
        return static[:len(x)] + wrapper.run(q, k, v).reshape(-1, WIDTH)

    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            wrapper.plan([0, 64])
            layer(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(static)
        for seed, offsets in enumerate(([0, 64], [0, 10, 10, 40], [0, 1], [0, 16, 32, 48, 64])):
            static.copy_(torch.randn(64, WIDTH, device=GPU))
            wrapper.plan(offsets)
            out.fill_(float("nan"))
            graph.replay()
            want = layer(static)
            assert torch.equal(out, want) and torch.isfinite(out).all()
