"""Ours and the peers behind one interface: strings in, normalised vectors out.

A peer is made with the model folder, the folder of converted models, the number of threads and a
setting; `embed(texts)` gives rows of vectors (an array, or bytes of f32). Everything that a user
would have to do between strings and vectors happens inside embed: tokenising, batching, padding,
pooling where the runtime leaves it to the caller. Packages are imported by the peer that needs
them, so that one that is missing costs its own row only, and none of them counts in our memory.

Settings:
  default   batches of 32 in arrival order, padded to the longest of each
  sorted    batches by length, at most `limit` tokens with padding, cut earlier where padding would
            pass a quarter of the batch; all threads work on one batch
  workers   the same batches taken by as many workers as threads, one thread each
"""
import concurrent.futures
import ctypes
import json
import os
import pathlib

BATCH = 32            # of the default setting; what peers' own helpers use
MAX_PADDING = 0.25    # part of a sorted batch
MAX_TOKENS = 256      # of a text, as the model folder says


# ---- batching ------------------------------------------------------------------------------------


def arrival_batches(lengths, size=BATCH):
    return [list(range(at, min(at + size, len(lengths)))) for at in range(0, len(lengths), size)]


def sorted_batches(lengths, limit):
    """Lists of places, shortest texts first."""
    batches, batch, tokens = [], [], 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = lengths[place] * (len(batch) + 1)
        tokens += lengths[place]
        if batch and (padded > limit or padded - tokens > MAX_PADDING * padded):
            batches.append(batch)
            batch, tokens = [], lengths[place]
        batch.append(place)
    return batches + [batch] if batch else batches


def cut(lengths, setting):
    if setting["name"] == "default":
        return arrival_batches(lengths)
    batches = sorted_batches(lengths, setting["limit"])
    return batches[::-1] if setting["name"] == "workers" else batches  # longest first ends evenly


class Tokens:
    """The tokenizers package as peers' users call it; RAYON_NUM_THREADS sets its threads."""

    def __init__(self, model):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)

    def encode(self, texts):
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]


class Padded:
    """Peers that take padded batches of ids: tokenise, cut, run each batch, put rows in order."""

    def __init__(self, model, setting):
        import numpy
        self.numpy, self.setting, self.tokens = numpy, setting, Tokens(model)
        self.pool = None
        if setting["name"] == "workers":
            self.pool = concurrent.futures.ThreadPoolExecutor(setting["workers"])

    def pad(self, ids):
        longest = max(map(len, ids))
        rows = self.numpy.zeros((len(ids), longest), self.numpy.int64)
        mask = self.numpy.zeros((len(ids), longest), self.numpy.int64)
        for row, kept, text in zip(rows, mask, ids):
            row[:len(text)] = text
            kept[:len(text)] = 1
        return rows, mask

    def embed(self, texts):
        ids = self.tokens.encode(texts)
        out = None
        batches = cut([len(text) for text in ids], self.setting)
        run = self.pool.map if self.pool else map
        for batch, vectors in zip(batches, run(lambda b: self.run([ids[i] for i in b]), batches)):
            if out is None:
                out = self.numpy.empty((len(texts), vectors.shape[1]), self.numpy.float32)
            out[batch] = vectors
        return out


# ---- ours ----------------------------------------------------------------------------------------


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("bytes", ctypes.c_size_t)]


class EncoderDesc(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_int),
                ("pooling", ctypes.c_int32), ("normalize", ctypes.c_int32),
                ("max_tokens", ctypes.c_int64),
                ("truncate", ctypes.c_int), ("max_batch_tokens", ctypes.c_int32),
                ("prompt_name", ctypes.c_char_p), ("timing", ctypes.c_int32),
                ("graphs", ctypes.c_int32), ("graph_tokens", ctypes.c_void_p),
                ("num_graph_tokens", ctypes.c_int64),
                ("graph_compile_mode", ctypes.c_char_p), ("graph_compile", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]


class DeviceDesc(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("num_threads", ctypes.c_int32),
                ("parallel_for", ctypes.c_void_p), ("parallel_host", ctypes.c_void_p),
                ("max_isa", ctypes.c_char_p)]


