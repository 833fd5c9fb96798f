"""The runners on cuda:0, with networks of the package's operations."""
import contextlib
import ctypes
import gc
import sys
import types
import weakref

import numpy as np
import pytest
from cuda_fixtures import mock, no_faults  # noqa: F401
from dlpack_producer import Producer
from runner_network import DIM, HEADS, WIDTH, WORDS, Boom, Network, packed, rows, run, text

import mstarc
from mstarc import ops
from mstarc.engine._work import Work
from mstarc.engine.accelerator_graph_config import (
    PackedAcceleratorGraphConfig,
    PiecewisePackedConfig,
)
from mstarc.engine.accelerator_graph_runner import (
    AcceleratorGraphRunner,
    PiecewiseAcceleratorGraphRunner,
)
from mstarc.engine.resources.attn.ragged.managers import NodeResources, RaggedAttentionManager
from mstarc.engine.step import SubmoduleStep
from mstarc.model.submodule_base import NodeInputs, Submodule

GPU = "cuda:0"


def resources(dtype="float32", device=GPU):
    return NodeResources({"self": RaggedAttentionManager(HEADS, HEADS, DIM, dtype=dtype, device=device)})


def network(dtype="float32", hook=None, device=GPU):
    """runner_network's, with its weights on a device."""
    made = Network(dtype, hook)
    made.words = mstarc.tensor(made.words, device=device)
    rng = np.random.default_rng(3)
    rng.standard_normal((WORDS, WIDTH))
    made.qkv = ops.Linear(rng.standard_normal((3 * WIDTH, WIDTH)).astype("float32"), device=device)
    made.out = ops.Linear(rng.standard_normal((WIDTH, WIDTH)).astype("float32"), device=device)
    return made


def make(configs=None, capture=True, dtype="float32", hook=None, **more):
    runner = AcceleratorGraphRunner(network(dtype, hook), configs or [packed()], resources(dtype), **more)
    if capture:
        runner.capture()
    return runner


def raw(result, name):
    made = result[name]
    assert str(made.device) == GPU
    return made.cpu().to("float32").numpy().tobytes()


# ---- whole forwards ------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("slots", [1, 2])
def test_replayed_eager_and_alone(dtype, slots, mock):
    runner = make(dtype=dtype, num_slots=slots)
    assert str(runner.device) == GPU and not runner.failures
    assert runner.info["num_captured"] == 6
    on_cpu = AcceleratorGraphRunner(network(dtype, device="cpu"), [packed()], resources(dtype, "cpu"))
    for lengths in ([8, 8, 8], [3], [5, 0, 4], [24], [2, 2, 2, 2], [7, 9, 1]):
        replayed = run(runner, lengths)
        assert replayed.replayed and replayed["vectors"].shape == (len(lengths), WIDTH)
        kept = {name: raw(replayed, name) for name in replayed}
        allocations = mock.allocations()
        assert {name: replayed.view(name).shape for name in replayed} and mock.allocations() == allocations
        eager = run(runner, lengths, eager=True)
        assert {name: raw(eager, name) for name in eager} == kept
        row = 4 * WIDTH
        begin = 0
        for i, n in enumerate(lengths):
            alone = runner.run("encode", ["x"], [text(n, i)])
            assert raw(alone, "tokens") == kept["tokens"][begin * row:(begin + n) * row]
            begin += n
        want = run(on_cpu, lengths)
        for name in kept:
            got = np.frombuffer(kept[name], "float32").reshape(want[name].shape)
            theirs = want[name].to("float32").numpy()
            bound = (2.0 ** -6 if dtype == "bfloat16" else 2.0 ** -16) * max(np.abs(theirs).max(initial=0), 1)
            assert (np.abs(got - theirs) <= bound).all()


def test_a_replay_takes_no_memory_of_the_device(mock):
    runner = make()
    run(runner, [4, 4])
    before = mock.allocations()
    for _ in range(5):
        assert run(runner, [4, 4]).replayed
    assert mock.allocations() == before


