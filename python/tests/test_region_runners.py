"""The runner of regions, and the managers of attention that both runners share."""
import gc
import logging
import threading
import time
import weakref

import numpy as np
import pytest
from runner_network import Boom, packed, raw, resources, rows, run, text

from mstarc import ops
from mstarc.engine.accelerator_graph_config import PiecewiseBatchedConfig, PiecewisePackedConfig
from mstarc.engine.accelerator_graph_runner import (
    AcceleratorGraphRunner,
    PiecewiseAcceleratorGraphRunner,
)
from mstarc.engine.resources.attn.ragged.managers import (
    NodeResources,
    PrefixedAttentionManager,
    RaggedAttentionManager,
    RaggedCrossAttentionManager,
)
from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper
from mstarc.engine.step import ResourceStep, Segment, SubmoduleStep
from mstarc.model.submodule_base import Submodule

# ---- regions -------------------------------------------------------------------------------------

LINEAR = ops.Linear(np.random.default_rng(5).standard_normal((4, 4)).astype("float32"))


def region(inputs):
    return {"out": LINEAR(inputs.static_inputs["x"])}


def buffers(shape):
    return {"x": np.zeros((shape.total_tokens, 4), "float32")}


def piecewise(resources=None, capture=True, label="tower", **more):
    config = PiecewisePackedConfig(**{"capture_fn": region, "make_static_inputs": buffers,
                                      "capture_batch_sizes": [1, 2], "total_tokens": [8, 16], **more})
    runner = PiecewiseAcceleratorGraphRunner(config, resources, label=label)
    if capture:
        runner.capture()
    return runner


def test_a_packed_region():
    runner = piecewise()
    assert runner.info["num_captured"] == 4
    for n in (8, 3, 16, 9, 0):
        result = runner.run({"x": rows(n, n), "unknown": rows(1), "words": "no tensor"}, seq_lens=[n])
        assert result.real_len == n and result["out"].shape == (n, 4) and list(result) == ["out"]
        assert memoryview(result["out"]).tobytes() == LINEAR(rows(n, n)).tobytes()
    assert runner.can_run(2, 16) and not runner.can_run(3, 2) and not runner.can_run(1, 17)
    assert runner.why_not(3, 2) == "batch_size" and runner.why_not(1, 17) == "tokens"
    assert runner.why_not(1) is not None
    with pytest.raises(RuntimeError, match="ask can_run first"):
        runner.run({"x": rows(17)}, seq_lens=[17])
    with pytest.raises(ValueError, match="real_bs"):
        runner.run({"x": rows(2)})
    with pytest.raises(ValueError, match='"x" does not fit'):
        runner.run({"x": rows(2).astype("float64")}, seq_lens=[2])
    assert runner.info["refused"] == 1
    one_many = runner.run({"x": rows(12)}, seq_lens=[3, 4, 5], real_bs=1)
    assert one_many.real_len == 12 and one_many.bs == 1


def test_sizes_that_are_listed_twice():
    runner = piecewise(total_tokens=[16, 16], capture_batch_sizes=[1, 1])
    assert runner.info["num_shapes"] == 1 == runner.info["num_captured"]
    assert runner.config.total_tokens == [16, 16] and runner.config.capture_batch_sizes == [1, 1]


def test_memory_of_a_region():
    """What a dropped shape took is given back, the author's arrays too."""
    made = {}

    def make_buffers(shape):
        x = np.zeros((shape.total_tokens, 4), "float32")
        made[shape.bs, shape.total_tokens] = weakref.ref(x)
        return {"x": x}

    def make(**more):
        made.clear()
        config = PiecewisePackedConfig(
            capture_fn=region, make_static_inputs=make_buffers, capture_batch_sizes=[1, 2],
            total_tokens=[8, 16])
        runner = PiecewiseAcceleratorGraphRunner(config, label="tower", **more)
        runner.capture()
        return runner

    runner = make()
    info = runner.info
    assert info["num_unaffordable"] == 0 == info["resource_bytes"] and info["num_captured"] == 4
    assert all(x() is not None for x in made.values())
    need = info["output_bytes"] + info["graph_bytes"]
    assert make(free_bytes=need).info["num_captured"] == 4
    runner = make(free_bytes=need - 1)
    assert runner.info["num_unaffordable"] == 1 and runner.info["num_captured"] == 3
    assert [key for key, x in made.items() if x() is None] == [(1, 8)]
    for more in ({"free_bytes": 0}, {"free_bytes": need, "floor_bytes": need}):
        runner = make(**more)
        assert runner.info["num_unaffordable"] == 4 and runner.info["num_captured"] == 0
        assert all(x() is None for x in made.values())


