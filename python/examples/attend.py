"""Ragged attention on numpy: three requests, one of them empty, planned once and run by each layer.

    python attend.py
"""
import numpy as np

from mstarc.engine.resources.attn.ragged.wrappers import RaggedPrefillWrapper

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 3, 8, 2, 64

attention = RaggedPrefillWrapper(HEADS, KV_HEADS, HEAD_DIM, device="cpu", q_data_type="float32")
attention.plan([0, 5, 5, 22], causal=True)  # requests of 5, 0 and 17 tokens

rng = np.random.default_rng(0)
for layer in range(LAYERS):
    fused = rng.standard_normal((22, HEADS + 2 * KV_HEADS, HEAD_DIM), dtype=np.float32)
    q, k, v = np.split(fused, [HEADS, HEADS + KV_HEADS], axis=1)  # views: nothing is copied
    out = attention.run(q, k, v)
    print(f"layer {layer}: {type(out).__name__} {out.shape} {out.dtype}, last {out[-1, -1, :3]}")

attention.plan([0, 17], causal=True)
alone = attention.run(q[5:], k[5:], v[5:])
same = alone.tobytes() == out[5:].tobytes()
print("the third request alone:", "the same bits" if same else "OTHER BITS")
raise SystemExit(0 if same else 1)