def test_plans_ahead():
    runner = make(num_slots=2)
    names, inputs = ["r0", "r1"], [text(4, 0), text(3, 1)]
    want = raw(run(runner, [4, 3]), "vectors")
    for _ in range(4):
        assert runner.pre_plan("encode", names, inputs) == "none"
        assert raw(run(runner, [4, 3]), "vectors") == want


def test_nothing_leaks(mock):
    def serve():
        runner = make()
        run(runner, [4, 4])
        run(runner, [4, 4], eager=True)
        return weakref.ref(runner), weakref.ref(runner.submodule)

    serve()
    gc.collect()
    live, held = mock.live(), mstarc.memory_info()["live_bytes"]
    for _ in range(3):
        references = serve()
        gc.collect()
        assert [reference() for reference in references] == [None, None]
    assert mock.live() == live and mstarc.memory_info()["live_bytes"] == held


def test_a_failed_capture_drops_its_bucket():
    def hook(where, engine_inputs):
        if where == "forward" and engine_inputs.capturing and len(engine_inputs.padded_request_ids) == 4:
            raise Boom("no")

    runner = make(hook=hook)
    assert runner.info["num_captured"] == 3
    assert {type(failure.exception) for failure in runner.failures} == {Boom}
    assert run(runner, [3]).replayed
    result = run(runner, [3, 3])
    assert result.miss == "not_captured" and result["vectors"].shape == (2, WIDTH)


def test_exceptions_come_through():
    where_now = None

    def hook(where, engine_inputs):
        if where == where_now:
            raise Boom(where)

    runner = make(hook=hook)
    want = raw(run(runner, [5, 2]), "vectors")
    for where_now in ("declare_step", "preprocess", "forward"):
        with pytest.raises(Boom, match=where_now):
            run(runner, [5, 2], eager=where_now == "forward")
    where_now = None
    assert raw(run(runner, [5, 2]), "vectors") == want


class Echo(Submodule):
    """Hands back what it was given; ids lie where the test says."""

    def __init__(self, on_device):
        self.on_device = on_device
        self.seen = {}

    def preprocess(self, engine_inputs, inputs):
        x = np.concatenate([one.tensor_inputs["x"] for one in inputs])
        ids = np.arange(len(x), dtype="int32")
        return {"x": x, "ids": mstarc.tensor(ids, device=GPU) if self.on_device else ids,
                "turned": np.asfortranarray(x)}

    def forward_batched(self, engine_inputs, tensors):
        self.seen = {name: str(tensor.device) for name, tensor in tensors.items()}
        return {"x": ops.activate(tensors["x"], "none"), "turned": ops.activate(tensors["turned"], "none")}


def echo_config():
    return PackedAcceleratorGraphConfig(
        "echo", [8], lambda n: NodeInputs({"x": rows(n)}, input_seq_len=n), capture_batch_sizes=[2])


@pytest.mark.parametrize("on_device", [False, True])
def test_an_input_is_a_result(on_device):
    """What is sent to the runner's memory for an eager step outlives the runner with the result."""
    class Back(Echo):
        def forward_batched(self, engine_inputs, tensors):
            return {name: tensors[name] for name in ("x", "ids", "turned")}

    def serve():
        runner = AcceleratorGraphRunner(Back(on_device), [echo_config()], device=GPU)
        result = runner.run("echo", ["a"], [NodeInputs({"x": rows(3)}, input_seq_len=3)])
        return result, weakref.ref(runner)

    result, runner = serve()
    gc.collect()
    assert runner() is not None
    for name, want in (("x", rows(3)), ("turned", rows(3)), ("ids", np.arange(3))):
        assert (result.view(name).cpu().numpy() == want).all()
    del result
    gc.collect()
    assert runner() is None


