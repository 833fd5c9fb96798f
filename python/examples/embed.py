"""Texts to vectors, and which two are closest.

    python embed.py [FOLDER]
"""
import sys

import mstarc

texts = ["The cat sleeps on the sofa", "A kitten naps on a couch", "Quarterly revenue rose"]
embedder = mstarc.Embedder(sys.argv[1] if len(sys.argv) > 1 else "build/models/all-MiniLM-L6-v2")
vectors = embedder.encode(texts)
print(embedder, vectors.shape, vectors.dtype)
for i, text in enumerate(texts):
    for j in range(i):
        print(f"{vectors[i] @ vectors[j]:.3f}  {texts[j]!r} and {text!r}")
raise SystemExit(0 if vectors[0] @ vectors[1] > vectors[0] @ vectors[2] else 1)