@pytest.mark.parametrize("at", ["prepare", "capture"])
def test_static_inputs_of_a_shape_that_failed(at, caplog):
    caplog.set_level(logging.CRITICAL, "mstarc")  # a record would keep the trace and what that refers to
    made, kept = {}, []
    captures = False

    def make_buffers(shape):
        x = np.ones((shape.total_tokens, 4), "float32")
        made[shape.bs, shape.total_tokens] = weakref.ref(x)
        return {"x": x}

    def sometimes(inputs):
        if inputs.static_inputs["x"].shape[0] == 8 and captures is (at == "capture"):
            kept.append(inputs.static_inputs["x"])
            raise Boom("no")
        return region(inputs)

    runner = piecewise(make_static_inputs=make_buffers, capture_fn=sometimes, capture=False)
    runner.prepare()
    captures = True
    runner.capture()
    assert runner.info["num_captured"] == 2
    assert kept and all(x.tolist() == [[1.0] * 4] * 8 for x in kept)  # who keeps one has its memory
    kept.clear()
    for failure in runner.failures:
        failure.exception.__traceback__ = None
    gc.collect()
    assert {key for key, x in made.items() if x() is None} == {(1, 8), (2, 8)}
    result = runner.run({"x": rows(5)}, seq_lens=[5])
    assert memoryview(result["out"]).tobytes() == LINEAR(rows(5)).tobytes()


def test_region_results():
    runner = piecewise()
    first = runner.run({"x": rows(5)}, seq_lens=[5])
    kept, alias = first["out"], first.view("out")
    before = kept.tolist()
    again = runner.run({"x": rows(5, 1)}, seq_lens=[5])
    assert kept.tolist() == before != again["out"].tolist() == alias.tolist()
    assert first.get("absent") is None
    with pytest.raises(KeyError):
        first["absent"]


def test_a_batched_region():
    config = PiecewiseBatchedConfig(
        capture_fn=lambda inputs: LINEAR(inputs.static_inputs["x"].reshape(-1, 4)).reshape(-1, 3, 4),
        make_static_inputs=lambda shape: {"x": np.zeros((shape.bs, 3, 4), "float32")},
        capture_batch_sizes=[4, 2], seq_len=3)
    runner = PiecewiseAcceleratorGraphRunner(config)
    runner.capture()
    for bs in (1, 2, 3, 4):
        x = rows(bs * 3, bs).reshape(bs, 3, 4)
        result = runner.run({"x": x}, real_bs=bs)
        assert list(result) == ["x"] and result["x"].shape == (bs, 3, 4) and result.real_len == bs
        assert result.view("x").shape == (bs, 3, 4)
        assert memoryview(result["x"]).tobytes() == LINEAR(x.reshape(-1, 4)).tobytes()
    assert not runner.can_run(5)


def test_static_inputs_are_the_authors_memory():
    """Staging zeroes what is behind the real rows; buffers that a call does not name keep theirs."""
    made = {}

    def make_buffers(shape):
        made[shape.bs, shape.total_tokens] = x = np.zeros((shape.total_tokens, 4), "float32")
        frozen = np.ones((shape.total_tokens, 4), "float32")
        frozen.flags.writeable = False  # copied: a buffer has to be written
        return {"x": x, "y": frozen}

    linear = ops.Linear(np.eye(4, dtype="float32"))
    runner = piecewise(make_static_inputs=make_buffers, total_tokens=[8], capture_batch_sizes=[1],
                       capture_fn=lambda i: linear(i.static_inputs["x"], i.static_inputs["y"]))
    made[1, 8][:] = np.nan
    result = runner.run({"x": rows(5)}, seq_lens=[5])
    assert (made[1, 8][:5] == rows(5)).all() and not made[1, 8][5:].any()
    assert np.allclose(np.asarray(result["x"]), rows(5) + 1)
    runner.run({"y": np.zeros((2, 4), "float32")}, seq_lens=[5])
    assert (made[1, 8][:5] == rows(5)).all()