@pytest.mark.parametrize("on_device", [False, True])
def test_where_inputs_lie(on_device):
    runner = AcceleratorGraphRunner(Echo(on_device), [echo_config()], device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 1
    assert runner.submodule.seen == {"x": GPU, "turned": GPU, "ids": GPU if on_device else "cpu"}
    for eager in (False, True):
        given = [NodeInputs({"x": rows(n, n)}, input_seq_len=n) for n in (3, 4)]
        result = runner.run("echo", ["a", "b"], given, eager=eager)
        assert result.replayed is not eager
        want = np.concatenate([rows(3, 3), rows(4, 4)])
        for name in ("x", "turned"):
            assert (result[name].cpu().numpy() == want).all()


def test_ids_of_the_device_are_no_ids_in_a_capture():
    class OnDevice(Network):
        def preprocess(self, engine_inputs, inputs):
            made = super().preprocess(engine_inputs, inputs)
            return {**made, "ids": mstarc.tensor(made["ids"], device=GPU)}

    made = network()
    made.__class__ = OnDevice
    runner = AcceleratorGraphRunner(made, [packed()], resources())
    runner.capture()
    assert runner.info["num_captured"] == 0
    assert all("int32 in host memory" in str(failure.exception) for failure in runner.failures)
    want = raw(run(make(), [3, 3], eager=True), "vectors")
    assert raw(run(runner, [3, 3]), "vectors") == want  # eager, after a wait


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_zeros_in_a_recorded_forward(device):
    """A replay would not clear them, and their memory is used again."""
    class Zeros(Echo):
        def forward_batched(self, engine_inputs, tensors):
            ops.activate(tensors["x"], "none")  # what it leaves in the pool is there for the next tensor
            zeros = mstarc.zeros(*tensors["x"].shape, device=device)
            return {"x": ops.activate(tensors["x"], "none", out=zeros)}

    runner = AcceleratorGraphRunner(Zeros(False), [echo_config()], device=device)
    runner.capture()
    assert runner.info["num_captured"] == 0
    assert all("zeros are made inside a forward" in str(failure.exception) for failure in runner.failures)
    result = runner.run("echo", ["a"], [NodeInputs({"x": rows(3)}, input_seq_len=3)])
    assert result.miss == "not_captured" and (result["x"].cpu().numpy() == rows(3)).all()


def test_no_garbage_is_collected_while_anything_captures(monkeypatch):
    """Not between the forwards of a capture either, nor when another thread's capture ends before."""
    seen = []
    monkeypatch.setattr(Work, "note_outputs", lambda work, arrays: seen.append(gc.isenabled()))
    first, second = Work(GPU), Work(GPU)
    for call in (AcceleratorGraphRunner.prepare, AcceleratorGraphRunner.capture):
        call(AcceleratorGraphRunner(Echo(False), [echo_config()], device=GPU))
    assert len(seen) >= 3 and not any(seen) and gc.isenabled()
    with contextlib.ExitStack() as outer, contextlib.ExitStack() as inner:
        outer.enter_context(first.captures())
        inner.enter_context(second.captures())
        outer.close()
        assert not gc.isenabled()
        inner.close()
        assert gc.isenabled()
    with Work("cpu").captures():
        assert gc.isenabled()
    gc.disable()
    try:
        with first.captures():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_ids_that_are_not_kept_are_let_go(monkeypatch):
    ids = Producer(np.zeros(8, "int32"))

    class Lookup(Echo):
        table = mstarc.zeros(8, 4, device=GPU)

        def forward_batched(self, engine_inputs, tensors):
            return {"x": ops.embedding(self.table, ids if engine_inputs.capturing else tensors["ids"])}

    def owns(work, address):
        raise Boom("owns")

    runner = AcceleratorGraphRunner(Lookup(False), [echo_config()], device=GPU)
    monkeypatch.setattr(Work, "owns", owns)
    runner.capture()
    assert [type(failure.exception) for failure in runner.failures] == [Boom]
    assert ids.handed == ids.deleted > 0


@pytest.mark.parametrize("answer", [-1, "many", None])
def test_pools_that_cannot_be_counted(answer, monkeypatch):
    monkeypatch.setattr(Work, "pool_bytes", lambda work: answer)
    runner = make()
    assert runner.info["num_captured"] == 6 and runner.info["total_bytes"] < 2 ** 40
    assert {type(failure.exception) for failure in runner.failures} <= {OverflowError, TypeError}
    assert runner.failures


def test_interrupted_while_pools_are_counted(monkeypatch):
    def pool_bytes(work):
        raise KeyboardInterrupt

    runner = make(capture=False)
    monkeypatch.setattr(Work, "pool_bytes", pool_bytes)
    with pytest.raises(KeyboardInterrupt):
        runner.capture()


def test_devices_agree():
    with pytest.raises(ValueError, match="cpu.*cuda:0"):
        make(device="cpu")
    with pytest.raises(ValueError, match="one device"):
        NodeResources({"a": RaggedAttentionManager(1, 1, 8), "b": RaggedAttentionManager(1, 1, 8, device=GPU)})


# ---- regions -------------------------------------------------------------------------------------

def region_runner(make_inputs, label="tower", **more):
    linear = ops.Linear(np.random.default_rng(5).standard_normal((4, 4)).astype("float32"), device=GPU)
    config = PiecewisePackedConfig(
        capture_fn=lambda inputs: {"out": linear(inputs.static_inputs["x"])},
        make_static_inputs=make_inputs, capture_batch_sizes=[1, 2], total_tokens=[8, 16], **more)
    runner = PiecewiseAcceleratorGraphRunner(config, label=label, device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 4, runner.failures
    return runner, linear


@pytest.mark.parametrize("where", ["cpu", GPU])
def test_a_region(where):
    runner, linear = region_runner(
        lambda shape: {"x": mstarc.zeros(shape.total_tokens, 4, device=where)})
    for n in (8, 3, 16, 9, 0):
        x = rows(n, n)
        want = linear(mstarc.tensor(x, device=GPU)).cpu().numpy()
        for given in (x, mstarc.tensor(x, device=GPU)):
            result = runner.run({"x": given}, seq_lens=[n])
            assert str(result["out"].device) == GPU and result["out"].shape == (n, 4)
            assert result["out"].cpu().numpy().tobytes() == want.tobytes()


def test_contents_of_static_inputs():
    """A buffer that a call does not name keeps what make_static_inputs put there."""
    runner, linear = region_runner(lambda shape: {"x": np.full((shape.total_tokens, 4), 2, "float32")})
    want = linear(mstarc.tensor(np.full((8, 4), 2, "float32"), device=GPU)).cpu().numpy()
    assert (runner.run({}, seq_lens=[8])["out"].cpu().numpy() == want).all()


def test_the_callers_stream_waits_for_a_region_that_failed(mock, monkeypatch):
    """Its inputs were copied before, on the region's own stream."""
    streams = set()
    on = Work.on

    def note(work, stream, **more):
        streams.add(stream)
        return on(work, stream, **more)

    def declare(names, lengths):
        if names and names[0] == "bad":
            raise Boom("bad")
        return SubmoduleStep.of_lengths("self", names, lengths)

    monkeypatch.setattr(Work, "on", note)
    config = PiecewisePackedConfig(
        capture_fn=lambda inputs: {"out": ops.activate(inputs.static_inputs["x"], "none")},
        make_static_inputs=lambda shape: {"x": np.zeros((shape.total_tokens, 4), "float32")},
        capture_batch_sizes=[1], total_tokens=[8], declare_step=declare)
    runner = PiecewiseAcceleratorGraphRunner(config, resources())
    runner.capture()
    assert runner.info["num_captured"] == 1, runner.failures
    (own,) = streams
    with pytest.raises(Boom):
        runner.run({"x": rows(3)}, ["bad"], [3])
    assert mock.is_after(None, own)
    assert (runner.run({"x": rows(3)}, ["good"], [3])["out"].cpu().numpy() == rows(3)).all()


def test_a_region_inside_an_eager_forward():
    region, linear = region_runner(lambda shape: {"x": np.zeros((shape.total_tokens, 4), "float32")})

    class Around(Echo):
        def forward_batched(self, engine_inputs, tensors):
            x = ops.activate(tensors["x"], "none")
            n = x.shape[0]
            assert region.can_run(1, n)
            return {"x": ops.activate(region.run({"x": x}, seq_lens=[n]).view("out"), "none")}

    runner = AcceleratorGraphRunner(Around(False), [echo_config()], device=GPU)
    given = [NodeInputs({"x": rows(n, n)}, input_seq_len=n) for n in (3, 4)]
    result = runner.run("echo", ["a", "b"], given)
    want = linear(mstarc.tensor(np.concatenate([rows(3, 3), rows(4, 4)]), device=GPU))
    assert (result["x"].cpu().numpy() == want.cpu().numpy()).all()


def test_a_region_with_resources():
    node = resources()

    def tower(inputs):
        x = inputs.static_inputs["x"]
        q, k, v = (x[:, i * WIDTH:(i + 1) * WIDTH].reshape(-1, HEADS, DIM) for i in range(3))
        return {"out": inputs.engine_inputs.resources["self"].run(q, k, v)}

    def declare(names, lengths):
        return SubmoduleStep.of_lengths("self", names, lengths)

    config = PiecewisePackedConfig(
        capture_fn=tower, capture_batch_sizes=[2], total_tokens=[16], declare_step=declare,
        make_static_inputs=lambda shape: {"x": np.zeros((shape.total_tokens, 3 * WIDTH), "float32")})
    runner = PiecewiseAcceleratorGraphRunner(config, node)
    runner.capture()
    assert str(runner.device) == GPU and runner.info["num_captured"] == 1, runner.failures
    x = np.random.default_rng(1).standard_normal((9, 3 * WIDTH)).astype("float32")
    both = runner.run({"x": x}, ["a", "b"], [4, 5])["out"].cpu().numpy()
    alone = runner.run({"x": x[4:]}, ["b"], [5])["out"].cpu().numpy()
    assert both.shape == (9, HEADS, DIM) and both[4:].tobytes() == alone.tobytes()


# ---- callables of another framework --------------------------------------------------------------

class FakeTensor:
    """An array of a package called torch, on memory of a Tensor, which it keeps as torch's do: out of
    the garbage collector's sight."""

    __module__ = "torch"

    def __init__(self, inner):
        self.inner = inner
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(inner))

    def __del__(self):
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self.inner))

    def __getitem__(self, index):
        return FakeTensor(self.inner[index])

    def clone(self):
        return FakeTensor(self.inner.clone())

    @property
    def shape(self):
        return self.inner.shape

    @property
    def device(self):
        return 0

    def __dlpack__(self, **keywords):
        return self.inner.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()

    def new_empty(self, shape, dtype):
        made = ops.activate(self.inner, "none")  # of the runner's pool in a forward
        assert made.shape == tuple(shape) and made.dtype == dtype
        return FakeTensor(made)

    new_zeros = new_empty


