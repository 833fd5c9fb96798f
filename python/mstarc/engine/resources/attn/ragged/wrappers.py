"""Ragged attention: queries and keys of all requests packed end to end, without padding.

    RaggedPrefillWrapper       self: each segment attends within itself
    RaggedCrossPrefillWrapper  query segment i attends key segment i; never causal
    PrefixedPrefillWrapper     key segment i is a frozen prefix and then the query's own tokens;
                               causal is aligned to the end of the keys

Every wrapper is made once, planned once a step with the offsets of the segments, and run once a
layer. The FlashInfer* classes are the same kernels behind FlashInfer's way of constructing them:
a scratch buffer first, the layout of k and v, and a kernel by name. FA3 siblings are in
dense_wrappers.

Letters below: T packed tokens, H query heads, K key heads, D head dim.
"""
from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from typing import Any

from mstarc import _core
from mstarc._frameworks import (
    bfloat16,
    caller_device,
    caller_dtype,
    device as _device,
    device_name,
    dtype_name,
)

__all__ = [
    "FlashInferPrefixedPrefillWrapper", "FlashInferRaggedCrossPrefillWrapper",
    "FlashInferRaggedPrefillWrapper", "PrefixedPrefillWrapper", "RaggedCrossPrefillWrapper",
    "RaggedPrefillWrapper", "padded_head_dim",
]

_CUDA = _device("cuda")
_SELF, _CROSS, _PREFIXED = range(3)


def padded_head_dim(head_dim: int) -> int:
    """The smallest of 64, 128 and 256 that holds head_dim; 64 for 0 and below.

    For callers that pad themselves: the kernels here compute every head dim from 1 to 256 as it is.

    Raises ValueError above 256.
    """
    return _core.padded_head_dim(head_dim)


def _count(name: str, value: Any) -> int:
    """An int that fits the library's, which names the rest of what is wrong with it."""
    number = operator.index(value)
    if not -2**31 <= number < 2**31:
        raise ValueError(f"{name} is {number}; it must fit 32 bits")
    return number


def _ceiling(name: str, value: Any) -> int | None:
    if value is None:
        return None
    number = operator.index(value)
    if not 0 <= number < 2**31:
        raise ValueError(f"{name} is {number}; ceilings lie in 0..{2**31 - 1}")
    return number


