"""The base class of actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roost.actor._endpoint import EndpointProperty, is_async

if TYPE_CHECKING:
    import logging


if TYPE_CHECKING:
    # What `spawn` returns is typed as the actor's class, and is a mesh.
    from roost._shape import MeshTrait as _Mesh
else:
    _Mesh = object

_MESH_NAMES = frozenset(
    {"endpoint", "extent", "flatten", "initialized", "rename", "size", "sizes", "slice", "split", "stop"}
    | {"to_table"}
    | {
        f"_{name}"
        for name in ("class", "box", "endpoint", "name", "node", "owned", "pick", "procs", "region")
    }
    | {f"_{name}" for name in ("before_send", "extent", "no_such", "rank_target", "target", "with_region")}
)
"""What every mesh has itself, or keeps for itself."""


class Actor(_Mesh):
    """Subclass it, and declare its interface with ``@endpoint``.

    An actor lives in one process and handles one message at a time, to the end, in order of arrival.
    ``__init__`` runs there with the arguments of ``spawn``. These methods are called if a class has them:

    ``__supervise__(self, failure)``
        A mesh that this actor owns has failed. Return true when that is handled; otherwise this actor
        fails too.
    ``__cleanup__(self, exc)``
        The actor ends; ``exc`` is None on a normal stop. The meshes that it owned have ended before.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in endpoints_of(cls).items():
            if name in _MESH_NAMES and not value.shadowed:
                raise ValueError(
                    f"the endpoint {cls.__qualname__}.{name} has the name of something that every mesh has; "
                    f"rename it, or declare it @endpoint(shadowed=True) and call it as "
                    f"mesh.endpoint({name!r}).call(...)"
                )

    @property
    def logger(self) -> logging.Logger:
        """A logger named after the class; its lines reach the controller."""
        import logging

        logger = logging.getLogger(type(self).__name__)
        logger.setLevel(logging.DEBUG)
        return logger

    @property
    def initialized(self) -> Any:
        raise NotImplementedError("an actor has no `initialized`; the mesh that spawn() returns has it")

    def stop(self, reason: str = "the actor stopped itself") -> Any:
        """Ends this actor when it has finished the message that it handles."""
        from roost.actor._context import context

        context().actor_instance.stop(reason)


substitutes: dict[type, type] = {}
"""Classes that are spawned in the place of others, in this process and those that it spawns actors in."""


def substitute(cls: Any) -> Any:
    """The class to spawn for ``cls``."""
    return substitutes.get(cls, cls) if substitutes else cls


def endpoints_of(cls: type) -> dict[str, EndpointProperty[Any, Any]]:
    """All endpoints of a class, its own and inherited ones, by name."""
    found: dict[str, EndpointProperty[Any, Any]] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, EndpointProperty):
                found[name] = value
            elif name in found:
                del found[name]
    return found


def check_class(cls: Any) -> bool:
    """Whether the endpoints of a class are async.

    Raises:
        ValueError: it is not an actor class, or mixes sync and async endpoints.
        TypeError: it is abstract.
    """
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise ValueError(f"only subclasses of roost.actor.Actor can be spawned, not {cls!r}")
    missing = getattr(cls, "__abstractmethods__", None)
    if missing:
        raise TypeError(f"{cls.__qualname__} is abstract: it lacks {', '.join(sorted(missing))}")
    endpoints = endpoints_of(cls)
    asynchronous = sorted(name for name, value in endpoints.items() if value.is_async)
    synchronous = sorted(name for name in endpoints if name not in asynchronous)
    if asynchronous and synchronous:
        raise ValueError(
            f"the endpoints of {cls.__qualname__} have to be all def or all async def: "
            f"{', '.join(asynchronous)} are async def, {', '.join(synchronous)} are not"
        )
    is_loop = bool(asynchronous)
    for name in ("__cleanup__", "__supervise__"):
        method = getattr(cls, name, None)
        if method is not None and endpoints and not is_loop and is_async(method):
            raise ValueError(
                f"{cls.__qualname__}.{name} is async def, but the endpoints are not; make it def"
            )
        if name == "__cleanup__" and method is not None and is_loop and not is_async(method):
            raise ValueError(
                f"{cls.__qualname__}.{name} is def, but the endpoints are async def; make it async def"
            )
    if not endpoints:
        is_loop = any(is_async(getattr(cls, name, None)) for name in ("__cleanup__", "__supervise__"))
    return is_loop


def supervise_of(instance: Any) -> Any:
    """The actor's ``__supervise__``, if its class has one."""
    return getattr(instance, "__supervise__", None)