def attention_region(inputs):
    assert inputs.resources is inputs.engine_inputs.resources and inputs.kwargs["scale"] is SCALE
    x = inputs.static_inputs["x"].reshape(-1, 1, 4)
    return inputs.resources["attn"].run(x, x, x).reshape(-1, 4)


SCALE = object()


def attention_runner(declared, **more):
    def declare(request_ids, lengths):
        assert all(isinstance(name, str) for name in request_ids)
        declared.append((list(request_ids), list(lengths)))
        return SubmoduleStep.of_lengths("attn", request_ids, lengths)

    managers = NodeResources({"attn": RaggedAttentionManager(1, 1, 4, dtype="float32",
                                                             max_segments_per_request=3)})
    return piecewise(managers, capture_fn=attention_region, declare_step=declare,
                     forward_kwargs={"scale": SCALE}, **more)


def test_a_region_with_resources():
    declared = []
    runner = attention_runner(declared)
    assert runner.info["num_captured"] == 4 and not runner.failures
    eager = RaggedPrefillWrapper(1, 1, 4, device="cpu", q_data_type="float32")
    for ids, lengths, real_bs in ((["a", "b"], [4, 3], None), (["b"], [9], None), (["c"], [2, 3, 1], 1)):
        n = sum(lengths)
        result = runner.run({"x": rows(n, n)}, ids, lengths, real_bs)
        eager.plan(np.cumsum([0, *lengths]))
        x = rows(n, n).reshape(n, 1, 4)
        assert memoryview(result["x"]).tobytes() == eager.run(x, x, x).tobytes()
        names, spans = declared[-1]
        assert names[:len(ids)] == ids and spans[:len(lengths)] == lengths
        assert not any(spans[len(lengths):])
    padding = {name for names, _ in declared for name in names if name not in "abc"}
    assert padding and all(name.startswith("__padding_") for name in padding)


def test_regions_share_resources():
    declared = []
    first = attention_runner(declared, capture=False)
    second = PiecewiseAcceleratorGraphRunner(first.config, first.resources, label="other")
    for runner in (first, second):
        runner.prepare()
    for runner in (first, second):
        runner.capture()
    a = first.run({"x": rows(6)}, ["a"], [6])["x"]
    b = second.run({"x": rows(6)}, ["a"], [6])["x"]
    assert a.tolist() == b.tolist()


def test_leases_before_the_step():
    asked = []

    def can_lease(inputs):
        asked.append([one.input_seq_len for one in inputs])
        if can_lease.raises:
            raise Boom("ask later")
        return len(inputs) == 1

    can_lease.raises = False
    runner = piecewise(lease_before_step=True, can_lease=can_lease)
    assert runner.can_lease([text(8)]) and not runner.can_lease([text(4), text(4)])
    assert not runner.can_lease([text(17)]) and asked == [[8], [4, 4]]
    can_lease.raises = True
    with pytest.raises(Boom, match="ask later"):
        runner.can_lease([text(8)])
    assert not piecewise(can_lease=None).can_lease([text(8)])
    assert piecewise(lease_before_step=True).can_lease([text(4), text(4)])


def test_asked_while_it_captures():
    """No lease for a capture that may yet fail, whoever asks: only what is there is promised."""
    heard, threads, shapes = [], [], []

    def ask():
        heard.append((runner.why_not(1, 8), runner.can_lease([text(8)])))

    def asked(inputs):
        ask()  # inside of the callback, and from beside it
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
        threads[-1].join()
        assert runner.info["num_captured"] < 4
        shapes.append(inputs.static_inputs["x"].shape[0])
        if len(shapes) == fails_at:
            raise Boom("the last one")
        return region(inputs)

    fails_at = 0
    runner = piecewise(capture=False, capture_fn=asked, lease_before_step=True)
    runner.prepare()
    fails_at = len(shapes) + 4 * 3  # two warm-ups and a recording of each shape
    runner.capture()
    assert len(heard) == 2 * fails_at and set(heard) == {("not_captured", False)}
    assert runner.info["num_captured"] == 3
    assert runner.why_not(1, 8) is None and runner.can_lease([text(8)])  # the larger one stands in