class Mstar:
    """libmstar.so through ctypes; making the array of texts is inside the clock."""

    def __init__(self, model, folder, threads, setting):
        library = ctypes.CDLL(setting["library"])
        library.mstar_last_error.restype = ctypes.c_char_p
        library.mstar_build_info.restype = ctypes.c_char_p
        self.library = library
        device_desc, desc = DeviceDesc(), EncoderDesc()
        library.mstar_device_desc_init(ctypes.byref(device_desc))
        library.mstar_encoder_desc_init(ctypes.byref(desc))
        device_desc.num_threads = threads
        desc.dtype = {"f32": 0, "bf16": 1}[setting["dtype"]]
        self.device, self.encoder = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(library.mstar_device_open(b"cpu", ctypes.byref(device_desc),
                                             ctypes.byref(self.device)))
        self.check(library.mstar_encoder_load(self.device, str(model).encode(), ctypes.byref(desc),
                                              ctypes.byref(self.encoder)))
        with open(pathlib.Path(model) / "config.json", encoding="utf-8") as file:
            self.dims = json.load(file)["hidden_size"]
        self.version = library.mstar_build_info().decode()

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.library.mstar_last_error().decode())

    def embed(self, texts):
        encoded = [text.encode() for text in texts]
        array = (Text * len(encoded))(*[(text, len(text)) for text in encoded])
        vectors = (ctypes.c_float * (len(encoded) * self.dims))()
        self.check(self.library.mstar_encoder_embed(
            self.encoder, array, ctypes.c_int64(len(encoded)), vectors,
            ctypes.c_int64(self.dims), None))
        return vectors


# ---- peers ---------------------------------------------------------------------------------------


class OnnxRuntime(Padded):
    FORMATS = ("onnx", "onnx-fused")

    def __init__(self, model, folder, threads, setting):
        super().__init__(model, setting)
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1 if self.pool else threads
        options.inter_op_num_threads = 1
        name = "plain.onnx" if setting["name"] == "default" else "fused.onnx"
        self.session = onnxruntime.InferenceSession(
            str(pathlib.Path(folder) / name), options, providers=["CPUExecutionProvider"])
        self.version = f"onnxruntime {onnxruntime.__version__}"

    def run(self, ids):
        rows, mask = self.pad(ids)
        return self.session.run(None, {"input_ids": rows, "attention_mask": mask})[0]


class SentenceTransformers:
    """Sorts by length by itself in every setting; `sorted` has its best batch size."""

    FORMATS = ()

    def __init__(self, model, folder, threads, setting):
        import sentence_transformers
        import torch
        torch.set_num_threads(1 if setting["name"] == "workers" else threads)
        self.model = sentence_transformers.SentenceTransformer(str(model), device="cpu",
                                                               local_files_only=True)
        self.batch = BATCH if setting["name"] == "default" else 8
        self.pool = None
        if setting["name"] == "workers":
            self.pool = self.model.start_multi_process_pool(["cpu"] * setting["workers"])
        self.version = f"sentence-transformers {sentence_transformers.__version__}, " \
                       f"torch {torch.__version__}"

    def embed(self, texts):
        more = {"pool": self.pool, "chunk_size": 64} if self.pool else {}
        return self.model.encode(texts, batch_size=self.batch, show_progress_bar=False,
                                 convert_to_numpy=True, **more)

    def close(self):
        if self.pool:
            self.model.stop_multi_process_pool(self.pool)


class CTranslate2(Padded):
    FORMATS = ("ctranslate2",)

    def __init__(self, model, folder, threads, setting):
        super().__init__(model, setting)
        import ctranslate2
        workers = setting["workers"] if self.pool else 1
        self.encoder = ctranslate2.Encoder(
            str(pathlib.Path(folder) / "ctranslate2"), device="cpu", inter_threads=workers,
            intra_threads=1 if self.pool else threads, compute_type="float32")
        self.version = f"ctranslate2 {ctranslate2.__version__} {self.encoder.compute_type}"

    def run(self, ids):
        hidden = self.numpy.array(self.encoder.forward_batch(ids).last_hidden_state)
        means = self.numpy.stack([rows[:len(text)].mean(axis=0) for rows, text in zip(hidden, ids)])
        return means / self.numpy.linalg.norm(means, axis=1, keepdims=True)


class OpenVino(Padded):
    FORMATS = ("onnx", "openvino")

    def __init__(self, model, folder, threads, setting):
        super().__init__(model, setting)
        import openvino
        config = {"INFERENCE_NUM_THREADS": threads,
                  "INFERENCE_PRECISION_HINT": setting.get("dtype", "f32"),
                  "PERFORMANCE_HINT": "LATENCY"}
        if self.pool:
            config.update({"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": setting["workers"]})
        self.compiled = openvino.Core().compile_model(
            str(pathlib.Path(folder) / "openvino.xml"), "CPU", config)
        self.requests = [self.compiled.create_infer_request()
                         for _ in range(setting["workers"] if self.pool else 1)]
        self.free = list(self.requests)
        precision = self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.version = f"openvino {openvino.__version__.split('-')[0]} {precision}"

    def run(self, ids):
        rows, mask = self.pad(ids)
        request = self.free.pop()
        try:
            done = request.infer({"input_ids": rows, "attention_mask": mask}, share_inputs=True)
            return self.numpy.array(done[0])
        finally:
            self.free.append(request)