class _RaggedPrefillBase(ABC):
    """What the wrappers share: construction, run, and what can be read back.

    Attributes, all read-only: num_qo_heads, num_kv_heads, head_dim, padded_head_dim, sm_scale,
    q_data_type, device, accelerator_graph, kv_layout, the ceilings max_num_segments,
    max_total_tokens and max_total_kv_tokens, and num_segments of the latest plan.
    """

    _kind: int
    _backend = "auto"

    def __init__(
        self,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_num_segments: int | None = None,
        max_total_tokens: int | None = None,
        max_total_kv_tokens: int | None = None,
        device: Any = _CUDA,
        accelerator_graph: bool = False,
        sm_scale: float | None = None,
        q_data_type: Any = bfloat16,
    ) -> None:
        self._build(num_qo_heads, num_kv_heads, head_dim, max_num_segments, max_total_tokens,
                    max_total_kv_tokens, device, accelerator_graph, sm_scale, q_data_type,
                    kv_layout="NHD", backend=self._backend, workspace=None)

    def _build(
        self, num_qo_heads: int, num_kv_heads: int, head_dim: int, max_num_segments: int | None,
        max_total_tokens: int | None, max_total_kv_tokens: int | None, device: Any,
        accelerator_graph: bool, sm_scale: float | None, q_data_type: Any, *, kv_layout: str,
        backend: str, workspace: Any,
    ) -> None:
        self._num_qo_heads = _count("num_qo_heads", num_qo_heads)
        self._num_kv_heads = _count("num_kv_heads", num_kv_heads)
        self._head_dim = _count("head_dim", head_dim)
        self._padded_head_dim = padded_head_dim(self._head_dim)
        self._accelerator_graph = bool(accelerator_graph)
        if self._accelerator_graph:
            self._check_graph_mode(max_num_segments, max_total_tokens)
        self._max_num_segments = _ceiling("max_num_segments", max_num_segments)
        self._max_total_tokens = _ceiling("max_total_tokens", max_total_tokens)
        kv_ceiling = _ceiling("max_total_kv_tokens", max_total_kv_tokens)
        self._max_total_kv_tokens = self._max_total_tokens if kv_ceiling is None else kv_ceiling
        if sm_scale is None:
            sm_scale = max(self._head_dim, 1) ** -0.5  # a head_dim below 1 is refused by its name
        elif not math.isfinite(sm_scale):
            raise ValueError(f"sm_scale is {sm_scale}; it must be finite")
        self._sm_scale = float(sm_scale)
        self._q_data_type = caller_dtype(q_data_type)
        self._kv_layout = kv_layout

        def given(ceiling: int | None) -> int:
            return ceiling if self._accelerator_graph and ceiling is not None else -1

        arguments: Any = (
            self._kind, self._num_qo_heads, self._num_kv_heads, self._head_dim,
            given(self._max_num_segments), given(self._max_total_tokens),
            given(self._max_total_kv_tokens), device_name(device), self._accelerator_graph,
            self._sm_scale, dtype_name(q_data_type), kv_layout)
        self._core: Any
        if backend == "flashinfer":
            from mstarc.engine.resources.attn.ragged.flashinfer_backend import FlashInferAttention
            self._core = FlashInferAttention(*(*arguments, workspace))
        else:
            self._core = self._make_core(arguments, backend, workspace)
        self._device = caller_device(device)  # a name that is none has been refused by now

    def _make_core(self, arguments: Any, backend: str, workspace: Any) -> Any:
        return _core.Attention(*(*arguments, backend, workspace))

    @staticmethod
    def _check_graph_mode(max_num_segments: int | None, max_total_tokens: int | None) -> None:
        for name, value in (("max_num_segments", max_num_segments),
                            ("max_total_tokens", max_total_tokens)):
            if value is None:
                raise AssertionError(f"accelerator_graph=True needs {name}, the ceiling that its "
                                     "memory is taken for")
        if max_num_segments is not None and max_num_segments <= 0:
            raise AssertionError(f"max_num_segments is {max_num_segments}; graph mode needs at "
                                 "least 1")

    @abstractmethod
    def plan(self, *args: Any, **kwargs: Any) -> None:
        """Plan a layout of segments. See the wrapper's own."""

    def run(self, q: Any, k: Any, v: Any) -> Any:
        """Attention of one layer over the latest plan.

        Args:
            q: [T, H, D], at least as many rows as planned.
            k, v: [Tk, K, D], or [K, Tk, D] where kv_layout is "HND"; at least as many rows as
                planned.
                All three may come from any framework and be views with strides, such as slices of
                one fused projection. What has another dtype than q_data_type, or a last dimension
                that is not contiguous, is cast into a copy first; all else is read in place, also
                from read-only memory.

        Returns:
            [T, H, D] of q_data_type, new memory of q's own framework. numpy has no bfloat16: an
            mstarc.Tensor comes back, unless q's dtype is that of ml_dtypes. Rows past the plan are
            exactly 0. A row that sees no key is exactly 0.

        Raises:
            ValueError: a shape, row count or device that does not fit the plan and the wrapper.
            TypeError: what is no tensor, or a dtype that cannot be converted.
            AssertionError: in graph mode, more rows of q than max_total_tokens.
            RuntimeError: there is no plan yet (eager mode).

        The interpreter's lock is released meanwhile. Threads that share a wrapper wait for each
        other; wrappers run side by side. A segment's bits depend on that segment alone.
        """
        return self._core.run(q, k, v)

    @property
    def num_qo_heads(self) -> int:
        """Query heads."""
        return self._num_qo_heads

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads; query head h reads head h // (num_qo_heads / num_kv_heads)."""
        return self._num_kv_heads

    @property
    def head_dim(self) -> int:
        """The true head dim."""
        return self._head_dim

    @property
    def padded_head_dim(self) -> int:
        """padded_head_dim(head_dim)."""
        return self._padded_head_dim

    @property
    def sm_scale(self) -> float:
        """The factor of q.k before softmax; head_dim ** -0.5 unless given."""
        return self._sm_scale

    @property
    def q_data_type(self) -> Any:
        """The dtype of the computation and of outputs."""
        return self._q_data_type

    @property
    def device(self) -> Any:
        """Where tensors have to lie."""
        return self._device

    @property
    def accelerator_graph(self) -> bool:
        """True in graph mode."""
        return self._accelerator_graph

    @property
    def kv_layout(self) -> str:
        """"NHD" or "HND"."""
        return self._kv_layout

    @property
    def max_num_segments(self) -> int | None:
        """Ceiling of segments; only graph mode heeds it."""
        return self._max_num_segments

    @property
    def max_total_tokens(self) -> int | None:
        """Ceiling of query tokens; only graph mode heeds it."""
        return self._max_total_tokens

    @property
    def max_total_kv_tokens(self) -> int | None:
        """Ceiling of key tokens, max_total_tokens unless given; only graph mode heeds it."""
        return self._max_total_kv_tokens

    @property
    def num_segments(self) -> int:
        """Segments of the latest plan as the caller gave it; 0 before the first."""
        return int(self._core.info()["num_segments"])

    @property
    def info(self) -> dict[str, Any]:
        """Counters, sizes in bytes, and the kernel in use with the reason for it."""
        info: dict[str, Any] = self._core.info()
        return info

    def __repr__(self) -> str:
        mode = "graph mode" if self._accelerator_graph else "eager mode"
        return (f"{type(self).__name__}({self._num_qo_heads} heads on {self._num_kv_heads}, "
                f"head_dim {self._head_dim}, {dtype_name(self._q_data_type)}, "
                f"{self._device}, {mode})")


