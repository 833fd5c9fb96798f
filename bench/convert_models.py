#!/usr/bin/env python3
"""One BERT-family folder in the formats of the peers, made from local files only.

    onnx        the graph as an exporter writes it: attention of MatMul, Softmax and Transpose. ONNX
                Runtime's default, and what OpenVINO reads (OpenVINO finds attention by itself).
    onnx-fused  the same with ONNX Runtime's own operators Attention, SkipLayerNormalization and
                BiasGelu, which is what its transformer optimizer turns such a model into.
    openvino    the first, read and saved by OpenVINO, weights in f32
    ctranslate2 by CTranslate2's own converter
    gguf        by the gguf package, weights in f32

Mean pooling over the mask and the division by the length stand inside the ONNX graphs, so that no
peer of that kind loses time to NumPy. A file is made once; delete build/bench/models to make it
again.
"""
import argparse
import json
import pathlib
import struct
import sys

import numpy as np

FORMATS = ("onnx", "onnx-fused", "openvino", "ctranslate2", "gguf")
LOWEST = float(np.finfo(np.float32).min)


def read_tensors(model):
    data = (pathlib.Path(model) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32" and "position_ids" not in name:
            raise SystemExit(f"{model}: {name} is {entry['dtype']}; f32 weights are compared")
        if entry["dtype"] == "F32":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name.removeprefix("bert.")] = np.frombuffer(
                data[begin:end], np.float32).reshape(entry["shape"])
    return tensors


