"""A network of torch's on a GPU, behind the runner, and a wrapper in a torch.cuda.graph of one's own.

    python torch_on_a_gpu.py
"""
import sys

try:
    import torch

    import mstarc
    mstarc.device_info("cuda:0")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU")
except (ImportError, RuntimeError) as error:
    print(f"this example needs torch, a GPU and a library built with CUDA: {error}")
    sys.exit(0)

from mstarc.engine.accelerator_graph_config import PackedAcceleratorGraphConfig
from mstarc.engine.accelerator_graph_runner import AcceleratorGraphRunner
from mstarc.engine.resources.attn.ragged.managers import NodeResources, RaggedAttentionManager
from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper
from mstarc.engine.step import SubmoduleStep
from mstarc.model.submodule_base import NodeInputs, Submodule

WIDTH, HEADS, WORDS = 512, 8, 1000
DIM = WIDTH // HEADS


class Network(Submodule):
    def __init__(self):
        self.words = torch.nn.Embedding(WORDS, WIDTH, device="cuda", dtype=torch.bfloat16)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, device="cuda", dtype=torch.bfloat16)
        self.out = torch.nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)

    def declare_step(self, engine_inputs, inputs):
        lengths = [one.input_seq_len for one in inputs]
        return SubmoduleStep.of_lengths("self", engine_inputs.padded_request_ids, lengths)

    def preprocess(self, engine_inputs, inputs):
        return {"ids": torch.cat([one.tensor_inputs["ids"] for one in inputs]).to("cuda")}

    def forward_batched(self, engine_inputs, tensors):
        x = self.words(tensors["ids"])
        q, k, v = self.qkv(x).view(-1, 3, HEADS, DIM).unbind(1)
        return {"x": x + self.out(engine_inputs.resources["self"].run(q, k, v).reshape(-1, WIDTH))}


def text(length):
    return NodeInputs({"ids": torch.arange(length) * 7 % WORDS}, input_seq_len=length)


torch.manual_seed(0)
resources = NodeResources({"self": RaggedAttentionManager(HEADS, HEADS, DIM, device="cuda")})
config = PackedAcceleratorGraphConfig("encode", [64, 256], text, capture_batch_sizes=[4])
runner = AcceleratorGraphRunner(Network(), [config], resources)
runner.capture()
print(runner)
for lengths in ([30, 9, 17], [200, 1, 40, 3], [300, 20]):
    names = [f"request {i}" for i in range(len(lengths))]
    result = runner.run("encode", names, [text(length) for length in lengths])
    print(result, tuple(result["x"].shape), result["x"].device)

wrapper = RaggedPrefillWrapper(HEADS, HEADS, DIM, max_num_segments=4, max_total_tokens=256,
                               accelerator_graph=True)
static = [torch.randn(256, HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
wrapper.run(*static)  # torch wants a run before a capture
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = wrapper.run(*static)
same = True
for offsets in ([0, 100, 256], [0, 7, 7, 20]):
    wrapper.plan(offsets)  # outside of the graph, before each replay
    graph.replay()
    same = same and torch.equal(out, wrapper.run(*static))
    print(f"replayed with offsets {offsets}:", "the bits of eager" if same else "OTHER BITS THAN EAGER")
sys.exit(0 if same else 1)
