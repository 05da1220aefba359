"""Singleton actors, by name, in the program's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roost.actor._context import _current
from roost.actor._future import Future
from roost.actor._owned import SYSTEM_BOX, ControlSource
from roost.actor._reports import dump_report, load_report
from roost.actor._runtime import OK, RAISED, runtime
from roost.actor._serialize import dump, load

if TYPE_CHECKING:
    from roost.actor._runtime import Runtime


def get_or_spawn_controller(name: str, Class: type, *args: Any, **kwargs: Any) -> Future[Any]:
    """A singleton actor on the client's host: the same for everyone who asks for this name.

    Args:
        name: its name.
        Class: its class; used, with the arguments, by the first who asks.

    Returns:
        A future of its mesh of one.
    """
    here = runtime()
    body, buffers = dump((name, Class, args, kwargs))
    call = here.node.call(here.node.target(SYSTEM_BOX, [here.root]), b"controller", body, buffers)

    def convert(answers: list[Any]) -> Any:
        _, status, answer, parts = answers[0]
        if status == RAISED:
            raise load_report(answer, parts, None, 0)
        return load(answer, parts)

    return Future._of(ControlSource(call, 1, convert))


def serve_controller(here: Runtime, message: Any) -> None:
    """Answers a request for a controller, in the program's process."""
    _, _, body, buffers, request, _ = message
    try:
        name, cls, args, kwargs = load(body, buffers)
        request.reply(OK, *dump(_find(here, name, cls, args, kwargs)))
    except BaseException as error:
        request.reply(RAISED, *dump_report(error, "controller", {}))


def _find(here: Runtime, name: str, cls: type, args: Any, kwargs: Any) -> Any:
    """The one actor of this name, made on first use."""
    from roost.actor._proc_mesh import this_proc

    with here.lock:
        mesh = here.controllers.get(name)
        if mesh is None:
            token = _current.set(here.client_context)
            try:
                mesh = here.controllers[name] = this_proc().spawn(name, cls, *args, **kwargs)
            finally:
                _current.reset(token)
        failed = here.actors_owned[mesh._box].failed
    if failed:
        raise ValueError(f"Failure on the controller {name!r}: it has failed")
    return mesh
