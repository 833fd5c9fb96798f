"""What to capture: a decode walk, a prefill walk laid out as mixed steps, and an image tower.

    python capture_configs.py
"""
import numpy as np

from mstarc.engine.accelerator_graph_config import (
    BatchedAcceleratorGraphConfig,
    PackedAcceleratorGraphConfig,
    PiecewisePackedConfig,
    decode_rows_then_prompt,
)
from mstarc.model.submodule_base import NodeInputs


def row(tokens):
    return NodeInputs({"ids": np.zeros(tokens, np.int64)}, input_seq_len=tokens)


decode = BatchedAcceleratorGraphConfig("decode", row(1), capture_batch_sizes=[1, 2, 4, 8])
prefill = PackedAcceleratorGraphConfig("prefill", [256, 1024], row, ["prefill", "chunked"],
                                       capture_batch_sizes=[1, 4],
                                       token_layout=decode_rows_then_prompt)
tower = PiecewisePackedConfig(
    capture_fn=lambda inputs: {"x": inputs.static_inputs["patches"]},
    make_static_inputs=lambda shape: {"patches": np.zeros((shape.total_tokens, 64), np.float32)},
    capture_batch_sizes=[1, 2], total_tokens=[512, 1024])

for config in (decode, prefill):
    for bs in config.capture_batch_sizes:
        for tokens in config.get_total_tokens(bs):
            rows = config.get_node_inputs(bs, tokens)
            print(f"{config.capture_graph_walk} bs {bs}, {tokens} tokens:",
                  [made.input_seq_len for made in rows])
for shape in tower.get_capture_shapes(tower.capture_batch_sizes):
    print("tower", shape, "->", tower.replay_seq_lens(shape, [128, 100][:shape.bs], shape.bs))