class FakePool:
    """A pool without segments of its own: FakeTensors lie in memory of the runner's."""

    def snapshot(self):
        return []


@pytest.fixture
def fake_torch(monkeypatch):
    """A torch that keeps a diary of what is entered; its current stream is the default one."""
    diary = []
    current = [0]

    @contextlib.contextmanager
    def entered(what, stream=None):
        diary.append(what)
        before = current[0]
        current[0] = before if stream is None else stream
        yield
        current[0] = before
        diary.append("-" + what)

    torch = types.ModuleType("torch")
    torch.no_grad = lambda: entered("no_grad")
    torch.from_dlpack = FakeTensor
    torch.float32 = "float32"
    torch.int32 = "int32"
    torch.device = str
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, current_device=lambda: 0,
        current_stream=lambda index: types.SimpleNamespace(cuda_stream=current[0]),
        device=lambda index: entered("device"), MemPool=FakePool,
        use_mem_pool=lambda pool, index: entered("pool"),
        stream=lambda stream: entered("stream", stream), ExternalStream=lambda stream, device: stream)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return diary


def test_memory_of_torchs_pool(monkeypatch):
    work = Work(GPU)
    monkeypatch.setattr(work, "_ranges", [(256, 512), (1024, 1030)])
    assert [work.owns(n) for n in (0, 255, 256, 511, 512, 1024, 1030)] == [False, False, True, True, False,
                                                                           True, False]
    assert work.pool_bytes() == 262