def test_a_query_waits_for_captures():
    told, threads = [], []

    def asking(inputs):
        threads.append(threading.Thread(target=lambda: told.append(runner.info["num_captured"])))
        threads[-1].start()
        time.sleep(0.01)  # time enough for an answer, were there one
        return region(inputs)

    runner = piecewise(capture=False, capture_fn=asking)
    runner.prepare()
    runner.capture()
    for thread in threads:
        thread.join()
    assert set(told) <= {0, 4} and 4 in told  # 0: of those that were asked in prepare


@pytest.mark.parametrize("where", ["capture_fn", "make_static_inputs", "declare_step"])
def test_exceptions_of_a_region(where, caplog):
    def raising(*_):
        raise Boom(where)

    if where == "declare_step":  # it is asked for the number of slots
        with pytest.raises(Boom, match=where):
            piecewise(resources(), capture=False, declare_step=raising)
        return
    runner = piecewise(capture=False, **{where: raising})
    with caplog.at_level(logging.ERROR, "mstarc"):
        runner.capture()
    assert runner.info["num_captured"] == 0 and "node_tower" in caplog.text
    assert all(isinstance(failure.exception, Boom) for failure in runner.failures)
    assert runner.why_not(1, 8) == "not_captured"


def test_declare_step_may_raise_at_a_run():
    declared = []
    runner = attention_runner(declared)
    want = runner.run({"x": rows(4)}, ["a"], [4])["x"].tolist()
    kept = runner.config.declare_step

    def raising(request_ids, lengths):
        raise Boom("declare")

    runner.config.declare_step = raising
    with pytest.raises(Boom, match="declare"):
        runner.run({"x": rows(4)}, ["a"], [4])
    runner.config.declare_step = kept
    assert runner.run({"x": rows(4)}, ["a"], [4])["x"].tolist() == want


def test_threads_share_a_region():
    """Each run declares its own requests, whatever ends meanwhile."""
    declared, got = [], {}
    runner = attention_runner(declared)
    want = {n: raw(runner.run({"x": rows(n)}, ["alone"], [n]), "x") for n in (3, 4)}
    declared.clear()

    class Late:
        def __index__(self):
            other.start()
            time.sleep(0.05)  # time enough for the other run, were it let in
            return 3

    def work(name, n, length):
        got[name] = raw(runner.run({"x": rows(n)}, [name], [length]), "x")

    other = threading.Thread(target=work, args=("b", 4, 4))
    work("a", 3, Late())
    other.join()
    assert [ids[0] for ids, _ in declared] == ["a", "b"]
    assert got == {"a": want[3], "b": want[4]}


def test_trial_recordings_keep_nothing():
    """What prepare records to count it goes, with all that it has read."""
    read = []

    def noting(inputs):
        residual = np.zeros(inputs.static_inputs["x"].shape, "float32")
        read.append(weakref.ref(residual))
        return {"out": LINEAR(inputs.static_inputs["x"], residual=residual)}

    runner = piecewise(capture=False, capture_fn=noting)
    runner.prepare()
    gc.collect()
    assert read and all(one() is None for one in read)
    runner.capture()
    gc.collect()
    assert sum(one() is not None for one in read) == runner.info["num_captured"] == 4
    assert raw(runner.run({"x": rows(3)}, seq_lens=[3]), "out") == LINEAR(rows(3)).tobytes()


def test_no_step_declared():
    """None of the field or of the call: the region's resources are not touched."""
    managers = resources()
    runner = piecewise(managers, declare_step=lambda request_ids, lengths: None)
    runner.run({"x": rows(4)}, ["a"], [4])
    assert managers["self"].info["plans"] == 0


