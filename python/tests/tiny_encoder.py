"""A text encoder of one layer with random weights, made on the spot."""
import json
import struct

import numpy as np

WIDTH, HEADS, INNER, POSITIONS = 32, 4, 48, 64
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the cat dog sun moon river sleep old new".split()]


def _weights(rng):
    def matrix(*shape):
        return rng.normal(0, 0.2, shape)

    tensors = {"embeddings.word_embeddings.weight": matrix(len(VOCABULARY), WIDTH),
               "embeddings.position_embeddings.weight": matrix(POSITIONS, WIDTH),
               "embeddings.token_type_embeddings.weight": matrix(2, WIDTH)}
    layer = "encoder.layer.0."
    for name, rows, columns in (("attention.self.query", WIDTH, WIDTH), ("attention.self.key", WIDTH, WIDTH),
                                ("attention.self.value", WIDTH, WIDTH), ("intermediate.dense", INNER, WIDTH),
                                ("attention.output.dense", WIDTH, WIDTH), ("output.dense", WIDTH, INNER)):
        tensors[f"{layer}{name}.weight"], tensors[f"{layer}{name}.bias"] = matrix(rows, columns), matrix(rows)
    for name in ("embeddings.LayerNorm", f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"):
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = 1 + matrix(WIDTH), matrix(WIDTH)
    return tensors


def make_encoder(folder):
    """Writes the files of a folder in Hugging Face layout and returns it."""
    header, data = {}, b""
    for name, array in _weights(np.random.default_rng(7)).items():
        raw = array.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (folder / "config.json").write_text(json.dumps({
        "model_type": "bert", "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS,
        "intermediate_size": INNER, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "vocab_size": len(VOCABULARY)}))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return folder
