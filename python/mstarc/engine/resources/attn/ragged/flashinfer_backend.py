"""backend="flashinfer": the work goes to the package of that name, on torch's tensors on a GPU.

Offsets are checked as everywhere else, by a plan of our own on the CPU, before they are handed on.
FlashInfer's kernels read head dims that are padded (padded_head_dim); graph mode keeps the rows past
a plan at zero in an output of the wrapper's own, and a plan of fewer segments is filled up with empty
ones, since FlashInfer fixes their number. Has not run on a GPU yet: the tests put a package of their
own in FlashInfer's place.
"""
from __future__ import annotations

import importlib
from typing import Any

from mstarc import _core

__all__ = ["FlashInferAttention"]


def _import_flashinfer() -> tuple[Any, Any]:
    try:
        return importlib.import_module("flashinfer"), importlib.import_module("torch")
    except ImportError as error:
        raise NotImplementedError(
            "backend='flashinfer' hands the work to the packages flashinfer and torch, of which one "
            f"is not installed here ({error}); 'auto' and 'native' need neither") from error


class FlashInferAttention:
    """What a wrapper asks of its core (plan, run, info), by FlashInfer's ragged prefill wrapper.

    max_num_segments, max_total_tokens and max_total_kv_tokens are -1 where there is no ceiling.
    """

    def __init__(
        self, kind: int, num_qo_heads: int, num_kv_heads: int, head_dim: int, max_num_segments: int,
        max_total_tokens: int, max_total_kv_tokens: int, device: str, accelerator_graph: bool,
        sm_scale: float, q_data_type: str, kv_layout: str, workspace: Any,
    ) -> None:
        if kv_layout != "NHD":
            raise NotImplementedError(f"kv_layout is {kv_layout!r}; FlashInfer's ragged wrapper reads "
                                      "'NHD'")
        flashinfer, torch = _import_flashinfer()
        if not isinstance(workspace, torch.Tensor):
            raise TypeError(f"workspace_buffer is a {type(workspace)!r}; FlashInfer takes a torch "
                            "tensor of bytes on the device")
        # the rules of plans, and their messages
        self._checked = _core.Attention(
            kind, num_qo_heads, num_kv_heads, head_dim, max_num_segments, max_total_tokens,
            max_total_kv_tokens, "cpu", accelerator_graph, sm_scale, q_data_type, "NHD", "auto", None)
        self._torch = torch
        self._kind = kind
        self._heads = (num_qo_heads, num_kv_heads)
        self._dim, self._padded = head_dim, _core.padded_head_dim(head_dim)
        self._device = torch.device(device)
        self._dtype = getattr(torch, q_data_type)
        self._scale = sm_scale
        self._graph = accelerator_graph
        self._segments, self._tokens = max_num_segments, max_total_tokens
        self._planned = 0
        self._has_plan = False
        buffers: dict[str, Any] = {}
        if accelerator_graph:
            buffers = {"use_cuda_graph": True, "qo_indptr_buf": self._offset_buffer(),
                       "kv_indptr_buf": self._offset_buffer()}
            self._out = torch.zeros(max_total_tokens, num_qo_heads, self._padded, dtype=self._dtype,
                                    device=self._device)
        self._wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", **buffers)
        if accelerator_graph:  # FlashInfer takes the largest plan that it will see from the first
            kv_tokens = max_total_tokens if kind == 0 else max_total_kv_tokens
            self._hand_on(self._spread(max_total_tokens), self._spread(kv_tokens), False)

    def _offset_buffer(self) -> Any:
        return self._torch.zeros(self._segments + 1, dtype=self._torch.int32, device=self._device)

    def _spread(self, total: int) -> list[int]:
        offsets = [0]
        for length in _core.distribute_tokens(total, self._segments):
            offsets.append(offsets[-1] + length)
        return offsets

    def _host_offsets(self, offsets: Any) -> list[int]:
        given = offsets.tolist() if hasattr(offsets, "tolist") else list(offsets)
        full = self._segments + 1 if self._graph else len(given)
        return given + given[-1:] * (full - len(given))

    def plan(self, q_cu_seqlens: Any, kv_cu_seqlens: Any, causal: bool, /) -> None:
        """Offsets as everywhere; kv_cu_seqlens is None for self attention."""
        self._checked.plan(q_cu_seqlens, kv_cu_seqlens, causal)
        q = self._host_offsets(q_cu_seqlens)
        kv = q if self._kind == 0 else self._host_offsets(kv_cu_seqlens)
        self._hand_on(q, kv, causal)
        if self._graph:
            self._out[q[-1]:].zero_()

    def _hand_on(self, q: list[int], kv: list[int], causal: bool) -> None:
        def tensor(values: list[int]) -> Any:
            return self._torch.tensor(values, dtype=self._torch.int32)

        self._wrapper.plan(
            tensor(q), tensor(kv), *self._heads, self._padded, causal=causal, sm_scale=self._scale,
            q_data_type=self._dtype, kv_data_type=self._dtype)
        self._planned = q[-1]
        self._has_plan = True

    def _padded_input(self, name: str, tensor: Any, heads: int) -> Any:
        if not isinstance(tensor, self._torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor)!r}; backend='flashinfer' takes torch tensors")
        if tensor.dim() != 3 or tuple(tensor.shape[1:]) != (heads, self._dim):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected [tokens, {heads}, "
                             f"{self._dim}]")
        cast = tensor.to(self._dtype)
        if self._padded != self._dim:
            cast = self._torch.nn.functional.pad(cast, (0, self._padded - self._dim))
        return cast.contiguous()

    def run(self, q: Any, k: Any, v: Any, /) -> Any:
        """Torch tensors [T, H, D], cast and padded where they have to be; a new one comes back."""
        if not self._has_plan:
            raise RuntimeError("run before plan: there is no plan yet")
        q = self._padded_input("q", q, self._heads[0])
        k = self._padded_input("k", k, self._heads[1])
        v = self._padded_input("v", v, self._heads[1])
        rows = q.shape[0]
        if rows < self._planned:
            raise ValueError(f"q has {rows} rows; the plan has {self._planned} tokens")
        if not self._graph:
            out = q.new_zeros(q.shape)
        elif rows > self._tokens:
            raise AssertionError(f"q has {rows} rows; max_total_tokens is {self._tokens}")
        else:
            out = self._out[:rows]
        self._wrapper.run(q, k, v, out=out)
        if self._padded != self._dim:
            return out[..., :self._dim].contiguous()
        return out.clone() if self._graph else out

    def info(self) -> dict[str, Any]:
        """The counters of the plans, and whose the kernel is."""
        return {**self._checked.info(), "kernel": "flashinfer",
                "kernel_reason": "asked for by name"}
