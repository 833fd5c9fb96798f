"""Texts to vectors, by the call that users of sentence-transformers know."""
from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from mstarc import _core
from mstarc._frameworks import device_name, dtype_name

_PROGRESS_BATCH = 256  # texts between two lines of progress when the caller names no batch size


class Embedder:
    """A text encoder from a folder in Hugging Face layout.

    Read are BERT-family encoders (MiniLM, bge-*-en, e5-*-en, gte) with WordPiece, and the pooling,
    Dense and Normalize modules of sentence-transformers, of both generations. What the folder says
    and cannot be honoured is refused by name.

    Args:
        model_name_or_path: the folder. Nothing is ever downloaded.
        device: "cpu", "cuda:0", or anything whose text names a device.
        dtype: what matrices and tables are stored as, "float32" or "bfloat16"; vectors are float32.
        num_threads: threads of this encoder alone; None shares the package's (MSTAR_NUM_THREADS,
            else OMP_NUM_THREADS, else the usable cores).
        max_seq_length: tokens of a text, special tokens included; None as the folder says.
        truncate: which part of a longer text stays out: "end", "start", or "error" to refuse it.
        prompt_name: a prompt of the folder, put before every text; None its default, "" none.

    Raises:
        FileNotFoundError: the folder or one of its files is not there.
        ValueError: a file is malformed, or an argument is out of range.
        NotImplementedError: the folder asks for something that is not there yet.

    The object may be shared by threads; their calls run one after another.
    """

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str],
        *,
        device: object = "cpu",
        dtype: object = "float32",
        num_threads: int | None = None,
        max_seq_length: int | None = None,
        truncate: str = "end",
        prompt_name: str | None = None,
    ) -> None:
        if num_threads is not None and num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}; it is at least 1")
        if max_seq_length is not None and max_seq_length < 1:
            raise ValueError(f"max_seq_length is {max_seq_length}; it is at least 1")
        self._core = _core.Encoder(
            os.fspath(model_name_or_path), device_name(device),
            -1 if num_threads is None else num_threads, dtype_name(dtype),
            -1 if max_seq_length is None else max_seq_length, truncate, prompt_name)

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int | None = None,
        normalize: bool = True,
        show_progress_bar: bool = False,
    ) -> Any:
        """Vectors of texts, in their order.

        Args:
            sentences: a list of texts, or one text.
            batch_size: texts handed to the library at once; None all of them, which is fastest: it
                sorts and batches by length itself, without padding. No vector depends on it.
            normalize: True scales every vector to length 1, so that a dot product is the cosine;
                False leaves what the folder's modules made.
            show_progress_bar: write progress to standard error.

        Returns:
            A float32 numpy array [len(sentences), dim], or [dim] for one text. Without numpy an
            mstarc.Tensor of that shape.

        Raises:
            TypeError: a sentence is not a str. ValueError: a text is longer than the limit and
            truncate is "error".

        The interpreter's lock is released while the library works. A text's bits depend on that
        text alone, not on its neighbours, its place or the threads.
        """
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it is at least 1")
        one = isinstance(sentences, str)
        texts: tuple[str, ...] = (sentences,) if isinstance(sentences, str) else tuple(sentences)
        step = batch_size or (_PROGRESS_BATCH if show_progress_bar else len(texts))
        if len(texts) <= step and not show_progress_bar or not _numpy():
            vectors = _as_array(self._core.encode(texts, normalize))
        else:
            vectors = self._encode_batches(texts, step, normalize, show_progress_bar)
        return vectors[0] if one else vectors

    def _encode_batches(self, texts: tuple[str, ...], step: int, normalize: bool,
                        progress: bool) -> Any:
        parts = []
        for begin in range(0, len(texts), step):
            parts.append(_as_array(self._core.encode(texts[begin:begin + step], normalize)))
            if progress:
                done = min(begin + step, len(texts))
                print(f"\r{done}/{len(texts)} texts", end="", file=sys.stderr, flush=True)
        if progress:
            print(file=sys.stderr)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return _as_array(self._core.encode((), normalize))
        return _numpy().concatenate(parts)

    def get_sentence_embedding_dimension(self) -> int:
        """Components of a vector."""
        return int(self._core.info()["dims"])

    @property
    def max_seq_length(self) -> int:
        """Tokens of a text that are read, special tokens included."""
        return int(self._core.info()["max_tokens"])

    @property
    def info(self) -> dict[str, Any]:
        """What the folder came to, and which file each choice was read from."""
        return self._core.info()

    def __repr__(self) -> str:
        info = self._core.info()
        return (f"Embedder({info['model_type']}, {info['layers']} layers, dim {info['dims']}, "
                f"{info['dtype']})")


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _as_array(vectors: _core.Tensor) -> Any:
    numpy = _numpy()
    return vectors if numpy is None else numpy.asarray(vectors)