class RaggedPrefillWrapper(_RaggedPrefillBase):
    """Self attention over packed segments: each segment attends within itself.

    Args:
        num_qo_heads: query heads H.
        num_kv_heads: key heads K, a divisor of H.
        head_dim: D, 1 to 256, computed as it is.
        max_num_segments, max_total_tokens: ceilings, required in graph mode.
        max_total_kv_tokens: accepted for the signature's sake; one layout serves both sides.
        device: a name, a torch device, or anything whose text names one.
        accelerator_graph: graph mode: memory is taken for the ceilings once, addresses never
            change, and any layout under the ceilings may be planned without a new capture.
        sm_scale: factor of q.k; None is head_dim ** -0.5.
        q_data_type: what q, k and v are cast to, and the output's dtype: a torch or numpy dtype,
            or a name.

    Raises:
        ValueError: an argument out of range. AssertionError: graph mode without its ceilings.
        RuntimeError: the device is not there. NotImplementedError: it has no such kernel.
    """

    _kind = _SELF

    def plan(self, cu_seqlens: Any, causal: bool = False) -> None:
        """Plan one layout, for queries and keys alike.

        Args:
            cu_seqlens: S + 1 offsets, first 0, never decreasing: segment i owns rows
                cu_seqlens[i] to cu_seqlens[i + 1]. A list, or a tensor of integers; host memory is
                best, since one on a device costs a wait. Copied before the call returns.
            causal: row r of a segment sees its keys 0 to r.

        May be called before every replay with any layout under the ceilings. Segments may be empty.

        Raises:
            ValueError: offsets that break these rules or a ceiling; the former plan stays in force.
            TypeError: offsets that are not integers.
        """
        self._core.plan(cu_seqlens, None, causal)


class RaggedCrossPrefillWrapper(_RaggedPrefillBase):
    """Cross attention between two packed layouts: query segment i attends key segment i.

    Never causal. In graph mode the key side has a ceiling of its own, max_total_kv_tokens, which is
    max_total_tokens unless given. Arguments and errors are those of RaggedPrefillWrapper.
    """

    _kind = _CROSS

    def plan(self, q_cu_seqlens: Any, kv_cu_seqlens: Any) -> None:
        """Plan a query layout against a key layout with the same number of segments.

        Args:
            q_cu_seqlens, kv_cu_seqlens: offsets as in RaggedPrefillWrapper.plan. A query segment
                whose key segment is empty gives zeros.

        Raises:
            ValueError: as there, and for numbers of segments that differ, naming both.
        """
        self._core.plan(q_cu_seqlens, kv_cu_seqlens, False)


