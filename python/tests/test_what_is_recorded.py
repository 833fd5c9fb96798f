"""On the CPU a replay runs what operations recorded, and nothing else: what would be stale is refused."""
import gc
import weakref

import numpy as np
import pytest
from runner_network import rows

import mstarc
from mstarc import ops
from mstarc.engine.accelerator_graph_config import PackedAcceleratorGraphConfig, PiecewisePackedConfig
from mstarc.engine.accelerator_graph_runner import (
    AcceleratorGraphRunner,
    PiecewiseAcceleratorGraphRunner,
)
from mstarc.model.submodule_base import NodeInputs, Submodule

TABLE = np.arange(64, dtype="float32").reshape(16, 4)


class Network(Submodule):
    def __init__(self, forward):
        self.forward = forward

    def preprocess(self, engine_inputs, inputs):
        return {"x": np.concatenate([one.tensor_inputs["x"] for one in inputs])}

    def forward_batched(self, engine_inputs, tensors):
        return self.forward(tensors["x"])


def whole(forward, **more):
    config = PackedAcceleratorGraphConfig(
        "walk", [8, 16], lambda n: NodeInputs({"x": rows(n, n)}, input_seq_len=n), capture_batch_sizes=[1])
    runner = AcceleratorGraphRunner(Network(forward), [config], **more)
    runner.capture()
    return runner


def run(runner, n):
    return runner.run("walk", ["a"], [NodeInputs({"x": rows(n, n)}, input_seq_len=n)])


def region(forward):
    config = PiecewisePackedConfig(
        capture_fn=lambda inputs: forward(inputs.static_inputs["x"]), capture_batch_sizes=[1],
        make_static_inputs=lambda shape: {"x": np.zeros((shape.total_tokens, 4), "float32")},
        total_tokens=[8, 16])
    runner = PiecewiseAcceleratorGraphRunner(config)
    runner.capture()
    return runner


STALE = {  # how a forward makes its result, and what the failure says
    "numpy": (lambda x: {"y": np.asarray(x) * 2}, "result 'y' is not made by an operation"),
    "one of two": (lambda x: {"a": ops.activate(x, "relu"), "y": np.asarray(x) * 2}, "result 'y'"),
    "a copy": (lambda x: ops.activate(x.clone(), "relu"), "copied inside a forward"),
    "a cast": (lambda x: x.to("float16"), "copied inside a forward"),
    "a new tensor": (lambda x: mstarc.tensor(np.asarray(x)), "copied inside a forward"),
    "a turned result": (lambda x: {"y": np.asfortranarray(np.asarray(ops.activate(x, "relu")))}, "y"),
}


@pytest.mark.parametrize("how", list(STALE))
@pytest.mark.parametrize("warmups", [0, 2])
def test_stale_results_are_refused(how, warmups):
    """The bucket is dropped, and the eager step is right."""
    forward, message = STALE[how]
    runner = whole(forward, num_warmups=warmups)
    assert runner.info["num_captured"] == 0 and runner.failures
    assert all(message in str(failure.exception) for failure in runner.failures)
    for n in (3, 7):
        result = run(runner, n)
        assert result.miss == "not_captured"
        want = forward(mstarc.tensor(rows(n, n)))
        for name in result:
            assert np.asarray(result[name]).tolist() == \
                np.asarray(want[name] if isinstance(want, dict) else want).tolist()


@pytest.mark.parametrize("how", list(STALE))
def test_stale_results_of_a_region_are_refused(how):
    forward, message = STALE[how]
    runner = region(forward)
    assert runner.info["num_captured"] == 0
    assert all(message in str(failure.exception) for failure in runner.failures)
    assert runner.why_not(1, 8) == "not_captured"


def into_numpy(x):
    out = np.zeros(x.shape, "float32")
    ops.activate(x, "relu", out=out)
    return {"y": out}


FRESH = {  # what a replay does make again
    "an operation": lambda x: {"y": ops.activate(x, "relu")},
    "a view of one": lambda x: {"y": ops.activate(x, "relu").reshape(-1, 2, 2)},
    "into numpy's memory": into_numpy,
    "an input": lambda x: {"y": x},
    "a constant": lambda x: {"y": ops.activate(x, "relu"), "table": TABLE[:x.shape[0]]},
}


@pytest.mark.parametrize("how", list(FRESH))
@pytest.mark.parametrize("warmups", [0, 2])
def test_what_a_replay_makes_again(how, warmups):
    runner = whole(FRESH[how], num_warmups=warmups)
    assert runner.info["num_captured"] == 2, runner.failures
    for n in (3, 8, 13):
        result = run(runner, n)
        want = rows(n, n) if how == "an input" else np.maximum(rows(n, n), 0)
        assert result.replayed and (np.asarray(result["y"]).reshape(n, 4) == want).all()
        if "table" in result:
            assert (np.asarray(result["table"]) == TABLE[:n]).all()
    in_region = region(FRESH[how])
    assert in_region.info["num_captured"] == 2, in_region.failures


def test_what_was_refused_is_let_go():
    made = []

    def forward(x):
        y = np.asarray(x) * 2
        made.append(weakref.ref(y))
        return {"y": y}

    runner = whole(forward)
    for failure in runner.failures:
        failure.exception.__traceback__ = None
    gc.collect()
    assert made and all(one() is None for one in made)
