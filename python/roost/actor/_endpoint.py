"""Endpoints: how a method is declared as one, and how it is called on a mesh."""

from __future__ import annotations

import pickle
from types import FunctionType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

from roost.actor._future import Future, check_timeout
from roost.actor._serialize import dump_args

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import EllipsisType

    from roost.actor._actor_mesh import ActorMesh
    from roost.actor._channel import Port
    from roost.actor._stream import ValueStream
    from roost.actor._value_mesh import ValueMesh

P = ParamSpec("P")
R = TypeVar("R")

_CO_VARARGS, _CO_VARKEYWORDS = 0x04, 0x08


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine."""
    function = getattr(function, "__func__", function)
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    code = getattr(function, "__code__", None)
    return bool(code is not None and code.co_flags & 0x80) or bool(
        getattr(function, "_is_coroutine_marker", None)
    )


class _Declare(Protocol):
    """What ``@endpoint(...)`` with options is: it takes the method."""

    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> EndpointProperty[P, R]: ...
    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> EndpointProperty[P, R]: ...


class EndpointProperty(Generic[P, R]):
    """What ``@endpoint`` makes of a method. On an actor it is the method itself."""

    def __init__(
        self,
        method: Callable[..., Any],
        *,
        propagate: Any = None,
        explicit_response_port: bool = False,
        instrument: bool = True,
        concurrent: bool = False,
        shadowed: bool = False,
        idempotent: bool = False,
    ) -> None:
        if isinstance(method, EndpointProperty):
            raise ValueError("endpoint and concurrent_endpoint cannot be stacked: use one of them")
        if not callable(method):
            raise TypeError(f"@endpoint goes on a method, not on {method!r}")
        self._method = method
        self.propagate = propagate
        self.explicit_response_port = explicit_response_port
        self.instrument = instrument
        self.concurrent = concurrent
        self.shadowed = shadowed
        self.idempotent = idempotent
        self.name = getattr(method, "__name__", "endpoint")
        self.__doc__ = getattr(method, "__doc__", None)
        self.__name__ = self.name
        self.__wrapped__ = method
        self.__isabstractmethod__ = getattr(method, "__isabstractmethod__", False)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Endpoint[P, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # For type checkers an actor mesh is an instance of the actor's class, whose endpoints have adverbs.
        if instance is None:
            return self
        return MethodType(self._method, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self.name!r} is an endpoint of an actor class; spawn the class on a mesh and use "
            f"mesh.{self.name}.call(...)"
        )

    @property
    def is_async(self) -> bool:
        return is_async(self._method)


@overload
def endpoint(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> EndpointProperty[P, R]: ...
@overload
def endpoint(method: Callable[Concatenate[Any, P], R], /) -> EndpointProperty[P, R]: ...
@overload
def endpoint(
    *,
    propagate: Any = None,
    explicit_response_port: Literal[True],
    instrument: bool = True,
    shadowed: bool = False,
    idempotent: bool = False,
) -> Callable[[Callable[Concatenate[Any, Port[R], P], Any]], EndpointProperty[P, R]]: ...
@overload
def endpoint(
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
    shadowed: bool = False,
    idempotent: bool = False,
) -> _Declare: ...
def endpoint(method: Any = None, /, **options: Any) -> Any:
    """Declares a method of an :class:`Actor` that can be called on a mesh of such actors.

    Args:
        propagate: how results are described to the tensor engine: a function, or ``"cached"``,
            ``"inspect"``, ``"mocked"``.
        explicit_response_port: the method gets a :class:`Port` as its first argument and answers through
            it when it likes; an exception that escapes it has no caller and kills the actor.
        instrument: record a span for each call.
        shadowed: accept a name that the mesh has itself; call it with ``mesh.endpoint("name")``.
        idempotent: a call may be repeated after a failure.
    """
    if method is None:
        return lambda function: EndpointProperty(function, **options)
    return EndpointProperty(method, **options)


@overload
def concurrent_endpoint(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
) -> EndpointProperty[P, R]: ...
@overload
def concurrent_endpoint(
    *,
    propagate: Any = None,
    explicit_response_port: Literal[True],
    instrument: bool = True,
    shadowed: bool = False,
    idempotent: bool = False,
) -> Callable[[Callable[Concatenate[Any, Port[R], P], Any]], EndpointProperty[P, R]]: ...
@overload
def concurrent_endpoint(
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
    shadowed: bool = False,
    idempotent: bool = False,
) -> _Declare: ...
def concurrent_endpoint(method: Any = None, /, **options: Any) -> Any:
    """Declares an async endpoint whose calls overlap: they start in order, and each runs as a task.

    Takes the same options as `endpoint`.

    Raises:
        ValueError: the method is not ``async def``.
    """
    if method is None:
        return lambda function: _concurrent(function, options)
    return _concurrent(method, options)


def _concurrent(method: Any, options: dict[str, Any]) -> EndpointProperty[Any, Any]:
    made: EndpointProperty[Any, Any] = EndpointProperty(method, concurrent=True, **options)
    if not made.is_async:
        raise ValueError(f"concurrent_endpoint {made.name!r} has to be async def")
    return made


class Endpoint(Generic[P, R]):
    """One endpoint on one mesh of actors. Its adverbs send; it is not called itself."""

    def __init__(
        self,
        mesh: ActorMesh[Any],
        name: str,
        declared: Any,
        *,
        explicit_response_port: bool,
        timeout: float | None = None,
        retries: int = 0,
        partial: bool = False,
    ) -> None:
        self._mesh = mesh
        self._name = name
        self._declared = declared
        self._explicit = explicit_response_port
        self._timeout = timeout
        self._retries = retries
        self._partial = partial
        self._meta_bytes: bytes | None = None
        function = declared._method if isinstance(declared, EndpointProperty) else declared
        bound = isinstance(function, MethodType)
        function = function.__func__ if isinstance(function, MethodType) else function
        self._function = function
        self._leading = int(explicit_response_port) + (bound or not _is_static(mesh._class, name))
        self._arity = _arity(function, self._leading)
        self.__doc__ = getattr(function, "__doc__", None)

    @property
    def _is_concurrent(self) -> bool:
        return isinstance(self._declared, EndpointProperty) and self._declared.concurrent

    @property
    def _full_name(self) -> str:
        return f"{self._mesh._name}.{self._name}"

    def _meta(self, port: Any = None) -> bytes:
        if port is None and self._meta_bytes is not None:
            return self._meta_bytes
        extent = self._mesh.extent
        meta = pickle.dumps((self._name, list(extent.labels), list(extent.sizes), self._explicit, port), 5)
        if port is None:
            self._meta_bytes = meta
        return meta

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Binds the arguments to the signature, before anything is sent."""
        if not kwargs and self._arity is not None and self._arity[0] <= len(args) <= self._arity[1]:
            return
        import inspect

        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*[None] * self._leading, *args, **kwargs)
        except TypeError as error:
            shown = f"{self._name}{signature}"
            raise TypeError(f"{self._full_name}: {error}; the endpoint is {shown}") from None

    def _pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check(args, kwargs)
        if kwargs or args:
            self._mesh._before_send(args, kwargs)
        return dump_args(args, kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Calls all actors of the mesh. The result has one value a rank.

        Raises:
            TypeError: the arguments do not fit the signature, or cannot be sent.
        """
        from roost.actor._calls import call_all

        return call_all(self, self._pack(args, kwargs))

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Calls the one actor of a mesh of one.

        Raises:
            ValueError: the mesh has another number of actors.
            TypeError: the arguments do not fit the signature, or cannot be sent.
        """
        from roost.actor._calls import call_single

        mesh = self._mesh
        if len(mesh) != 1:
            raise ValueError(
                f"call_one requires exactly 1 actor, but mesh has {len(mesh)} ({self._full_name} on "
                f"{mesh.sizes}); slice the mesh down to one, or use call, choose or stream"
            )
        return call_single(self, lambda: (mesh._target, 0), self._pack(args, kwargs))

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Calls one actor of the mesh: of two picked at random, the one with fewer calls under way."""
        from roost.actor._calls import call_single

        mesh = self._mesh
        return call_single(self, mesh._pick, self._pack(args, kwargs))

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> ValueStream[R]:
        """Calls all actors; iterate (or ``async for``) over futures in the order of completion.

        Each future knows its ``rank`` (a point) once it is done.
        """
        from roost.actor._stream import stream_all

        return stream_all(self, self._pack(args, kwargs))

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Sends to all actors and asks for no answer.

        An exception in the endpoint has no caller: it kills that actor and goes to its owner.
        """
        body, buffers = self._pack(args, kwargs)
        mesh = self._mesh
        mesh._node.cast(mesh._target, self._meta(), body, buffers)

    def rref(self, *args: Any, **kwargs: Any) -> Any:
        """Calls all actors and returns their results as distributed tensors.

        Raises:
            NotImplementedError: the tensor engine is not part of this release.
        """
        raise NotImplementedError("rref needs the tensor engine, which this release does not have")

    def options(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        retries: int | EllipsisType = ...,
        partial: bool | EllipsisType = ...,
    ) -> Endpoint[P, R]:
        """The same endpoint with options for its calls; those that are left out stay as they are.

        Args:
            timeout: seconds until a call without an answer raises TimeoutError; what still queues then is
                not begun.
            retries: how often an idempotent endpoint is called again after its actor's process failed.
            partial: a ValueMesh holds the exception of each failed rank in its place.

        Raises:
            ValueError: a timeout that is negative or not finite, a negative number of retries, or retries of
                an endpoint that is not idempotent.
            TypeError: a timeout that is no number.
        """
        timeout = self._timeout if timeout is ... else check_timeout(timeout)
        retries = self._retries if retries is ... else retries
        partial = self._partial if partial is ... else partial
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ValueError(f"retries is a number of 0 or more, not {retries!r}")
        if retries and not getattr(self._declared, "idempotent", False):
            raise ValueError(
                f"{self._full_name} is not declared @endpoint(idempotent=True), so it is not retried"
            )
        return Endpoint(
            self._mesh,
            self._name,
            self._declared,
            explicit_response_port=self._explicit,
            timeout=timeout,
            retries=retries,
            partial=partial,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"the endpoint {self._full_name} is not called like a function: use .call(...) for all ranks, "
            ".call_one(...) for a mesh of one, or .choose, .stream, .broadcast"
        )

    def __repr__(self) -> str:
        return f"<Endpoint {self._full_name}>"

    def __reduce__(self) -> Any:
        options = {"timeout": self._timeout, "retries": self._retries, "partial": self._partial}
        return _get_endpoint, (self._mesh, self._name, self._explicit, options)


def _get_endpoint(
    mesh: ActorMesh[Any], name: str, explicit: bool, options: dict[str, Any]
) -> Endpoint[Any, Any]:
    return mesh._endpoint(name, explicit).options(**options)


def _is_static(cls: type, name: str) -> bool:
    return any(isinstance(vars(base)[name], staticmethod) for base in cls.__mro__ if name in vars(base))


def _arity(function: Any, leading: int) -> tuple[int, int] | None:
    """Fewest and most positional arguments; None when the signature needs a closer look."""
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        return None
    code = function.__code__
    if code.co_kwonlyargcount and len(function.__kwdefaults__ or ()) < code.co_kwonlyargcount:
        return None
    optional = len(function.__defaults__ or ())
    least = code.co_argcount - optional - leading
    most = 1 << 30 if code.co_flags & _CO_VARARGS else code.co_argcount - leading
    return least, most


def as_endpoint(
    method: Any, *, propagate: Any = None, explicit_response_port: bool = False
) -> Endpoint[Any, Any]:
    """Calls a plain method of a spawned actor as an endpoint: ``as_endpoint(mesh.method).call(...)``.

    Raises:
        ValueError: ``method`` is not a method of a spawned mesh.
    """
    from roost.actor._actor_mesh import PlainMethod

    if isinstance(method, Endpoint):
        return method
    if not isinstance(method, PlainMethod):
        raise ValueError("expected an method of a spawned actor, such as mesh.method")
    return method.mesh._endpoint(method.name, explicit_response_port)


def send(
    endpoint: Endpoint[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None = None,
    selection: str | int = "all",
) -> None:
    """Sends a message to an endpoint; each answer goes to ``port``.

    Args:
        endpoint: which method, on which mesh.
        args: positional arguments.
        kwargs: keyword arguments.
        port: where answers go; without one nobody answers.
        selection: ``"all"``, ``"choose"`` for one rank, or a rank.

    Raises:
        ValueError: another selection.
    """
    mesh = endpoint._mesh
    if selection == "all":
        target, rank = mesh._target, None
    elif selection == "choose":
        target, rank = mesh._pick()
    elif isinstance(selection, int) and not isinstance(selection, bool):
        if not 0 <= selection < len(mesh):
            raise ValueError(f"rank {selection} is not in a mesh of {len(mesh)}")
        target, rank = mesh._rank_target(selection), selection
    else:
        raise ValueError(f'selection is "all", "choose" or a rank, not {selection!r}')
    body, buffers = endpoint._pack(args, kwargs)
    arg = 0 if rank is None else rank + 1
    if port is None:
        mesh._node.cast(target, endpoint._meta(), body, buffers, arg=arg)
        return
    # A call, so that the port hears of those who will never answer.
    call = mesh._node.call(target, endpoint._meta(port._address), body, buffers, arg=arg)
    from roost.actor._calls import tell_of_failures

    tell_of_failures(endpoint, call, len(target), rank or 0, port)