@pytest.mark.parametrize("from_external", [False, True])
def test_memory_of_cupys_pool(monkeypatch, from_external):
    """What it has handed out is its own, again and again; other memory is not."""
    class Pool:
        taken = 0

        def malloc(self, count):
            self.taken += 1
            return types.SimpleNamespace(ptr=4096 if self.taken > 2 else 4096 * self.taken)

    used = []
    stream = types.SimpleNamespace(from_external=lambda native: contextlib.nullcontext(
        used.append(native.__cuda_stream__()))) if from_external else types.SimpleNamespace()
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        Device=lambda index: contextlib.nullcontext(), MemoryPool=Pool, Stream=stream,
        get_current_stream=lambda: types.SimpleNamespace(ptr=0),
        ExternalStream=lambda address, index: contextlib.nullcontext(used.append((index, address))),
        using_allocator=lambda take: contextlib.nullcontext(used.append(take)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    work = Work(GPU)
    with work.on(77, own_memory=True):
        for count in (10, 20, 5):
            used[1](count)
    assert used[0] == (0, 77)
    assert [work.owns(n) for n in (4095, 4096, 4105, 4106, 8192, 8211, 8212)] == [
        False, True, True, False, True, True, False]


class TorchNetwork(Submodule):
    def __init__(self):
        self.got = []
        self.gc = []

    def preprocess(self, engine_inputs, inputs):
        x = np.concatenate([one.tensor_inputs["x"] for one in inputs])
        return {"x": FakeTensor(mstarc.tensor(x, device=GPU)), "plain": x,
                "ids": FakeTensor(mstarc.tensor(np.arange(len(x), dtype="int32")))}

    def forward_batched(self, engine_inputs, tensors):
        self.got.append({name: type(tensor) for name, tensor in tensors.items()})
        if engine_inputs.capturing:
            self.gc.append(gc.isenabled())
        return {"x": ops.rotary(ops.activate(tensors["x"], "relu").inner.reshape(-1, 1, 4), tensors["ids"]),
                "plain": ops.activate(tensors["x"], "relu")}


def test_torch_callables(fake_torch, monkeypatch):
    monkeypatch.setattr(Work, "owns", lambda work, address: True)
    runner = AcceleratorGraphRunner(TorchNetwork(), [echo_config()], device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 1, runner.failures
    forward = fake_torch[fake_torch.index("pool") - 2:][:8]
    assert forward == ["device", "no_grad", "pool", "stream", "-stream", "-pool", "-no_grad", "-device"]
    for seen in runner.submodule.got:
        assert seen == {"x": FakeTensor, "plain": mstarc.Tensor, "ids": FakeTensor}
    assert set(runner.submodule.gc) == {False} and gc.isenabled()
    fake_torch.clear()
    given = [NodeInputs({"x": rows(n, n)}, input_seq_len=n) for n in (3, 4)]
    kept = {}
    for eager in (False, True):
        result = runner.run("echo", ["a", "b"], given, eager=eager)
        assert type(result["plain"]) is FakeTensor and type(result["x"]) is mstarc.Tensor
        got = {name: result[name] for name in result}
        got = {name: getattr(one, "inner", one).cpu().numpy().tobytes() for name, one in got.items()}
        assert kept in ({}, got)
        kept = got
    want = np.maximum(np.concatenate([rows(3, 3), rows(4, 4)]), 0)
    assert kept["plain"] == want.tobytes()
    assert "pool" not in fake_torch and "stream" not in fake_torch  # served on the caller's own


def test_a_runner_of_torch_callables_goes(fake_torch):
    """Arrays of another framework on static inputs do not keep the runner."""
    class Lookup(TorchNetwork):
        table = mstarc.zeros(8, 4, device=GPU)

        def forward_batched(self, engine_inputs, tensors):
            return ops.embedding(self.table, tensors["ids"])

    runner = AcceleratorGraphRunner(Lookup(), [echo_config()], device=GPU)
    runner.capture()
    assert runner.info["num_captured"] == 1
    gone = weakref.ref(runner)
    del runner
    gc.collect()
    assert gone() is None
