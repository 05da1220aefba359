"""The event loop of an async actor.

It waits in the engine, as the leader of the poller where it can, so that a message goes from the socket to
the coroutine in one thread. With a plain loop each message would wake the engine's thread first, and that
one the loop, through a descriptor.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from typing import Any

from roost.actor._bells import LoopBell, bell_of

_RUNG, _OUTSIDE = 1, 2

Ready = list[tuple[selectors.SelectorKey, int]]


class _EngineSelector(selectors.EpollSelector):
    """Waits for the engine and for the loop's own descriptors."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        self._node = node
        self._owner: LoopBell | None = None
        self._attached: int | None = None
        self._look = True

    def attach(self, owner: LoopBell) -> None:
        self._owner = owner
        self._bell_event = (self.get_key(owner.bell.fileno()), selectors.EVENT_READ)
        self._attached = self._node.attach_loop(owner.bell, os.dup(self.fileno()))

    def select(self, timeout: float | None = None) -> Ready:
        owner = self._owner
        if owner is None:
            return super().select(timeout)
        # The engine says once when a descriptor becomes ready; while some were, more may be.
        ready = super().select(0) if self._look else []
        at_once = ready or (timeout is not None and timeout <= 0)
        due = self._node.wait_loop(owner.bell, 0.0 if at_once else timeout)
        if due & _OUTSIDE and not ready:
            ready = super().select(0)
        self._look = bool(ready)
        if due & _RUNG:
            ready.append(self._bell_event)
        return ready

    def close(self) -> None:
        if self._attached is not None:
            self._node.detach_loop(self._attached)
            self._attached = self._owner = None
        super().close()


def new_loop(node: Any) -> asyncio.AbstractEventLoop:
    """An event loop for one actor; to be called in its thread."""
    selector = _EngineSelector(node)
    loop = asyncio.SelectorEventLoop(selector)
    selector.attach(bell_of(loop))
    return loop
