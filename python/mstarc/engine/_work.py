"""Where the callables of a runner on a GPU work: on its stream, in memory of its own.

torch and cupy are met only where the caller has imported them. On the CPU nothing here does anything:
there the operations of mstarc.ops are recorded, and nothing else.
"""
from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from mstarc._frameworks import as_framework, framework_of


class Work:
    """The stream and the memory of one runner's callables, and whose arrays they take and give.

    Args:
        device: "cpu" or "cuda:N".

    Attributes:
        takes, gives: framework by the name of an input and of a result.
    """

    def __init__(self, device: str) -> None:
        self._index = None if device == "cpu" else int(device.partition(":")[2])
        self._pools: dict[str, Any] = {}  # what captures read lives as long as the runner
        self._ranges: list[tuple[int, int]] = []  # of addresses in torch's pool
        self._blocks: dict[int, int] = {}  # of cupy's pool: address to bytes
        self.takes: dict[str, str] = {}
        self.gives: dict[str, str] = {}

    @contextmanager
    def captures(self) -> Iterator[None]:
        """No garbage is collected while a GPU's stream may be captured: freeing memory of a device
        would break that."""
        with ExitStack() as stack:
            if self._index is not None:
                stack.enter_context(_garbage_stays())
            yield

    @contextmanager
    def on(self, stream: int, *, own_memory: bool = False, capturing: bool = False) -> Iterator[None]:
        """Work of torch and cupy goes to the stream of that address.

        own_memory: new arrays come from the runner's pools, which give nothing back while it lives.
        capturing: the stream is being captured.
        """
        if self._index is None:
            yield
            return
        with ExitStack() as stack:
            torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
            if torch is not None and (torch.cuda.is_initialized() or torch.cuda.is_available()):
                self._enter_torch(stack, torch, stream, own_memory)
            if cupy is not None:
                self._enter_cupy(stack, cupy, stream, own_memory)
            yield
        if own_memory and not capturing and "torch" in self._pools:
            self._ranges = [(segment["address"], segment["address"] + segment["total_size"])
                            for segment in self._pools["torch"].snapshot()]

    def pool_bytes(self) -> int:
        """What torch's and cupy's pools held after the latest warm-up or hold now."""
        cupys = self._pools["cupy"].total_bytes() if "cupy" in self._pools else 0
        return int(cupys) + sum(end - begin for begin, end in self._ranges)

    def owns(self, address: int) -> bool:
        """Whether memory is of torch's pool as the warm-ups left it, or of cupy's. A capture need not
        keep such an array: the pool is kept, and its memory may serve what is made next."""
        return any(begin <= address < end for begin, end in self._ranges) or \
            any(begin <= address < begin + count for begin, count in self._blocks.items())

    def _enter_torch(self, stack: ExitStack, torch: Any, stream: int, own_memory: bool) -> None:
        index = self._index
        stack.enter_context(torch.cuda.device(index))
        stack.enter_context(torch.no_grad())
        if own_memory:  # before the stream: on one that captures, torch would ask for its own graph
            if "torch" not in self._pools:
                self._pools["torch"] = torch.cuda.MemPool()
            stack.enter_context(torch.cuda.use_mem_pool(self._pools["torch"], index))
        if torch.cuda.current_stream(index).cuda_stream != stream:
            stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream, device=index)))

    def _enter_cupy(self, stack: ExitStack, cupy: Any, stream: int, own_memory: bool) -> None:
        stack.enter_context(cupy.cuda.Device(self._index))
        if cupy.cuda.get_current_stream().ptr != stream:
            stack.enter_context(_cupys_stream(cupy, stream, self._index))
        if own_memory:
            if "cupy" not in self._pools:
                self._pools["cupy"] = cupy.cuda.MemoryPool()
            stack.enter_context(cupy.cuda.using_allocator(self._take_cupys))

    def _take_cupys(self, count: int) -> Any:
        taken = self._pools["cupy"].malloc(count)
        self._blocks[taken.ptr] = max(count, self._blocks.get(taken.ptr, 0))
        return taken

    def note_inputs(self, arrays: Mapping[str, Any]) -> None:
        """Whose arrays the callables are handed: those of the framework that made them."""
        if self._index is not None:
            self.takes.update((name, framework_of(array)) for name, array in arrays.items())

    def hand_in(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The runner's Tensors as the callables take them."""
        return _handed(self.takes, tensors)

    def note_outputs(self, arrays: Mapping[str, Any]) -> None:
        """Whose arrays results are handed out as."""
        if self._index is not None:
            self.gives.update((name, framework_of(array)) for name, array in arrays.items())

    def hand_out(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The runner's Tensors as the caller gets them."""
        return _handed(self.gives, tensors)


class _Native:
    """A stream by its address, as other packages take one."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def _cupys_stream(cupy: Any, address: int, index: Any) -> Any:
    if hasattr(cupy.cuda.Stream, "from_external"):  # cupy 14
        return cupy.cuda.Stream.from_external(_Native(address))
    return cupy.cuda.ExternalStream(address, index)


_garbage_turn = threading.Lock()
_garbage_stays_for = 0
_garbage_was_collected = False


@contextmanager
def _garbage_stays() -> Iterator[None]:
    """The collector is the process's: it rests until the last of several threads is done."""
    global _garbage_stays_for, _garbage_was_collected
    with _garbage_turn:
        if _garbage_stays_for == 0:
            _garbage_was_collected = gc.isenabled()
            gc.disable()
        _garbage_stays_for += 1
    try:
        yield
    finally:
        with _garbage_turn:
            _garbage_stays_for -= 1
            if _garbage_stays_for == 0 and _garbage_was_collected:
                gc.enable()


def _handed(frameworks: Mapping[str, str], tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: as_framework(frameworks.get(name, ""), made) for name, made in tensors.items()}
