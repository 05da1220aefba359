"""The exceptions of roost.

    RuntimeError
    ├── SupervisionError        what an endpoint belongs to has failed or stopped
    │   └── ActorStoppedError   it was stopped on purpose
    ├── DeadlockError           a wait that could never end
    ├── SpawnError              processes or actors could not be started
    ├── NotOnControllerError    the values of a distributed tensor were asked for without a fetch
    └── UndeliverableError      a port's receiver is gone
    ValueError
    └── MixedTensorsError       an operator got tensors that live in different places
    Exception
    └── ActorError              an endpoint raised; also an instance of the type it raised
    TypeError
    └── SerializationError      an object cannot travel

Every error names what failed, where, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost.actor._failure import MeshFailure

__all__ = [
    "ActorError",
    "ActorStoppedError",
    "DeadlockError",
    "MixedTensorsError",
    "NotOnControllerError",
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
        rank: the point of the rank that it is about, as a mapping of dimension to index.
    """

    rank: dict[str, int]

    def __init__(
        self,
        message: str = "",
        *,
        endpoint: str | None = None,
        failure: MeshFailure | None = None,
        rank: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.failure = failure
        self.rank = rank or {}


class ActorStoppedError(SupervisionError):
    """The actor was stopped on purpose; the message says by whom and why."""


class DeadlockError(RuntimeError):
    """A wait that could never end; the message names the cycle."""


class SpawnError(RuntimeError):
    """Processes or actors could not be started."""


class HostError(SpawnError, ConnectionError):
    """A host cannot be used: it does not listen, does not answer, or is not of this cluster.

    Attributes:
        address: its address.
        kind: ``refused``, ``unreachable``, ``silent``, ``stranger`` (another cluster's key), ``protocol``,
            ``broken`` or ``listen``.
    """

    def __init__(self, address: str, kind: str, why: str) -> None:
        super().__init__(f"{_HOST_ERRORS.get(kind, 'cannot use the host')} at {address}: {why}")
        self.address = address
        self.kind = kind


_HOST_ERRORS = {
    "refused": "nothing listens",
    "unreachable": "there is no way to the host",
    "silent": "the host did not answer",
    "stranger": "no trust between this program and the host",
    "protocol": "no roost of this version runs",
    "broken": "the connection broke with the host",
    "listen": "cannot listen",
}


class NotOnControllerError(RuntimeError):
    """The values of a distributed tensor were asked for where only its shape is known; fetch them."""


class MixedTensorsError(ValueError):
    """An operator got tensors that live in different places; the message says which and what to do.

    Not a TypeError: ``a + b`` turns one into "unsupported operand", and what to do would be lost.
    """


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
        # Past the type's own __setattr__: the exception may be a frozen dataclass.
        self.__dict__.update(
            exception=exception,
            message=message,
            exception_formatted=formatted,
            actor=actor,
            rank=rank or {},
            host=host,
            pid=pid,
        )

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
    kind = type(error)
    if kind.__reduce__ not in (BaseException.__reduce__, OSError.__reduce__):
        return error
    if kind.__module__ == "builtins" and error.__cause__ is None:
        return error
    args = _native_args(error)
    cause = None if error.__cause__ is None else pack_exception(error.__cause__)
    return _Packed, kind, args, {**_slots(error), **error.__dict__}, cause


class _Packed:
    """Marks the tuples of :func:`pack_exception`."""


def unpack_exception(packed: Any) -> BaseException:
    """The exception that :func:`pack_exception` has packed."""
    if not (isinstance(packed, tuple) and packed and packed[0] is _Packed):
        error: BaseException = packed
        return error
    _, kind, args, state, cause = packed
    error = _blank(kind, args)
    _restore(error, state)
    if cause is not None:
        error.__cause__ = unpack_exception(cause)
    return error


def _native_args(error: BaseException) -> tuple[Any, ...]:
    """The arguments of the built-in constructor; OSError keeps the names of files elsewhere."""
    return OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args  # type: ignore[return-value]


def _slots(error: BaseException) -> dict[str, Any]:
    names = (name for base in type(error).__mro__ for name in base.__dict__.get("__slots__", ()))
    return {name: getattr(error, name) for name in names if hasattr(error, name)}


def _blank(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception of a type whose constructor has not run."""
    try:
        error = kind.__new__(kind, *args)
    except Exception:
        # A __new__ of other arguments: that of the built-in type below does not mind.
        native = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        error = native.__new__(kind, *args)
    if isinstance(error, OSError):
        OSError.__init__(error, *args)
    else:
        BaseException.args.__set__(error, args)  # type: ignore[attr-defined]
    return error


def _restore(error: BaseException, state: dict[str, Any]) -> None:
    for name, value in state.items():
        slot = getattr(type(error), name, None)
        if type(slot).__name__ == "member_descriptor":
            slot.__set__(error, value)  # type: ignore[union-attr]
        else:
            error.__dict__[name] = value


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
            # Our fields go before properties of the same names.
            body = {"__module__": raised.__module__, "__doc__": raised.__doc__}
            body |= dict.fromkeys(("exception", *_FIELDS))
            known = type(raised.__name__, (ActorError, raised), body)
            known.__qualname__ = f"ActorError[{raised.__qualname__}]"
        except TypeError:
            known = ActorError
        _classes[raised] = known
    return known


def actor_error(exception: BaseException, **described: Any) -> ActorError:
    """The error that a caller sees for ``exception``, which an endpoint raised."""
    kind = _class_for(type(exception)) if isinstance(exception, Exception) else ActorError
    native = _native_args(exception)
    try:
        error = cast("ActorError", _blank(kind, native))
        if type(exception).__module__ == "builtins":
            type(exception).__init__(error, *native)
    except Exception:
        error = ActorError.__new__(ActorError)
    _restore(error, {**_slots(exception), **exception.__dict__})
    for name in _BESIDE_ARGS:
        if getattr(exception, name, None) is not None and getattr(error, name, None) is None:
            error.__setattr__(name, getattr(exception, name))
    error.__cause__ = exception.__cause__
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


class _LostRanks(SupervisionError, ExceptionGroup[Exception]):
    """Several ranks of a call failed, and some of them are gone."""

    def __new__(cls, message: str, errors: Sequence[Exception]) -> _LostRanks:
        return ExceptionGroup.__new__(cls, message, errors)

    def __init__(self, message: str, errors: Sequence[Exception]) -> None:
        first = next(error for error in errors if isinstance(error, SupervisionError))
        self.endpoint, self.failure, self.rank = first.endpoint, first.failure, first.rank

    def derive(self, errors: Sequence[Exception]) -> ExceptionGroup[Exception]:  # type: ignore[override]
        lost = any(isinstance(error, SupervisionError) for error in errors)
        return _LostRanks(self.message, errors) if lost else ExceptionGroup(self.message, errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return _LostRanks, (self.message, list(self.exceptions))

    def __str__(self) -> str:
        return "\n".join([self.message, *(str(one) for one in self.exceptions)])


_LostRanks.__name__ = _LostRanks.__qualname__ = "SupervisionError"


def supervision_error_group(message: str, errors: list[Exception]) -> SupervisionError:
    """One error for several ranks, some of them gone: a SupervisionError that is an ExceptionGroup too."""
    return _LostRanks(message, errors)