def read_config(model):
    config = json.loads((pathlib.Path(model) / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "bert" or config["hidden_act"] != "gelu":
        raise SystemExit(f"{model}: only model_type bert with gelu is converted here")
    return config

# ---- ONNX ----------------------------------------------------------------------------------------


class Graph:
    """Collects nodes and constants; names come from a counter."""

    def __init__(self, onnx):
        self.onnx = onnx
        self.nodes, self.constants = [], []

    def constant(self, values, dtype=np.float32):
        name = f"c{len(self.constants)}"
        array = np.ascontiguousarray(np.asarray(values, dtype))
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def op(self, kind, *inputs, domain="", **attributes):
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(
            kind, list(inputs), [name], name=name, domain=domain, **attributes))
        return name


def embeddings(graph, tensors, eps):
    """Token type 0 is the only one, so its row is added to the positions here."""
    places = (tensors["embeddings.position_embeddings.weight"]
              + tensors["embeddings.token_type_embeddings.weight"][0])
    length = graph.op("Slice", graph.op("Shape", "input_ids"), graph.constant([1], np.int64),
                      graph.constant([2], np.int64))
    rows = graph.op("Slice", graph.constant(places), graph.constant([0], np.int64), length,
                    graph.constant([0], np.int64))
    words = graph.op("Gather", graph.constant(tensors["embeddings.word_embeddings.weight"]),
                     "input_ids")
    return graph.op("LayerNormalization", graph.op("Add", words, rows),
                    graph.constant(tensors["embeddings.LayerNorm.weight"]),
                    graph.constant(tensors["embeddings.LayerNorm.bias"]), epsilon=eps, axis=-1)


def plain_layer(graph, x, weight, bias, norm, heads, mask, width):
    def linear(value, name):
        product = graph.op("MatMul", value, graph.constant(weight(name).T))
        return graph.op("Add", product, graph.constant(bias(name)))

    def split(value, order):
        shape = graph.constant([0, 0, heads, width], np.int64)
        return graph.op("Transpose", graph.op("Reshape", value, shape), perm=order)

    q = split(linear(x, "attention.self.query"), [0, 2, 1, 3])
    k = split(linear(x, "attention.self.key"), [0, 2, 3, 1])
    v = split(linear(x, "attention.self.value"), [0, 2, 1, 3])
    scores = graph.op("Div", graph.op("MatMul", q, k), graph.constant(np.sqrt(width)))
    shares = graph.op("Softmax", graph.op("Add", scores, mask), axis=-1)
    context = graph.op("Transpose", graph.op("MatMul", shares, v), perm=[0, 2, 1, 3])
    context = graph.op("Reshape", context, graph.constant([0, 0, heads * width], np.int64))
    x = norm(graph.op("Add", linear(context, "attention.output.dense"), x),
             "attention.output.LayerNorm")
    middle = linear(x, "intermediate.dense")
    half = graph.op("Add", graph.op("Erf", graph.op("Div", middle, graph.constant(np.sqrt(2)))),
                    graph.constant(1))
    middle = graph.op("Mul", graph.op("Mul", middle, half), graph.constant(0.5))
    return norm(graph.op("Add", linear(middle, "output.dense"), x), "output.LayerNorm")


def fused_layer(graph, x, weight, bias, norm_pair, heads, mask, eps):
    own = {"domain": "com.microsoft"}
    names = ["attention.self.query", "attention.self.key", "attention.self.value"]
    context = graph.op("Attention", x,
                       graph.constant(np.concatenate([weight(name).T for name in names], axis=1)),
                       graph.constant(np.concatenate([bias(name) for name in names])), mask,
                       num_heads=heads, **own)
    for dense, norm in (("attention.output.dense", "attention.output.LayerNorm"),
                        ("output.dense", "output.LayerNorm")):
        if dense == "output.dense":
            middle = graph.op("MatMul", x, graph.constant(weight("intermediate.dense").T))
            context = graph.op("BiasGelu", middle,
                               graph.constant(bias("intermediate.dense")), **own)
        product = graph.op("MatMul", context, graph.constant(weight(dense).T))
        x = graph.op("SkipLayerNormalization", product, x, *norm_pair(norm),
                     graph.constant(bias(dense)), epsilon=eps, **own)
    return x


def write_onnx(model, path, fused):
    import onnx
    config, tensors = read_config(model), read_tensors(model)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    eps = config["layer_norm_eps"]
    graph = Graph(onnx)
    x = embeddings(graph, tensors, eps)
    if fused:
        mask = graph.op("Cast", "attention_mask", to=onnx.TensorProto.INT32)
    else:
        kept = graph.op("Cast", "attention_mask", to=onnx.TensorProto.FLOAT)
        left = graph.op("Mul", graph.op("Sub", graph.constant(1), kept), graph.constant(LOWEST))
        mask = graph.op("Unsqueeze", left, graph.constant([1, 2], np.int64))
    for layer in range(config["num_hidden_layers"]):
        def weight(name, at=f"encoder.layer.{layer}."):
            return tensors[at + name + ".weight"]

        def bias(name, at=f"encoder.layer.{layer}."):
            return tensors[at + name + ".bias"]

        def norm_pair(name):
            return graph.constant(weight(name)), graph.constant(bias(name))

        def norm(value, name):
            return graph.op("LayerNormalization", value, *norm_pair(name), epsilon=eps, axis=-1)

        if fused:
            x = fused_layer(graph, x, weight, bias, norm_pair, heads, mask, eps)
        else:
            x = plain_layer(graph, x, weight, bias, norm, heads, mask, hidden // heads)
    pool(graph, onnx, x)
    tensor = onnx.helper.make_tensor_value_info
    shape = ["batch", "length"]
    made = onnx.helper.make_graph(
        graph.nodes, "encoder",
        [tensor("input_ids", onnx.TensorProto.INT64, shape),
         tensor("attention_mask", onnx.TensorProto.INT64, shape)],
        [tensor("vectors", onnx.TensorProto.FLOAT, ["batch", hidden])], graph.constants)
    opsets = [onnx.helper.make_opsetid("", 17)]
    if fused:
        opsets.append(onnx.helper.make_opsetid("com.microsoft", 1))
    made = onnx.helper.make_model(made, opset_imports=opsets, ir_version=8)
    if not fused:
        onnx.checker.check_model(made)
    onnx.save(made, path)


def pool(graph, onnx, x):
    """Mean over the mask, then length 1."""
    kept = graph.op("Unsqueeze", graph.op("Cast", "attention_mask", to=onnx.TensorProto.FLOAT),
                    graph.constant([2], np.int64))
    axis = graph.constant([1], np.int64)
    total = graph.op("ReduceSum", graph.op("Mul", x, kept), axis, keepdims=0)
    mean = graph.op("Div", total, graph.op("ReduceSum", kept, axis, keepdims=0))
    length = graph.op("ReduceL2", mean, axes=[1], keepdims=1)
    graph.nodes.append(onnx.helper.make_node("Div", [mean, length], ["vectors"], name="vectors"))

# ---- the other formats ---------------------------------------------------------------------------


def write_openvino(model, path):
    import openvino
    openvino.save_model(openvino.Core().read_model(convert(model, path.parent, "onnx")),
                        path, compress_to_fp16=False)


def write_ctranslate2(model, path):
    import ctranslate2
    ctranslate2.converters.TransformersConverter(str(model)).convert(str(path), force=True)


def gguf_token(token):
    """GGUF keeps a WordPiece vocabulary with word starts marked instead of continuations."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else "\u2581" + token


def write_gguf(model, path):
    import gguf
    config, tensors = read_config(model), read_tensors(model)
    tokens = (model / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_name(model.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_token_list([gguf_token(token) for token in tokens])
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL
                            for token in tokens])
    for name, token in (("pad", "[PAD]"), ("unk", "[UNK]"), ("bos", "[CLS]"), ("eos", "[SEP]"),
                        ("sep", "[SEP]"), ("mask", "[MASK]")):
        getattr(writer, f"add_{name}_token_id")(tokens.index(token))
    top = {"embeddings.word_embeddings.weight": "token_embd.weight",
           "embeddings.position_embeddings.weight": "position_embd.weight",
           "embeddings.token_type_embeddings.weight": "token_types.weight",
           "embeddings.LayerNorm": "token_embd_norm"}
    inside = {"attention.self.query": "attn_q", "attention.self.key": "attn_k",
              "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
              "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
              "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"}
    for layer in range(config["num_hidden_layers"]):
        for name, short in inside.items():
            top[f"encoder.layer.{layer}.{name}"] = f"blk.{layer}.{short}"
    for name, short in top.items():
        if name in tensors:
            writer.add_tensor(short, tensors[name])
            continue
        for part in ("weight", "bias"):
            writer.add_tensor(f"{short}.{part}", tensors[f"{name}.{part}"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


PLACES = {"onnx": "plain.onnx", "onnx-fused": "fused.onnx", "openvino": "openvino.xml",
          "ctranslate2": "ctranslate2", "gguf": "f32.gguf"}


def convert(model, folder, kind):
    """The path of the model in that format; made when it is not there."""
    model, folder = pathlib.Path(model).resolve(), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PLACES[kind]
    done = folder / (path.name + ".done")  # a conversion cut short leaves none
    if done.exists() and path.exists():
        return path
    if kind in ("onnx", "onnx-fused"):
        write_onnx(model, path, kind == "onnx-fused")
    else:
        {"openvino": write_openvino, "ctranslate2": write_ctranslate2,
         "gguf": write_gguf}[kind](model, path)
    done.touch()
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="build/models/all-MiniLM-L6-v2")
    parser.add_argument("--out", default="build/bench/models")
    parser.add_argument("format", choices=FORMATS)
    given = parser.parse_args()
    print(convert(given.model, given.out, given.format))
    return 0


if __name__ == "__main__":
    sys.exit(main())