class LlamaCpp:
    """Batches are llama.cpp's own: it packs texts of one call up to n_batch tokens without padding
    and works through them n_ubatch tokens at a time."""

    FORMATS = ("gguf",)

    def __init__(self, model, folder, threads, setting):
        import llama_cpp
        import numpy
        self.numpy = numpy
        many = setting["workers"] if setting["name"] == "workers" else 1
        micro = 512 if setting["name"] == "default" else 256
        self.models = [llama_cpp.Llama(
            str(pathlib.Path(folder) / "f32.gguf"), embedding=True, n_ctx=512, n_batch=micro,
            n_ubatch=micro, n_threads=threads // many, n_threads_batch=threads // many,
            pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN, verbose=False) for _ in range(many)]
        self.pool = concurrent.futures.ThreadPoolExecutor(many) if many > 1 else None
        self.version = f"llama-cpp-python {llama_cpp.__version__}"

    def embed(self, texts):
        if self.pool is None:
            return self.numpy.array(self.models[0].embed(texts, normalize=True), self.numpy.float32)
        places = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        shares = [places[i::len(self.models)] for i in range(len(self.models))]
        shares = [share for share in shares if share]  # it refuses an empty batch
        out = None
        for share, rows in zip(shares, self.pool.map(
                lambda m, s: m.embed([texts[i] for i in s], normalize=True), self.models, shares)):
            rows = self.numpy.array(rows, self.numpy.float32)
            if out is None:
                out = self.numpy.empty((len(texts), rows.shape[1]), self.numpy.float32)
            out[share] = rows
        return out


PEERS = {
    "mstar": Mstar,
    "onnxruntime": OnnxRuntime,
    "sentence-transformers": SentenceTransformers,
    "ctranslate2": CTranslate2,
    "openvino": OpenVino,
    "llama.cpp": LlamaCpp,
}


def settings(peer, threads, library, limits):
    """The rows of one peer."""
    if peer == "mstar":
        return [{"name": dtype, "dtype": dtype, "library": str(library)}
                for dtype in ("f32", "bf16")] + [{"name": "program"}]
    rows = [{"name": "default"}]
    sized = peer in ("onnxruntime", "ctranslate2", "openvino")
    dtypes = [{}, {"dtype": "bf16"}] if peer == "openvino" and has_bf16() else [{}]
    for dtype in dtypes:
        for limit in limits if sized else limits[:1]:
            rows.append({"name": "sorted", "limit": limit} | dtype)
            if threads > 1:
                rows.append({"name": "workers", "limit": limit, "workers": threads} | dtype)
    return rows


def has_bf16():
    """Whether a peer has bf16 instructions to use; elsewhere it would run in f32 again."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in text or "amx_bf16" in text


def label(peer, setting):
    """How a row calls its setting."""
    sized = peer in ("onnxruntime", "ctranslate2", "openvino")
    if peer == "mstar":
        return "f32, program" if setting["name"] == "program" else setting["name"]
    if setting["name"] == "default":
        return {"llama.cpp": "default (ubatch 512)",
                "sentence-transformers": "default (batches of 32)"}.get(
                    peer, "default (32, arrival order)")
    batches = f"sorted, {setting['limit']} tokens" if sized else \
        {"llama.cpp": "ubatch 256"}.get(peer, "batches of 8")
    if "dtype" in setting:
        batches = f"{setting['dtype']}, {batches}"
    if setting["name"] == "workers":
        return f"{batches}, {setting['workers']} workers x 1 thread"
    return batches


def worker_environment(threads, setting):
    """Thread settings of libraries that read them from the environment, no way to a hub, and no
    override of the kernels that a BLAS picks for this machine."""
    dropped = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    env = {name: value for name, value in os.environ.items()
           if name not in dropped and not name.startswith("MSTAR_")}
    if "MSTAR_MAX_ISA" in os.environ:
        env["MSTAR_MAX_ISA"] = os.environ["MSTAR_MAX_ISA"]
    each = 1 if setting["name"] == "workers" else threads
    env.update({"OMP_NUM_THREADS": str(each), "MKL_NUM_THREADS": str(each),
                "RAYON_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1",
                "TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})
    return env