class PrefixedPrefillWrapper(_RaggedPrefillBase):
    """Attention over a frozen prefix: key segment i is a prefix and then the query's own tokens.

    Arguments and errors are those of RaggedPrefillWrapper; the key side has a ceiling of its own in
    graph mode, max_total_kv_tokens.
    """

    _kind = _PREFIXED

    def plan(self, q_cu_seqlens: Any, kv_cu_seqlens: Any, causal: bool = False) -> None:
        """Plan a query layout against a key layout with the same number of segments.

        Args:
            q_cu_seqlens, kv_cu_seqlens: offsets as in RaggedPrefillWrapper.plan. With 3 frozen and
                2 fresh tokens, then 9 and 4: [0, 2, 6] and [0, 5, 18].
            causal: row r of Lq queries sees keys 0 to Lk - Lq + r of Lk: the queries stand at the
                end of their keys. Otherwise every row sees all Lk.

        Raises:
            ValueError: as there, and for numbers of segments that differ, naming both.
        """
        self._core.plan(q_cu_seqlens, kv_cu_seqlens, causal)


class _FlashInferRaggedPrefillBase(_RaggedPrefillBase):
    """FlashInfer's constructor: a scratch buffer first, then keyword-only choices."""

    def __init__(
        self,
        workspace_buffer: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        kv_layout: str = "NHD",
        backend: str = "auto",
        **kwargs: Any,
    ) -> None:
        self._build(num_qo_heads, num_kv_heads, head_dim, **_abstract_arguments(kwargs),
                    kv_layout=kv_layout, backend=backend, workspace=workspace_buffer)


def _abstract_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The abstract classes' further arguments with their defaults filled in."""
    known: dict[str, Any] = {
        "max_num_segments": None, "max_total_tokens": None, "max_total_kv_tokens": None,
        "device": _CUDA, "accelerator_graph": False, "sm_scale": None, "q_data_type": bfloat16,
    }
    for name in kwargs:
        if name not in known:
            raise TypeError(f"unexpected keyword argument '{name}'; the abstract class takes "
                            + ", ".join(known))
    return {**known, **kwargs}


class FlashInferRaggedPrefillWrapper(_FlashInferRaggedPrefillBase, RaggedPrefillWrapper):
    """RaggedPrefillWrapper, constructed as FlashInfer's.

    Args:
        workspace_buffer: writable scratch on the device, any dtype; kept until the wrapper goes. It
            may serve wrappers whose work never overlaps in time. None lets the wrapper take its own.
        num_qo_heads, num_kv_heads, head_dim: as in RaggedPrefillWrapper.
        kv_layout: of k and v: "NHD" is [Tk, K, D], "HND" is [K, Tk, D].
        backend: "auto", "native" or "reference"; "fa2" and "fa3" are kernels of a GPU; "flashinfer"
            hands the work to that package, on torch's tensors, where it is installed.
        **kwargs: the further arguments of RaggedPrefillWrapper.

    Raises:
        ValueError: as there, or the buffer is smaller than what run needs: info's workspace_bytes,
            and up to 63 more where it does not begin at a multiple of 64.
        NotImplementedError: a backend that this device does not have, or "flashinfer" without it.
    """


class FlashInferRaggedCrossPrefillWrapper(_FlashInferRaggedPrefillBase, RaggedCrossPrefillWrapper):
    """RaggedCrossPrefillWrapper, constructed as FlashInferRaggedPrefillWrapper."""


class FlashInferPrefixedPrefillWrapper(_FlashInferRaggedPrefillBase, PrefixedPrefillWrapper):
    """PrefixedPrefillWrapper, constructed as FlashInferRaggedPrefillWrapper."""
