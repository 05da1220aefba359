"""Exceptions on their way from a worker to a caller."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from roost.actor._serialize import dump, load
from roost.errors import RemoteException, SupervisionError, actor_error, pack_exception, unpack_exception

if TYPE_CHECKING:
    from roost.actor._endpoint import Endpoint

_HERE = os.path.dirname(os.path.abspath(__file__))


def host_name() -> str:
    """This host's name, as errors show it."""
    return socket.gethostname() if "ROOST_HOST_NAME" not in os.environ else os.environ["ROOST_HOST_NAME"]


def format_exception(error: BaseException) -> str:
    """The traceback as text, without the frames of roost that called the user's code."""
    import traceback

    found = traceback.TracebackException.from_exception(error)
    waiting = [found]
    while waiting:
        one = waiting.pop()
        while len(one.stack) > 1 and one.stack[0].filename.startswith(_HERE):
            del one.stack[0]
        waiting += [other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other]
    return "".join(found.format())


def dump_report(error: BaseException, actor: str, rank: dict[str, int]) -> tuple[bytes, Any]:
    """Everything that a caller wants to know of an exception, whatever the exception is made of."""
    formatted = format_exception(error)
    described = {
        "formatted": formatted,
        "actor": actor,
        "rank": rank,
        "host": host_name(),
        "pid": os.getpid(),
    }
    kind = type(error)
    names = (f"{kind.__module__}.{kind.__qualname__}", _text(error))
    try:
        packed: Any = dump(pack_exception(error))
    except Exception:
        packed = None
    body, buffers = dump((names, described, None if packed is None else packed[0]))
    return body, (packed[1] if packed else None) or buffers


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<the exception's own __str__ failed>"


def rebuild(body: Any, buffers: Any) -> tuple[BaseException, dict[str, Any]]:
    """The exception behind a report, or a stand-in that names its type, and what is known of it."""
    names, described, packed = load(body, None)
    error: BaseException
    try:
        if packed is None:
            raise ValueError
        error = unpack_exception(load(packed, buffers))
        if not isinstance(error, BaseException):
            raise TypeError
    except Exception:
        error = RemoteException(*names)
    return error, described


def load_report(body: Any, buffers: Any, endpoint: Endpoint[Any, Any] | None, rank: int) -> Exception:
    """The error that a caller gets for an exception of an endpoint."""
    error, described = rebuild(body, buffers)
    if isinstance(error, SupervisionError) and described["formatted"] == "":
        return error
    name = described["actor"] if endpoint is None else endpoint._full_name
    where = ", ".join(f"{dim}={index}" for dim, index in described["rank"].items())
    where = f"{where}, " if where else ""
    message = f"Actor call {name} failed. ({where}host {described['host']}, process {described['pid']})"
    return actor_error(error, message=message, **described)


def show_banner(text: str) -> None:
    """Writes a report where the program's errors go."""
    try:
        sys.stderr.write(text if text.endswith("\n") else text + "\n")
        sys.stderr.flush()
    except Exception:
        return
