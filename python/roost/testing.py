"""For tests of programs that use roost: other actors, and other ways to start processes, in their place."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from roost.actor import _actor, _host_mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from roost.actor import Actor, BootstrapCommand, Point

__all__ = ["patch_actor", "patch_launcher"]


@contextlib.contextmanager
def patch_actor(real: type[Actor], mock: type[Actor]) -> Iterator[type[Actor]]:
    """Spawns ``mock`` wherever ``real`` is spawned, here and in actors that are spawned meanwhile.

    Also a decorator of test functions, ``async def`` ones excepted: use ``with`` there.

    Args:
        real: the class that the program spawns.
        mock: what it gets instead; usually a subclass, or one with the same endpoints.

    Example:
        >>> from roost.actor import Actor, endpoint, this_proc
        >>> from roost.testing import patch_actor
        >>> class Clock(Actor):
        ...     @endpoint
        ...     def now(self) -> float: ...
        >>> class Stopped(Clock):
        ...     @endpoint
        ...     def now(self) -> float:
        ...         return 12.0
        >>> with patch_actor(Clock, Stopped):
        ...     clock = this_proc().spawn("clock", Clock)
        >>> clock.now.call_one().get()
        12.0
    """
    before = _actor.substitutes.get(real)
    _actor.substitutes[real] = mock
    try:
        yield mock
    finally:
        if before is None:
            _actor.substitutes.pop(real, None)
        else:
            _actor.substitutes[real] = before


@contextlib.contextmanager
def patch_launcher(
    launch: Callable[[str, Point, BootstrapCommand | None], BootstrapCommand | None],
) -> Iterator[None]:
    """Asks ``launch`` how to start each process that `HostMesh.spawn_procs` starts meanwhile.

    Args:
        launch: gets the name of the mesh, the point of the process, and the command that would start it (None
            when it would be forked). It returns the command to use, or None to fork. What it raises is why
            that process could not be started, as if the host had failed to.

    Example:
        >>> from roost.actor import this_host
        >>> from roost.testing import patch_launcher
        >>> def no_memory(name, point, command):
        ...     raise MemoryError("the host is full")
        >>> with patch_launcher(no_memory):
        ...     procs = this_host().spawn_procs({"gpus": 1})
        >>> try:
        ...     procs.initialized.get()
        ... except Exception as error:
        ...     print(error)  # doctest: +ELLIPSIS
        rank 0 of ... could not be started: MemoryError: the host is full
    """
    _host_mesh.launchers.append(launch)
    try:
        yield
    finally:
        _host_mesh.launchers.remove(launch)
