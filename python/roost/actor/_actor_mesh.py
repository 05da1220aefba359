"""Meshes of actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from roost._shape import MeshTrait
from roost.actor._actor import endpoints_of
from roost.actor._endpoint import Endpoint
from roost.actor._future import Future

if TYPE_CHECKING:
    from roost._shape import Extent, Region
    from roost.actor._actor import Actor
    from roost.actor._proc_mesh import ProcMesh

A = TypeVar("A", bound="Actor")


class PlainMethod:
    """A method of a spawned actor that is not an endpoint; for :func:`as_endpoint`."""

    def __init__(self, mesh: ActorMesh[Any], name: str) -> None:
        self.mesh, self.name = mesh, name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(
            f"{self.mesh._name}.{self.name} is a plain method of the actor, not an endpoint; decorate it "
            f"with @endpoint, or use as_endpoint(mesh.{self.name}).call(...)"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("call", "call_one", "choose", "stream", "broadcast", "rref", "options"):
            self()
        raise AttributeError(name)


class ActorMesh(MeshTrait, Generic[A]):
    """Actors of one class, one on each process of a mesh. Endpoints are its attributes.

    A handle is a reference: it can be sliced, kept, sent to other actors and used there. The mesh itself
    belongs to whoever spawned it, and ends with that.
    """

    def __init__(
        self, name: str, cls: type, box: int, proc_mesh: ProcMesh, region: Region, *, owned: Any = None
    ) -> None:
        fields = self.__dict__
        fields["_name"] = name
        fields["_class"] = cls
        fields["_box"] = box
        fields["_procs"] = proc_mesh
        fields["_region"] = region
        fields["_owned"] = owned

    def _with_region(self, region: Region) -> ActorMesh[A]:
        return ActorMesh(self._name, self._class, self._box, self._procs, region)

    @property
    def extent(self) -> Extent:
        """Dimensions and sizes."""
        extent = self.__dict__.get("_extent")
        if extent is None:
            extent = self.__dict__["_extent"] = self._region.extent
        return extent

    @property
    def _node(self) -> Any:
        node = self.__dict__.get("_node_")
        if node is None:
            from roost.actor._runtime import runtime

            node = self.__dict__["_node_"] = runtime().node
        return node

    @property
    def _target(self) -> Any:
        target = self.__dict__.get("_target_")
        if target is None:
            addresses = [(self._procs._uid, rank) for rank in self._region.ranks()]
            target = self.__dict__["_target_"] = self._node.target(self._box, addresses)
        return target

    def _rank_target(self, rank: int) -> Any:
        targets = self.__dict__.setdefault("_rank_targets", {})
        if rank not in targets:
            base = self._region.ranks()[rank]
            targets[rank] = self._node.target(self._box, [(self._procs._uid, base)])
        return targets[rank]

    def _pick(self) -> tuple[Any, int]:
        """Of two ranks picked at random the one with fewer calls under way, and its target.

        Two choices do nearly as well as looking at all (Mitzenmacher, "The Power of Two Choices", 2001).
        Ranks that are known to have failed are left out while there are others: their answers come at once,
        so that they would always be the least busy ones.
        """
        import random

        failed = self.__dict__.get("_failed")
        able = [rank for rank in range(len(self)) if rank not in failed] if failed else None
        among = able or range(len(self))
        ranks = random.sample(among, min(2, len(among)))
        rank = min(ranks, key=lambda rank: self._rank_target(rank).in_flight)
        return self._rank_target(rank), rank

    def _note_failed(self, rank: int) -> None:
        """One of this mesh's ranks has answered that it has failed."""
        self.__dict__.setdefault("_failed", set()).add(rank)

    def _before_send(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """For tensors: makes the arguments ready to be sent to this mesh."""

    def _endpoint(self, name: str, explicit: bool | None = None) -> Endpoint[Any, Any]:
        declared = endpoints_of(self._class).get(name)
        if declared is None:
            declared = getattr(self._class, name, None)
            if declared is None:
                raise AttributeError(self._no_such(name))
        port = getattr(declared, "explicit_response_port", False) if explicit is None else explicit
        return Endpoint(self, name, declared, explicit_response_port=bool(port))

    def endpoint(self, name: str) -> Endpoint[Any, Any]:
        """The endpoint of this name, also when the mesh has something of the same name itself.

        Raises:
            AttributeError: the class has no such endpoint.
        """
        return self._endpoint(name)

    def _no_such(self, name: str) -> str:
        known = ", ".join(sorted(endpoints_of(self._class))) or "none"
        return f"{self._class.__qualname__} has no endpoint {name!r}; its endpoints are: {known}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name.endswith("_") and len(name) > 4:
            raise AttributeError(name)
        if "_class" not in self.__dict__:
            raise AttributeError(name)
        if name in endpoints_of(self._class):
            made = self._endpoint(name)
            self.__dict__[name] = made
            return made
        found = getattr(self._class, name, None)
        if callable(found) and not name.startswith("__"):
            return PlainMethod(self, name)
        raise AttributeError(self._no_such(name))

    @property
    def initialized(self) -> Future[None]:
        """Done when each actor's ``__init__`` has returned; raises what one of them raised."""
        if self._owned is None:
            return Future._done()
        return self._owned.initialized()  # type: ignore[no-any-return]

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Ends the actors when they have handled what was sent before. Stopping twice is fine.

        Raises:
            NotImplementedError: this handle is a slice or was received; only the owner's mesh stops.
        """
        if self._owned is None:
            raise NotImplementedError(
                "stop() requires an owned ActorMesh: this one is a slice, or was received from its owner"
            )
        return self._owned.stop(reason)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<ActorMesh {self._name} of {self._class.__qualname__} {self.extent!r}>"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ActorMesh)
            and self._box == other._box
            and self._region == other._region
            and self._procs._uid == other._procs._uid
        )

    def __hash__(self) -> int:
        return hash((self._box, self._region))

    def __reduce__(self) -> Any:
        return _rebuild, (self._name, self._class, self._box, self._procs, self._region)


def _rebuild(name: str, cls: type, box: int, procs: ProcMesh, region: Region) -> ActorMesh[Any]:
    return ActorMesh(name, cls, box, procs, region)
