"""Captures whose tokens follow from the number of requests: templates, and the rows that pad."""
import numpy as np
import pytest

import mstarc
from mstarc import ops
from mstarc.engine.accelerator_graph_config import BatchedAcceleratorGraphConfig
from mstarc.engine.accelerator_graph_runner import AcceleratorGraphRunner
from mstarc.model.submodule_base import NodeInputs, Submodule


def test_batched_configs():
    class Decode(Submodule):
        def preprocess(self, engine_inputs, inputs):
            return {"x": np.concatenate([one.tensor_inputs["x"] for one in inputs])}

        def forward_batched(self, engine_inputs, tensors):
            return ops.activate(tensors["x"], "relu")

    def row(value):
        return NodeInputs({"x": np.full((1, 4), value, "float32")}, input_seq_len=1)

    template = row(9)
    config = BatchedAcceleratorGraphConfig("decode", template, capture_batch_sizes=[4, 2])
    runner = AcceleratorGraphRunner(Decode(), [config])
    runner.capture()
    for eager in (False, True):
        result = runner.run("decode", ["a", "b", "c"], [row(-1), row(2), row(3)], eager=eager)
        assert result.replayed is not eager and result.num_requests == result.num_tokens == 3
        assert result.bs == (3 if eager else 4)
        assert result["x"].tolist() == result.view("x").tolist() == [[0] * 4, [2] * 4, [3] * 4]
    assert (template.tensor_inputs["x"] == 9).all()


@pytest.mark.parametrize("multiplier", [1, 3])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_rows_that_pad_a_batched_bucket_are_no_results(multiplier, count):
    """They have the template's span and are computed; nobody sees what of."""
    class Guided(Submodule):
        request_outputs = ("sums",)

        def preprocess(self, engine_inputs, inputs):
            return {"x": np.concatenate([np.tile(one.tensor_inputs["x"], (multiplier, 1)) for one in inputs]),
                    "offsets": np.arange(len(inputs) + 1, dtype="int32") * 2 * multiplier}

        def forward_batched(self, engine_inputs, tensors):
            with ops.rows_of_requests():
                sums = ops.pooling(tensors["x"], tensors["offsets"])
            return {"x": ops.activate(tensors["x"], "relu"), "sums": sums}

    def two_rows(value):
        return NodeInputs({"x": np.full((2, 4), value, "float32")}, input_seq_len=2)

    config = BatchedAcceleratorGraphConfig("guide", two_rows(77), capture_batch_sizes=[4],
                                           total_tokens_multiplier=multiplier)
    runner = AcceleratorGraphRunner(Guided(), [config])
    runner.capture()
    inputs = [two_rows(i + 1) for i in range(count)]
    want = np.repeat(np.arange(1, count + 1), 2 * multiplier)
    for eager in (False, True):
        result = runner.run("guide", [f"r{i}" for i in range(count)], inputs, eager=eager)
        assert result.replayed is not eager
        assert (result.num_requests, result.num_tokens) == (count, 2 * multiplier * count)
        assert (np.asarray(result["x"]) == want[:, None]).all() and result["x"].shape == (len(want), 4)
        assert result.view("x").shape == (len(want), 4)
        assert (np.asarray(result["sums"]) == np.arange(1, count + 1)[:, None]).all()
        assert result["sums"].shape == (count, 4)


def test_a_template_without_clone():
    class Bare:
        input_seq_len = 1

        def __init__(self):
            self.x = mstarc.zeros(1, 4)

    class Decode(Submodule):
        def preprocess(self, engine_inputs, inputs):
            assert all(type(one) is Bare for one in inputs)
            return {"x": np.concatenate([np.asarray(one.x) for one in inputs])}

        def forward_batched(self, engine_inputs, tensors):
            return ops.activate(tensors["x"], "tanh")

    runner = AcceleratorGraphRunner(Decode(), [BatchedAcceleratorGraphConfig("d", Bare(),
                                                                             capture_batch_sizes=[2])])
    runner.capture()
    assert runner.run("d", ["a"], [Bare()]).replayed
