"""Deadlines of calls that an event loop waits for: one thread, started by the first."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_condition = threading.Condition()
_heap: list[tuple[float, int, Callable[[], object]]] = []
_order = itertools.count()
_thread: threading.Thread | None = None


def at(deadline: float, action: Callable[[], object]) -> None:
    """Runs a short action at a time of ``time.monotonic()``."""
    global _thread
    with _condition:
        heapq.heappush(_heap, (deadline, next(_order), action))
        if _thread is None:
            _thread = threading.Thread(target=_run, name="roost-timers", daemon=True)
            _thread.start()
        _condition.notify()


def _run() -> None:
    while True:
        with _condition:
            while not _heap or _heap[0][0] > time.monotonic():
                _condition.wait(None if not _heap else max(0.0, _heap[0][0] - time.monotonic()))
            action = heapq.heappop(_heap)[2]
        action()
