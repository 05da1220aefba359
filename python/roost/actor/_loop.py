"""The event loop of an async actor.

While it idles it leads the engine's poller, so that a message goes from the socket to the coroutine in one
thread; otherwise each message would wake the engine's thread first, and that would wake the loop.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _LeadingSelector(selectors.EpollSelector):
    """Also watches the engine's descriptor, whenever no other thread does."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        self._node = node
        self._watching = False

    def _watch(self, watch: bool) -> None:
        if watch != self._watching:
            self._watching = watch
            fd = self._node.fileno()
            if watch:
                self._selector.register(fd, 1)  # type: ignore[attr-defined]
            else:
                self._selector.unregister(fd)  # type: ignore[attr-defined]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        most = self._node.try_lead()
        self._watch(most is not None)
        if most is None:
            return super().select(timeout)
        try:
            ready = super().select(most if timeout is None else min(timeout, most))
        finally:
            self._node.lead_once()
        if not ready:
            # What the engine has just delivered rings the loop's bell.
            ready = super().select(0)
        return ready


def new_loop(node: Any) -> asyncio.AbstractEventLoop:
    """An event loop for one actor."""
    return asyncio.SelectorEventLoop(_LeadingSelector(node))
