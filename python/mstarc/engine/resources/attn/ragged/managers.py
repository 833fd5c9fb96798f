"""Managers of ragged attention: who makes the wrappers of a node, how big, and which plan holds.

A manager is a resource of a step. For each captured bucket and slot it makes wrappers in graph mode,
sized from the bucket, at that key's first plan; eager steps have eager ones. A network runs them by
the manager, inside the forward of a runner.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from mstarc import _core
from mstarc._frameworks import device as _device
from mstarc._frameworks import device_name, dtype_name

__all__ = [
    "NodeResources", "PrefixedAttentionManager", "RaggedAttentionManager",
    "RaggedCrossAttentionManager",
]


class RaggedAttentionManager:
    """Self attention over the segments of a step, one plan a label.

    Args:
        num_qo_heads, num_kv_heads, head_dim: of the whole model.
        dtype: of q, k, v and the result.
        sm_scale: factor of q.k before softmax; None is head_dim ** -0.5.
        max_segments_per_request, max_tokens_per_request: sizes of a bucket's wrappers: so many
            segments for each request, and so many tokens where the bucket's own count is too few.
        flashinfer_backend: "auto", "native" or "reference".
        tp_world_size: ranks over which heads are divided; head_dim never is.
        device: where its wrappers compute: a name, a torch device, or anything whose text names one.

    Raises:
        ValueError, NotImplementedError: an argument out of range, or a backend not of this device.
    """

    _kind = 0

    def __init__(
        self,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: Any = "bfloat16",
        sm_scale: float | None = None,
        max_segments_per_request: int = 1,
        max_tokens_per_request: int | None = None,
        flashinfer_backend: str = "auto",
        tp_world_size: int = 1,
        device: Any = "cpu",
    ) -> None:
        most = -1 if max_tokens_per_request is None else operator.index(max_tokens_per_request)
        if max_tokens_per_request is not None and most < 0:
            raise ValueError(f"max_tokens_per_request is {most}; it is at least 0")
        self._core = _core.Manager(
            self._kind, num_qo_heads, num_kv_heads, head_dim,
            math.nan if sm_scale is None else sm_scale, max_segments_per_request, most,
            flashinfer_backend, dtype_name(dtype), tp_world_size, device_name(device))
        self._device = _device(device_name(device))

    def run(self, q: Any, k: Any, v: Any, label: str | None = None) -> Any:
        """Attention of one layer over the step's plan of a label; None is the current one.

        q [T, H, D], k and v [Tk, K, D]; the result is [T, H, D] of the manager's dtype. Rows past
        the plan are 0. Cross and prefixed plans have the label "q_label:kv_label".

        Raises:
            KeyError: a label that the step did not declare. RuntimeError: outside of a forward.
        """
        return self._core.run(q, k, v, label)

    def set_label(self, label: str) -> None:
        """The label that None stands for, until the next plan. KeyError as for run."""
        self._core.set_label(label)

    @property
    def device(self) -> _device:
        """Where q, k and v have to lie."""
        return self._device

    @property
    def info(self) -> dict[str, Any]:
        """Heads of this rank, counters of wrappers and plans, bytes."""
        return self._core.info()

    def __repr__(self) -> str:
        info = self._core.info()
        return (f"{type(self).__name__}({info['num_qo_heads']} heads on {info['num_kv_heads']}, "
                f"head_dim {info['head_dim']}, {info['dtype']})")


class RaggedCrossAttentionManager(RaggedAttentionManager):
    """Cross attention: pairs of labels, queries of one and keys of the other."""

    _kind = 1


class PrefixedAttentionManager(RaggedAttentionManager):
    """Attention over a frozen prefix: under the key label stand prefix and own tokens together."""

    _kind = 2


class NodeResources(Mapping[str, RaggedAttentionManager]):
    """The managers of one node by key: what its runners share. It does not change.

    Raises:
        TypeError: something that is no manager. ValueError: managers on several devices.
    """

    def __init__(self, managers: Mapping[str, RaggedAttentionManager]) -> None:
        self._managers = dict(managers)
        for key, manager in self._managers.items():
            if not isinstance(manager, RaggedAttentionManager):
                raise TypeError(f"resource {key!r} is a {type(manager)!r}; expected a manager")
        devices = sorted({str(manager.device) for manager in self._managers.values()})
        if len(devices) > 1:
            raise ValueError(f"the managers of a node are on one device; these are on {devices}")
        self._device = _device(devices[0] if devices else "cpu")
        self._core = _core.Resources({key: one._core for key, one in self._managers.items()})

    @property
    def device(self) -> _device:
        """Where the managers compute; the CPU where there are none."""
        return self._device

    def __getitem__(self, key: str) -> RaggedAttentionManager:
        return self._managers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._managers)

    def __len__(self) -> int:
        return len(self._managers)

    def __repr__(self) -> str:
        return f"NodeResources({self._managers})"
