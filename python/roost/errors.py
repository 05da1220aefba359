"""The exceptions of roost.

    RuntimeError
    ├── SupervisionError        what an endpoint belongs to has failed or stopped
    │   └── ActorStoppedError   it was stopped on purpose
    ├── DeadlockError           a wait that could never end
    ├── SpawnError              processes or actors could not be started
    └── UndeliverableError      a port's receiver is gone
    Exception
    └── ActorError              an endpoint raised; also an instance of the type it raised
    TypeError
    └── SerializationError      an object cannot travel

Every error names what failed, where, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost.actor._failure import MeshFailure

__all__ = [
    "ActorError",
    "ActorStoppedError",
    "DeadlockError",
    "RemoteException",
    "SerializationError",
    "SpawnError",
    "SupervisionError",
    "UndeliverableError",
]


class SupervisionError(RuntimeError):
    """The actor, process or host behind an endpoint has failed or stopped.

    Attributes:
        endpoint: name of the endpoint that was called, if one was.
        failure: what happened, where that is known.
    """

    def __init__(
        self, message: str = "", *, endpoint: str | None = None, failure: MeshFailure | None = None
    ) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.failure = failure


class ActorStoppedError(SupervisionError):
    """The actor was stopped on purpose; the message says by whom and why."""


class DeadlockError(RuntimeError):
    """A wait that could never end; the message names the cycle."""


class SpawnError(RuntimeError):
    """Processes or actors could not be started."""


class UndeliverableError(RuntimeError):
    """A message was sent to a port whose receiver is gone."""


class SerializationError(TypeError):
    """An object cannot travel between processes; the message names it."""


class RemoteException(Exception):
    """Stands for an exception that could not be rebuilt here.

    Attributes:
        type_name: qualified name of the exception's type on the worker.
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name


class ActorError(Exception):
    """An endpoint raised an exception.

    The error that a caller gets is also an instance of the type raised, so that ``except ValueError``
    works. When several ranks of a call have failed it is also an ``ExceptionGroup`` of their errors.

    Attributes:
        exception: the exception as raised by the endpoint.
        message: which call failed.
        exception_formatted: the traceback on the worker.
        actor: name of the actor.
        rank: its point in its mesh, as a mapping of dimension to index.
        host: name of its host.
        pid: its process there.
    """

    exception: BaseException
    message: str
    exception_formatted: str
    actor: str
    rank: dict[str, int]
    host: str
    pid: int

    def __init__(self, exception: BaseException, message: str = "") -> None:
        super().__init__(message)
        self._describe(exception, message)

    def _describe(
        self,
        exception: BaseException,
        message: str,
        *,
        formatted: str = "",
        actor: str = "",
        rank: dict[str, int] | None = None,
        host: str = "",
        pid: int = 0,
    ) -> None:
        self.exception = exception
        self.message = message
        self.exception_formatted = formatted
        self.actor = actor
        self.rank = rank or {}
        self.host = host
        self.pid = pid

    def __str__(self) -> str:
        text = self.message or "an endpoint failed"
        if self.exception_formatted:
            return f"{text}\n{self.exception_formatted.rstrip()}"
        return f"{text}\n{type(self.exception).__name__}: {self.exception}"

    def __reduce__(self) -> tuple[Any, ...]:
        described = {name: getattr(self, name) for name in _FIELDS if hasattr(self, name)}
        return _rebuild_actor_error, (pack_exception(self.exception), described)


def pack_exception(error: BaseException) -> Any:
    """Something that pickles and that :func:`unpack_exception` turns back into ``error``.

    The usual way calls the constructor with ``args``, which fails for each exception whose constructor
    takes something else; this one does not call it.
    """
    plain = type(error).__reduce__ in (BaseException.__reduce__, OSError.__reduce__)
    if plain and type(error).__module__ != "builtins":
        cause = None if error.__cause__ is None else pack_exception(error.__cause__)
        return _Packed, type(error), error.args, dict(error.__dict__), cause
    return error


class _Packed:
    """Marks the tuples of :func:`pack_exception`."""


