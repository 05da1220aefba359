"""Who runs here: the actor, and the message that it handles."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from roost._shape import Extent, Point

if TYPE_CHECKING:
    from roost.actor._instance import Instance

_current: ContextVar[Context | None] = ContextVar("roost_context", default=None)


class Context:
    """The actor whose code runs, and where the message that it handles was sent.

    Attributes:
        actor_instance: the running actor; in the controller, the client itself.
    """

    __slots__ = ("_extent", "_rank", "actor_instance", "call_key")

    actor_instance: Instance

    def __init__(self, instance: Any, extent: Extent, rank: int, call_key: Any = None) -> None:
        self.actor_instance = instance
        self._extent = extent
        self._rank = rank
        self.call_key = call_key

    @property
    def message_rank(self) -> Point:
        """Point of this actor in the mesh that the message was sent to, which may be a slice."""
        return Point(self._rank, self._extent)

    def __repr__(self) -> str:
        return f"<Context {self.actor_instance!r} at {self.message_rank!r}>"


def set_context(context: Context | None) -> None:
    """The context of the message that is handled from now on."""
    _current.set(context)


def current_runner() -> Any:
    """The runner of the actor whose thread this is; None elsewhere, also in threads that it started."""
    context = _current.get()
    if context is None:
        return None
    runner = context.actor_instance._runner
    if runner is None or runner.thread_id != threading.get_ident():
        return None
    return runner


def context() -> Context:
    """The context of the running code. In a plain program this starts the client on first use."""
    found = _current.get()
    if found is not None:
        return found
    from roost.actor._runtime import runtime

    return runtime().client_context


def current_rank() -> Point:
    """Point of the running actor in the mesh that the current message was sent to."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """Sizes of the mesh that the current message was sent to, by dimension."""
    return dict(context()._extent.items())


def current_actor_name() -> str:
    """Identity of the running actor, as text."""
    return str(context().actor_instance.actor_id)