def test_a_region_inside_an_eager_forward():
    inner = piecewise()

    class Outer(Submodule):
        def preprocess(self, engine_inputs, inputs):
            return {"x": rows(sum(one.input_seq_len for one in inputs))}

        def forward_batched(self, engine_inputs, tensors):
            assert engine_inputs.region_leases == ("tower",)
            x = ops.activate(tensors["x"], "tanh")
            return ops.activate(inner.run({"x": x}, seq_lens=[x.shape[0]])["out"], "relu")

    outer = AcceleratorGraphRunner(Outer(), [])
    result = outer.run("any", ["a"], [text(5)], region_leases=["tower"])
    want = ops.activate(LINEAR(ops.activate(rows(5), "tanh")), "relu")
    assert memoryview(result["x"]).tobytes() == want.tobytes() and result.miss == "walk"


# ---- managers ------------------------------------------------------------------------------------

class Attention(Submodule):
    """Runs one manager over segments of labels "q" and "kv"."""

    def __init__(self, kv, label):
        self.kv, self.label = kv, label

    def declare_step(self, engine_inputs, inputs):
        ids = engine_inputs.padded_request_ids
        return SubmoduleStep({"attn": ResourceStep(
            [Segment(i, one.input_seq_len, "q") for i, one in zip(ids, inputs)]
            + [Segment(i, self.kv * one.input_seq_len, "kv") for i, one in zip(ids, inputs)],
            [("q", "kv")], causal=False)})

    def preprocess(self, engine_inputs, inputs):
        n = sum(one.input_seq_len for one in inputs)
        return {"q": rows(n).reshape(n, 1, 4), "kv": rows(self.kv * n, 1).reshape(-1, 1, 4)}

    def forward_batched(self, engine_inputs, tensors):
        return engine_inputs.resources["attn"].run(tensors["q"], tensors["kv"], tensors["kv"],
                                                   self.label)


@pytest.mark.parametrize("manager", [RaggedCrossAttentionManager, PrefixedAttentionManager])
@pytest.mark.parametrize("label", [None, "q:kv"])
def test_pairs_of_labels(manager, label):
    managers = NodeResources({"attn": manager(1, 1, 4, dtype="float32", max_tokens_per_request=32)})
    runner = AcceleratorGraphRunner(Attention(2, label), [packed((8, 16), (2,))], managers)
    runner.capture()
    for lengths in ([3, 4], [8, 8], [20]):
        got, want = run(runner, lengths), run(runner, lengths, eager=True)
        assert raw(got, "x") == raw(want, "x") and got.replayed == (sum(lengths) <= 16)
        n = sum(lengths)
        q, kv = rows(n).astype("float64"), rows(2 * n, 1).astype("float64")
        begin = 0
        for length in lengths:
            part, keys = slice(begin, begin + length), slice(2 * begin, 2 * (begin + length))
            weights = np.exp(q[part] @ kv[keys].T / 2)
            value = weights @ kv[keys] / weights.sum(1, keepdims=True)
            assert np.abs(np.asarray(want["x"])[part, 0] - value).max() <= 256 * 2.0 ** -24 * \
                np.abs(kv).max()
            begin += length


def test_labels_that_are_not_planned():
    managers = NodeResources({"attn": RaggedCrossAttentionManager(1, 1, 4, dtype="float32")})
    runner = AcceleratorGraphRunner(Attention(1, "q:other"), [], managers)
    with pytest.raises(KeyError, match="q:kv"):
        run(runner, [3])
    runner.submodule.label = None
    assert run(runner, [3])["x"].shape == (3, 1, 4)


@pytest.mark.parametrize("kwargs, error", [
    ({"num_kv_heads": 2}, ValueError), ({"head_dim": 300}, ValueError), ({"dtype": "int32"}, ValueError),
    ({"flashinfer_backend": "fast"}, ValueError), ({"max_tokens_per_request": -1}, ValueError),
    ({"flashinfer_backend": "fa3"}, NotImplementedError), ({"tp_world_size": 0}, ValueError),
])
def test_refused_managers(kwargs, error):
    with pytest.raises(error):
        RaggedAttentionManager(**{"num_qo_heads": 3, "num_kv_heads": 3, "head_dim": 8, **kwargs})


def test_resources_are_managers():
    with pytest.raises(TypeError, match="'a'"):
        NodeResources({"a": 3})
    assert "RaggedAttentionManager(3 heads on 3, head_dim 8, float32)" in repr(resources())
    assert len(resources()) == 1
