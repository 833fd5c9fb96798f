"""What the two runners share: preparing and capturing, results by name, and one call at a time."""
from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mstarc._frameworks import device, device_name
from mstarc.engine._calls import Hand, Names
from mstarc.engine._work import Work
from mstarc.engine.resources.attn.ragged.managers import NodeResources

_log = logging.getLogger("mstarc")


@dataclass(frozen=True)
class CaptureFailure:
    """A callback raised while a bucket was prepared or captured. -1 where a size is not known."""

    bs: int
    num_tokens: int
    exception: BaseException


class Result(Mapping[str, Any]):
    """Results by name, in the runner's memory."""

    def __init__(self, outputs: dict[str, Any]) -> None:
        self._outputs = outputs

    def view(self, name: str) -> Any:
        """The rows of the batch without a copy; they hold until the runner's next run."""
        return self._outputs[name]

    def __getitem__(self, name: str) -> Any:
        """A copy that stays. KeyError for a name that there is not."""
        made = self._outputs[name]
        return made.clone() if hasattr(made, "clone") else made.copy()  # cupy's

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)


def once(values: Sequence[int] | None) -> tuple[int, ...]:
    """Sizes in the order given, each once: a bucket is captured once."""
    return tuple(dict.fromkeys(values or ()))


def as_dict(outputs: Any) -> dict[str, Any]:
    """A bare tensor is filed under "x"."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if hasattr(outputs, "__dlpack__"):
        return {"x": outputs}
    raise TypeError(f"the forward gave a {type(outputs)!r}; expected a dict of tensors or a tensor")


def is_tensor(value: Any) -> bool:
    return hasattr(value, "__dlpack__")


class Runner:
    """prepare and capture, and what they say."""

    _core: Any
    _who: str

    def __init__(self, given_device: Any, resources: NodeResources | None) -> None:
        self._failures: list[CaptureFailure] = []
        self._device = _device_of(given_device, resources)
        self._work = Work(self._device)
        self._names = Names()
        self._hand = Hand()
        self._turn = threading.Lock()

    @contextmanager
    def _alone(self, turn: threading.Lock) -> Iterator[Hand]:
        """One call at a time. A call from inside of one would wait for itself and is refused."""
        hand = self._hand
        if hand.inside:
            raise RuntimeError(f"{self._who}: the runner is called from inside of one of its own "
                               "callbacks")
        with turn:
            hand.inside = True
            try:
                yield hand
            finally:
                hand.inside, hand.key_info, hand.regions = False, None, ()

    def prepare(self) -> None:
        """Takes what the captures need. All runners that share resources, before any captures."""
        with self._alone(self._turn), self._work.captures():
            self._collect(self._core.prepare())

    def capture(self) -> None:
        """Captures every bucket, largest first; prepares before, where that was not done.

        Raises:
            RuntimeError: it was done already, or something is missing and
                MSTAR_REQUIRE_ACCELERATOR_GRAPHS is 1, or any text but 0.
        """
        with self._alone(self._turn), self._work.captures():
            if not self._prepared:
                self._collect(self._core.prepare())
            first, self._captured = not self._captured, True
            try:
                self._collect(self._core.capture())
            except RuntimeError as error:
                if first and error.__cause__ is None and self._failures:
                    raise error from self._failures[0].exception  # raised while preparing
                raise

    def _pool_bytes(self) -> int:
        return self._work.pool_bytes()

    def _owns(self, address: int) -> bool:
        return self._work.owns(address)

    _prepared = _captured = False

    def _collect(self, failures: list[tuple[int, int, BaseException]]) -> None:
        self._prepared = True
        for failure in failures:
            self._failures.append(CaptureFailure(*failure))
            _log.error("%s: the bucket of %d requests and %d tokens is not captured and is served "
                       "eager", self._who, failure[0], failure[1], exc_info=failure[2])

    @property
    def failures(self) -> list[CaptureFailure]:
        """What callbacks raised while buckets were prepared and captured."""
        return list(self._failures)

    @property
    def device(self) -> device:
        """Where captures run."""
        return device(self._device)

    @property
    def info(self) -> dict[str, Any]:
        """Counters, and sizes in bytes."""
        return self._core.info()  # type: ignore[no-any-return]


def _device_of(given: Any, resources: NodeResources | None) -> str:
    theirs = None if resources is None or not len(resources) else str(resources.device)
    if given is None:
        return theirs or "cpu"
    name = device_name(given)
    if theirs not in (None, name):
        raise ValueError(f"device is {name!r}; the resources are on {theirs!r}")
    return name