def unpack_exception(packed: Any) -> BaseException:
    """The exception that :func:`pack_exception` has packed."""
    if not (isinstance(packed, tuple) and packed and packed[0] is _Packed):
        error: BaseException = packed
        return error
    _, kind, args, state, cause = packed
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    if cause is not None:
        error.__cause__ = unpack_exception(cause)
    return error


_BESIDE_ARGS = ("filename", "filename2", "name", "path", "value")
"""What exceptions of Python's own keep beside their arguments."""

_FIELDS = ("message", "exception_formatted", "actor", "rank", "host", "pid")
_classes: dict[type[BaseException], type[ActorError]] = {}


def _class_for(raised: type[BaseException]) -> type[ActorError]:
    """A type that is both an ActorError and ``raised``; ActorError alone where that cannot be."""
    if issubclass(raised, ActorError):
        return raised
    known = _classes.get(raised)
    if known is None:
        try:
            body = {"__module__": raised.__module__, "__doc__": raised.__doc__, "message": ""}
            known = type(raised.__name__, (ActorError, raised), body)
            known.__qualname__ = f"ActorError[{raised.__qualname__}]"
        except TypeError:
            known = ActorError
        _classes[raised] = known
    return known


def actor_error(exception: BaseException, **described: Any) -> ActorError:
    """The error that a caller sees for ``exception``, which an endpoint raised."""
    kind = _class_for(type(exception)) if isinstance(exception, Exception) else ActorError
    try:
        error = kind.__new__(kind, *exception.args)
        error.args = exception.args
        if type(exception).__module__ == "builtins":
            type(exception).__init__(error, *exception.args)
    except Exception:
        error = ActorError.__new__(ActorError)
    attributes = getattr(exception, "__dict__", None)
    if attributes:
        error.__dict__.update(attributes)
    for name in _BESIDE_ARGS:
        if getattr(exception, name, None) is not None and getattr(error, name, None) is None:
            setattr(error, name, getattr(exception, name))
    error._describe(exception, described.pop("message", ""), **described)
    return error


def _rebuild_actor_error(packed: Any, described: dict[str, Any]) -> ActorError:
    exception = unpack_exception(packed)
    described = dict(described)
    described["formatted"] = described.pop("exception_formatted", "")
    return actor_error(exception, **described)


class _GroupBase(ActorError, ExceptionGroup[Exception]):
    message = ""  # the group's own is read-only

    def __new__(cls, message: str, errors: Sequence[Exception]) -> _GroupBase:
        return ExceptionGroup.__new__(cls, message, errors)

    def __init__(self, message: str, errors: Sequence[Exception]) -> None:
        first = errors[0]
        self._describe(
            getattr(first, "exception", first),
            message,
            **{
                "formatted" if name == "exception_formatted" else name: getattr(first, name)
                for name in _FIELDS[1:]
                if hasattr(first, name)
            },
        )

    def derive(self, errors: Sequence[Exception]) -> _GroupBase:  # type: ignore[override]
        return _GroupBase(self.message, errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return actor_error_group, (self.message, list(self.exceptions))

    def __str__(self) -> str:
        lines = [self.message]
        lines += [f"{getattr(one, 'rank', '')} {one}" for one in self.exceptions]
        return "\n".join(lines)


_groups: dict[type[BaseException], type[_GroupBase]] = {}


def actor_error_group(message: str, errors: list[Exception]) -> ActorError:
    """One error for several ranks: an ActorError, an ExceptionGroup, and the type all of them raised."""
    causes: list[BaseException] = [getattr(error, "exception", error) for error in errors]
    raised = {type(cause) for cause in causes}
    kind: type[_GroupBase] = _GroupBase
    if len(raised) == 1:
        only = raised.pop()
        if only not in _groups:
            try:
                _groups[only] = type(
                    only.__name__, (_GroupBase, only), {"__module__": __name__, "message": ""}
                )
            except TypeError:
                _groups[only] = _GroupBase
        kind = _groups[only]
    try:
        return kind(message, errors)
    except TypeError:
        return _GroupBase(message, errors)
