"""A network of one's own behind the runner: embedding, self attention, one vector a request.

The author writes three methods and says with a config which buckets to capture. The end runs every
step replayed and eager and compares the bits.

    python captured_network.py
"""
import numpy as np

from mstarc import ops
from mstarc.engine.accelerator_graph_config import PackedAcceleratorGraphConfig
from mstarc.engine.accelerator_graph_runner import AcceleratorGraphRunner
from mstarc.engine.resources.attn.ragged.managers import NodeResources, RaggedAttentionManager
from mstarc.engine.step import SubmoduleStep
from mstarc.model.submodule_base import NodeInputs, Submodule

WIDTH, HEADS, WORDS = 32, 4, 100
DIM = WIDTH // HEADS


class Network(Submodule):
    request_outputs = ("vectors",)

    def __init__(self, rng):
        self.words = rng.standard_normal((WORDS, WIDTH)).astype("float32")
        self.qkv = ops.Linear(rng.standard_normal((3 * WIDTH, WIDTH)).astype("float32"))
        self.out = ops.Linear(rng.standard_normal((WIDTH, WIDTH)).astype("float32"))

    def declare_step(self, engine_inputs, inputs):
        lengths = [one.input_seq_len for one in inputs]
        return SubmoduleStep.of_lengths("self", engine_inputs.padded_request_ids, lengths)

    def preprocess(self, engine_inputs, inputs):
        ids = [one.tensor_inputs["ids"] for one in inputs]
        offsets = np.cumsum([0] + [len(one) for one in ids], dtype="int32")
        return {"ids": np.concatenate(ids).astype("int32"), "offsets": offsets}

    def forward_batched(self, engine_inputs, tensors):
        x = ops.embedding(self.words, tensors["ids"])
        qkv = self.qkv(x).reshape(-1, 3 * HEADS, DIM)
        q, k, v = qkv[:, :HEADS], qkv[:, HEADS:2 * HEADS], qkv[:, 2 * HEADS:]
        context = engine_inputs.resources["self"].run(q, k, v).reshape(-1, WIDTH)
        x = self.out(context, residual=x)
        with ops.rows_of_requests():
            return {"vectors": ops.normalize(ops.pooling(x, tensors["offsets"]))}


def text(length):
    return NodeInputs({"ids": np.arange(length) * 7 % WORDS}, input_seq_len=length)


config = PackedAcceleratorGraphConfig("encode", [16, 32, 48], text, capture_batch_sizes=[4])
resources = NodeResources({"self": RaggedAttentionManager(HEADS, HEADS, DIM, dtype="float32")})
runner = AcceleratorGraphRunner(Network(np.random.default_rng(1)), [config], resources)
runner.capture()
print(runner)

same = True
for lengths in ([12, 20, 9, 7], [3], [16, 0, 15], [30, 30]):
    names = [f"request {i}" for i in range(len(lengths))]
    inputs = [text(length) for length in lengths]
    result = runner.run("encode", names, inputs)
    replayed = result["vectors"].numpy()  # a copy: the next step writes over the runner's own
    eager = runner.run("encode", names, inputs, eager=True)["vectors"].numpy()
    same = same and replayed.tobytes() == eager.tobytes()
    print(result, replayed.shape, "the bits of eager" if same else "OTHER BITS THAN EAGER")
raise SystemExit(0 if same else 1)
