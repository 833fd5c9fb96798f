"""Who calls a runner: names of requests, and what a thread's call is about."""
from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable


class Names:
    """Request ids and the int64 handles that the library knows them by."""

    def __init__(self) -> None:
        self._handles: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next = itertools.count()
        self._ahead: frozenset[str] = frozenset()
        self._lock = threading.Lock()  # steps are planned ahead from a second thread

    def handles(self, request_ids: Iterable[str]) -> tuple[int, ...]:
        found = tuple(self.handle(name) for name in request_ids)
        if len(set(found)) != len(found):
            raise ValueError("a request id is there twice in one batch")
        return found

    def handle(self, name: str) -> int:
        with self._lock:
            if name not in self._handles:
                self._remember(name, next(self._next))
            return self._handles[name]

    def _remember(self, name: str, handle: int) -> None:
        self._handles[name] = handle
        self._names[handle] = name

    def name(self, handle: int) -> str:
        with self._lock:
            if handle not in self._names:  # a row that pads
                self._remember(f"__padding_{-handle}__", handle)
            return self._names[handle]

    def plan_ahead(self, request_ids: list[str]) -> tuple[int, ...]:
        """Handles of requests that are kept until the next ones are planned ahead."""
        with self._lock:
            self._ahead = frozenset(request_ids)
        return self.handles(request_ids)

    def forget_all_but(self, request_ids: Iterable[str]) -> None:
        """Real requests of former steps go; what is planned ahead and rows that pad stay."""
        with self._lock:
            kept = self._ahead.union(request_ids)
            for name in [n for n, h in self._handles.items() if h >= 0 and n not in kept]:
                del self._names[self._handles.pop(name)]


class Hand(threading.local):
    """What a thread's call is about; callbacks come on the thread of their call."""

    inside = False
    key_info: str | None = None
    regions: tuple[str, ...] = ()
