"""The operations of an encoder over packed tokens: what a network for the runners is made of.

    Linear                 activation(x W^T + bias) + residual, weights packed once
    layer_norm, rms_norm   with a residual before
    activate               gelu, gelu_tanh, relu, silu, tanh, sigmoid
    rotary                 rotary position embedding
    embedding              rows of tables, summed
    pooling, normalize     one vector a segment; unit length

Every operation works row by row: the bits of a row depend on that row alone, whatever else is in the
batch. Arithmetic is float32; results are rounded once. x, residual and out are [T, M]
(rotary: [T, H, D]), float32, bfloat16 or float16, from any framework, rows strided as they like;
another dtype, or a last dimension that is not contiguous, is cast into a copy first. A result is new
memory of x's own framework and dtype, unless `out` is given (x or residual may be it where that is
said), which is then written and returned.

Tensors lie on the CPU or all on one GPU, where work is given to the stream that x's framework works on
and is not waited for. Ids, positions and offsets are read from host memory, and cost a wait where they
lie on a device.

Inside the forward of a runner that is being captured, an operation is recorded in place of being
run, and replayed later with what its tensors hold then. Nothing may be copied on the way there: such
a call is refused by name. The interpreter's lock is released meanwhile.

Raises: ValueError for shapes and values that do not fit, naming them; TypeError for what is no
tensor.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mstarc import _core
from mstarc._frameworks import device_name, dtype_name, place_name, to_host

__all__ = [
    "Linear", "activate", "embedding", "layer_norm", "normalize", "pooling", "rms_norm", "rotary",
    "rows_of_requests",
]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _on_host(arrays: list[Any]) -> list[Any]:
    return [to_host(one) if place_name(one) != "cpu" else one for one in arrays]


class Linear:
    """out = activation(x W^T + bias) + residual.

    Args:
        weight: [out_features, in_features], copied and packed here; a list of up to 8 is one
            product of all their rows, as for a fused query-key-value projection.
        bias: [out_features] or None; a list where weight is one.
        activation: None, "gelu", "gelu_tanh", "relu", "silu", "tanh" or "sigmoid".
        weight_dtype: how the packed weights are kept: "float32", or "bfloat16" for half the memory;
            on a GPU "float16" too.
        device: where it computes; None: where weight lies.
    """

    def __init__(
        self, weight: Any, bias: Any = None, *, activation: str | None = None,
        weight_dtype: Any = "float32", device: Any = None,
    ) -> None:
        weights = _as_list(weight)
        biases = [None] * len(weights) if bias is None else _as_list(bias)
        where = device_name(device) if device is not None else \
            place_name(weights[0]) if weights else "cpu"
        self._core = _core.Linear(_on_host(weights), _on_host(biases), activation or "none",
                                  dtype_name(weight_dtype), where)

    def __call__(self, x: Any, residual: Any = None, *, out: Any = None) -> Any:
        """x [T, in_features] to [T, out_features]. out may be residual."""
        return self._core.run(x, residual, out)

    @property
    def in_features(self) -> int:
        """Columns of x."""
        return int(self._core.info()["in_features"])

    @property
    def out_features(self) -> int:
        """Columns of the result."""
        return int(self._core.info()["out_features"])

    @property
    def info(self) -> dict[str, Any]:
        """Sizes, packed bytes, and the kernel in use."""
        return self._core.info()

    def __repr__(self) -> str:
        return f"Linear({self.in_features} -> {self.out_features})"


def layer_norm(
    x: Any, weight: Any, bias: Any = None, eps: float = 1e-5, *, residual: Any = None,
    out: Any = None,
) -> Any:
    """(y - mean y) / sqrt(var y + eps) * weight + bias with y = x + residual.

    weight and bias are [M], read as float32. In place on x or residual.
    """
    return _core.norm(x, weight, bias, eps, residual, out, False)


def rms_norm(
    x: Any, weight: Any, eps: float = 1e-6, *, residual: Any = None, out: Any = None,
) -> Any:
    """y / sqrt(mean(y^2) + eps) * weight with y = x + residual. In place on x or residual."""
    return _core.norm(x, weight, None, eps, residual, out, True)


def activate(x: Any, activation: str, *, out: Any = None) -> Any:
    """The activation of that name, element by element. In place on x."""
    return _core.activate(x, activation, out)


def rotary(
    x: Any, positions: Any, theta: float = 10000.0, rotary_dim: int | None = None,
    interleaved: bool = False, *, out: Any = None,
) -> Any:
    """Rotary position embedding of x [T, H, D]. In place on x.

    positions: T integers (int32 inside a capture). Pair i of rotary_dim / 2 (None: D / 2) turns by
    positions[t] * theta^(-2i / rotary_dim); the pairs are (i, i + rotary_dim / 2), interleaved
    (2i, 2i + 1). The rest of each head is copied.
    """
    size = int(x.shape[-1]) if rotary_dim is None else rotary_dim
    return _core.rotary(x, positions, theta, size, interleaved, out)


def embedding(tables: Any, ids: Any, *, out: Any = None) -> Any:
    """Row t is the sum over i of tables[i][ids[i][t]].

    tables: [rows, M], or a list of up to 8; ids: T integers (int32 inside a capture), a list of as
    many where tables is one. The result is of the first table's dtype and of the ids' framework.
    """
    if isinstance(tables, (list, tuple)):
        return _core.embedding(list(tables), list(ids), out)
    return _core.embedding([tables], [ids], out)


def pooling(
    x: Any, cu_seqlens: Any, mode: str = "mean", skip: Any = None, *, out: Any = None,
) -> Any:
    """One row a segment: [S, M] of x [T, M] and S + 1 offsets.

    mode: "cls", "max", "mean", "mean_sqrt_len", "weightedmean" or "lasttoken". skip: leading tokens
    of each segment that stay out. A segment with nothing left gives zeros. Inside a forward this
    counts segments: see rows_of_requests.
    """
    return _core.pooling(x, cu_seqlens, mode, skip, out)


def normalize(x: Any, *, out: Any = None) -> Any:
    """x / max(|x|, 1e-12) row by row (Euclidean length). In place on x."""
    return _core.normalize(x, out)


@contextmanager
def rows_of_requests() -> Iterator[None]:
    """Inside a forward: operations within work on one row a request, as pooling does.

    A bucket has more rows than a step: outside of this, operations run on the step's real tokens
    only, within on its real requests.
    """
    _core.set_rows("requests")
    try:
        yield
    finally:
        _core.set_rows("tokens")
