"""A small network for the tests of the runners, and what they call."""
import numpy as np

import mstarc
from mstarc import ops
from mstarc.engine.accelerator_graph_config import PackedAcceleratorGraphConfig
from mstarc.engine.accelerator_graph_runner import AcceleratorGraphRunner
from mstarc.engine.resources.attn.ragged.managers import NodeResources, RaggedAttentionManager
from mstarc.engine.step import SubmoduleStep
from mstarc.model.submodule_base import NodeInputs, Submodule

WIDTH, HEADS, WORDS = 24, 3, 50
DIM = WIDTH // HEADS


class Boom(Exception):
    """What a callback raises."""


def text(length, seed=0):
    ids = (np.arange(length) * 7 + seed * 13) % WORDS
    return NodeInputs({"ids": ids.astype("int32")}, input_seq_len=length)


class Network(Submodule):
    """Embedding, attention, one vector a request. hook(where, engine_inputs) may raise."""

    request_outputs = ("vectors",)

    def __init__(self, dtype="float32", hook=None):
        rng = np.random.default_rng(3)
        self.words = mstarc.tensor(rng.standard_normal((WORDS, WIDTH)).astype("float32"), dtype)
        self.qkv = ops.Linear(rng.standard_normal((3 * WIDTH, WIDTH)).astype("float32"))
        self.out = ops.Linear(rng.standard_normal((WIDTH, WIDTH)).astype("float32"))
        self.hook = hook or (lambda where, engine_inputs: None)
        self.forwards = 0

    def declare_step(self, engine_inputs, inputs):
        self.hook("declare_step", engine_inputs)
        assert len(inputs) == len(engine_inputs.padded_request_ids)
        assert all(isinstance(name, str) for name in engine_inputs.padded_request_ids)
        return SubmoduleStep.of_lengths("self", engine_inputs.padded_request_ids,
                                        [one.input_seq_len for one in inputs])

    def preprocess(self, engine_inputs, inputs):
        self.hook("preprocess", engine_inputs)
        ids = [one.tensor_inputs["ids"] for one in inputs]
        return {"ids": np.concatenate(ids), "scale": 2,
                "offsets": np.cumsum([0] + [len(one) for one in ids], dtype="int32")}

    def forward_batched(self, engine_inputs, tensors):
        self.hook("forward", engine_inputs)
        self.forwards += 1
        assert tensors["scale"] == 2
        x = ops.embedding(self.words, tensors["ids"])
        qkv = self.qkv(x).reshape(-1, 3 * HEADS, DIM)
        q, k, v = (qkv[:, i * HEADS:(i + 1) * HEADS] for i in range(3))
        context = engine_inputs.resources["self"].run(q, k, v)
        x = self.out(context.reshape(-1, WIDTH), residual=x)
        with ops.rows_of_requests():
            vectors = ops.normalize(ops.pooling(x, tensors["offsets"]))
        return {"tokens": x, "vectors": vectors}


def packed(tokens=(8, 16, 24), sizes=(1, 4), **more):
    return PackedAcceleratorGraphConfig("encode", list(tokens), text, capture_batch_sizes=list(sizes),
                                        **more)


def resources(dtype="float32"):
    return NodeResources({"self": RaggedAttentionManager(HEADS, HEADS, DIM, dtype=dtype)})


def make(network=None, configs=None, capture=True, **more):
    runner = AcceleratorGraphRunner(network or Network(), configs or [packed()], resources(), **more)
    if capture:
        runner.capture()
    return runner


def run(runner, lengths, **more):
    names = [f"r{i}" for i in range(len(lengths))]
    return runner.run("encode", names, [text(n, i) for i, n in enumerate(lengths)], **more)


def raw(result, name):
    got = result[name]
    return memoryview(got.to("float32") if got.dtype == "bfloat16" else got).tobytes()


def rows(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 4)).astype("float32")
