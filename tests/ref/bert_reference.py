"""A BERT encoder folder in float64 NumPy: the oracle of test_encoder.py.

Slow and plain on purpose. It reads the same files as the library (config.json, safetensors, one or
several, modules and their configs) by code of its own, and computes one text after another from
the definition of each step.
"""
import json
import math
import os
import struct

import numpy as np

POOLINGS = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
OLD_KEYS = ["pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens",
            "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens",
            "pooling_mode_lasttoken"]

# ---- numbers -------------------------------------------------------------------------------------


def bf16_bits(values):
    """Rounds f32 to bf16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_widen(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def round_bf16(values):
    return bf16_widen(bf16_bits(values)).reshape(np.shape(values)).astype(np.float64)


_STEP = 1.0 / 512
_GRID = np.array([math.erf(i * _STEP) for i in range(int(6.5 / _STEP) + 1)])


def erf(x):
    """Error function to a few 1e-16: five Taylor terms around a table of math.erf."""
    a = np.minimum(np.abs(x), 6.4)
    i = np.rint(a / _STEP).astype(np.int64)
    p = i * _STEP
    d = a - p
    slope = 2.0 / math.sqrt(math.pi) * np.exp(-p * p)
    series = d * (1 + d * (-p + d * ((2 * p * p - 1) / 3 + d * ((3 * p - 2 * p ** 3) / 6 + d * (
        (4 * p ** 4 - 12 * p * p + 3) / 30)))))
    return np.sign(x) * (_GRID[i] + slope * series)


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


HIDDEN_ACTS = {
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
}
MODULE_ACTS = {
    "Identity": lambda x: x, "Tanh": np.tanh, "GELU": HIDDEN_ACTS["gelu"],
    "ReLU": HIDDEN_ACTS["relu"], "SiLU": HIDDEN_ACTS["silu"], "Sigmoid": sigmoid,
}

# ---- files ---------------------------------------------------------------------------------------


def write_safetensors(path, tensors, pad=8):
    """tensors: name -> (dtype, f32 array); dtypes F32, F16, BF16."""
    header, blobs, place = {}, [], 0
    for name, (dtype, values) in tensors.items():
        values = np.asarray(values, np.float32)
        if dtype == "BF16":
            blob = bf16_bits(values).tobytes()
        else:
            blob = values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape),
                        "data_offsets": [place, place + len(blob)]}
        place += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_safetensors(path, out):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + o for o in entry["data_offsets"])
        blob = data[begin:end]
        if entry["dtype"] == "BF16":
            values = bf16_widen(np.frombuffer(blob, np.uint16))
        else:
            values = np.frombuffer(blob, {"F32": np.float32, "F16": np.float16, "F64": np.float64,
                                          "I64": np.int64}[entry["dtype"]])
        out[name] = values.reshape(entry["shape"]).astype(np.float64)


def read_checkpoint(folder):
    tensors = {}
    single = os.path.join(folder, "model.safetensors")
    if os.path.exists(single):
        read_safetensors(single, tensors)
    else:
        with open(single + ".index.json") as file:
            shards = set(json.load(file)["weight_map"].values())
        for shard in sorted(shards):
            read_safetensors(os.path.join(folder, shard), tensors)
    return {name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
            .replace("LayerNorm.beta", "LayerNorm.bias"): values
            for name, values in tensors.items()}


def read_json(*parts):
    path = os.path.join(*parts)
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)

# ---- the model -----------------------------------------------------------------------------------


class Reference:
    """weights: "f32" as stored, or "bf16": matrices and tables rounded as the library keeps them."""

    def __init__(self, folder, weights="f32"):
        self.config = read_json(folder, "config.json")
        rounded = round_bf16 if weights == "bf16" else (lambda values: values)
        self.tensors = {name: rounded(values) if values.ndim == 2 else values
                        for name, values in read_checkpoint(folder).items()}
        self.steps = []
        self.modes, self.include_prompt = ["mean"], True
        for module in read_json(folder, "modules.json") or []:
            kind = module["type"].split(".")[-1]
            inner = os.path.join(folder, module["path"])
            config = read_json(inner, "config.json")
            if kind == "Pooling":
                self.read_pooling(config)
            elif kind == "Dense":
                dense = read_checkpoint(inner)
                dense = {name: rounded(v) if v.ndim == 2 else v for name, v in dense.items()}
                self.steps.append(("dense", config, dense))
            elif kind == "Normalize":
                self.steps.append(("normalize", None, None))

    def read_pooling(self, config):
        self.include_prompt = config.get("include_prompt", True)
        modes = config.get("pooling_mode")
        if modes is None:
            modes = [name for key, name in zip(OLD_KEYS, POOLINGS) if config.get(key, False)]
        if isinstance(modes, str):
            modes = [modes]
        self.modes = sorted(modes or ["mean"], key=POOLINGS.index)

    def linear(self, x, name):
        return x @ self.tensors[name + ".weight"].T + self.tensors[name + ".bias"]

    def norm(self, x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred ** 2).mean(axis=-1, keepdims=True)
        eps = self.config.get("layer_norm_eps", 1e-12)
        return (centred / np.sqrt(variance + eps) * self.tensors[name + ".weight"]
                + self.tensors[name + ".bias"])

    def hidden(self, texts, types=None):
        """texts: lists of ids. Returns one [length, hidden] array a text."""
        heads = self.config["num_attention_heads"]
        width = self.config["hidden_size"] // heads
        ends = np.cumsum([len(ids) for ids in texts]).tolist()
        starts = [0] + ends[:-1]
        ids = np.concatenate([np.asarray(t, np.int64) for t in texts])
        kinds = np.zeros_like(ids) if types is None else np.concatenate(types)
        places = np.concatenate([np.arange(len(t)) for t in texts])
        x = (self.tensors["embeddings.word_embeddings.weight"][ids]
             + self.tensors["embeddings.position_embeddings.weight"][places]
             + self.tensors["embeddings.token_type_embeddings.weight"][kinds])
        x = self.norm(x, "embeddings.LayerNorm")
        for i in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{i}."
            q, k, v = (self.linear(x, at + "attention.self." + n) for n in
                       ("query", "key", "value"))
            context = np.empty_like(x)
            for start, end in zip(starts, ends):
                for h in range(heads):
                    columns = slice(h * width, (h + 1) * width)
                    scores = q[start:end, columns] @ k[start:end, columns].T / math.sqrt(width)
                    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                    scores /= scores.sum(axis=1, keepdims=True)
                    context[start:end, columns] = scores @ v[start:end, columns]
            x = self.norm(x + self.linear(context, at + "attention.output.dense"),
                          at + "attention.output.LayerNorm")
            act = HIDDEN_ACTS[self.config.get("hidden_act", "gelu")]
            middle = act(self.linear(x, at + "intermediate.dense"))
            x = self.norm(x + self.linear(middle, at + "output.dense"), at + "output.LayerNorm")
        return [x[start:end] for start, end in zip(starts, ends)]

    def pool(self, rows, mode, skip):
        kept = rows[skip:]
        weights = np.arange(1, len(rows) + 1)[skip:, None]
        if mode == "cls":
            return rows[0]
        if len(kept) == 0:
            return np.zeros(rows.shape[1])
        return {
            "max": lambda: kept.max(axis=0),
            "mean": lambda: kept.mean(axis=0),
            "mean_sqrt_len_tokens": lambda: kept.sum(axis=0) / math.sqrt(len(kept)),
            "weightedmean": lambda: (kept * weights).sum(axis=0) / weights.sum(),
            "lasttoken": lambda: kept[-1],
        }[mode]()

    def vectors(self, texts, skip=0):
        """skip: tokens of [CLS] and prompt, which stay out when the folder says so."""
        skip = 0 if self.include_prompt else skip
        x = np.array([np.concatenate([self.pool(rows, mode, skip) for mode in self.modes])
                      for rows in self.hidden(texts)])
        for kind, config, tensors in self.steps:
            if kind == "normalize":
                x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
                continue
            y = x @ tensors["linear.weight"].T
            if config.get("bias", True):
                y = y + tensors["linear.bias"]
            act = config.get("activation_function", "torch.nn.modules.activation.Tanh")
            y = MODULE_ACTS[act.split(".")[-1]](y)
            if config.get("use_residual", False):
                y = y + (x if "residual.weight" not in tensors else x @ tensors["residual.weight"].T)
            x = y
        return x
