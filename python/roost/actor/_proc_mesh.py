"""Meshes of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from roost._shape import MeshTrait, Region, Slice
from roost.actor._actor import check_class, substitute, substitutes
from roost.actor._actor_mesh import ActorMesh
from roost.actor._future import Future
from roost.actor._owned import SYSTEM_BOX, OwnedActors
from roost.actor._serialize import dump

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from roost.actor._host_mesh import HostMesh

A = TypeVar("A")

_CREATES = 2


class ProcMesh(MeshTrait):
    """Processes on the hosts of a mesh. Made by :meth:`HostMesh.spawn_procs`; ends with its owner."""

    def __init__(
        self,
        name: str,
        uid: int,
        region: Region,
        hosts: HostMesh | None,
        *,
        per_host: int = 0,
        owned: Any = None,
    ) -> None:
        self._name = name
        self._uid = uid
        self._region = region
        self._hosts = hosts
        self._per_host = per_host
        self._owned = owned

    def _with_region(self, region: Region) -> ProcMesh:
        return ProcMesh(self._name, self._uid, region, self._hosts, per_host=self._per_host)

    def _learn(self, here: Any) -> None:
        """Tells the engine where these processes live, so that it finds those of other hosts."""
        homes = None if self._hosts is None else self._hosts._homes()
        if homes is None:
            return
        if self._per_host:
            if any(agent != here.agent[0] for agent, _ in homes):
                here.node.learn(self._uid, self._per_host, homes)
        else:  # the process of somebody's `this_proc()`
            for rank in self._region.ranks():
                here.node.learn_proc((self._uid, rank), *homes[0])

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self._name

    def spawn(self, name: str, Class: type[A], *args: Any, **kwargs: Any) -> A:
        """Starts one actor of a class on each process, and returns at once.

        Args:
            name: name of the mesh, for people; it may be used again.
            Class: subclass of :class:`Actor`.
            *args: for its constructor.
            **kwargs: for its constructor.

        Returns:
            The mesh of actors, which has the endpoints of ``Class``.

        Raises:
            ValueError: not an actor class, or one that mixes sync and async endpoints.
            SerializationError: an argument cannot be pickled.
            SupervisionError: the processes were stopped.
        """
        Class = substitute(Class)
        check_class(Class)
        if self._owned is not None:
            self._owned.refuse()
        from roost.actor._runtime import fresh_id, runtime

        here = runtime()
        owner = here.current_owner()
        box = fresh_id() & ~1
        extent = self.extent
        spec = {
            "name": name,
            "class": Class,
            "args": args,
            "kwargs": kwargs,
            "box": box,
            "labels": list(extent.labels),
            "sizes": list(extent.sizes),
            "owner": (*here.me, owner.box),
            "creator": owner.describe(),
            "procs": self._reference(),
            "substitutes": substitutes,
        }
        body, buffers = dump(spec)
        mesh: ActorMesh[Any] = ActorMesh(name, Class, box, self._reference(), self._region)
        system = here.node.target(SYSTEM_BOX, [(self._uid, rank) for rank in self._region.ranks()])
        spawning = here.node.call(system, b"spawn", body, buffers, flags=_CREATES, arg=box)
        owned = OwnedActors(here.node, mesh, owner, spawning)
        mesh.__dict__["_owned"] = owned
        here.own_actors(owned)
        return mesh  # type: ignore[return-value]

    def activate(self) -> AbstractContextManager[ProcMesh]:
        """While this is open, torch operators of this thread run on these processes.

        Tensors that are made in the block have one shard on each process; operators on them run there, also
        after the block. Needs torch.

        Example:
            >>> import torch
            >>> from roost import fetch_shard
            >>> from roost.actor import this_host
            >>> procs = this_host().spawn_procs({"gpus": 2})
            >>> with procs.activate():
            ...     total = torch.ones(2, 2) @ torch.ones(2, 2)
            >>> fetch_shard(total).get().tolist()
            [[2.0, 2.0], [2.0, 2.0]]
        """
        from roost.tensor import activate

        return activate(self)

    def rank_tensor(self, dim: str) -> Any:
        """A distributed tensor that holds, on each process, its index along a dimension.

        Raises:
            UnknownDimensionError: the mesh has no such dimension.
        """
        return self.rank_tensors()[dim] if dim in self.sizes else self.size(dim)

    def rank_tensors(self) -> dict[str, Any]:
        """`rank_tensor` of every dimension."""
        from roost.tensor import rank_tensors

        return rank_tensors(self)

    def _reference(self) -> ProcMesh:
        return self._with_region(self._region)

    @property
    def initialized(self) -> Future[None]:
        """Done when all processes run; raises what the bootstrap raised."""
        if self._owned is None:
            return Future._done()
        return self._owned.initialized()  # type: ignore[no-any-return]

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stops the actors on the processes, then the processes. Quiet, and safe to repeat.

        Raises:
            NotImplementedError: this handle is a slice or was received; only the owner's mesh stops.
        """
        if self._owned is None:
            raise NotImplementedError(
                "stop() requires an owned ProcMesh: this one is a slice, or was received from its owner"
            )
        return self._owned.stop(reason)  # type: ignore[no-any-return]

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts that the processes run on."""
        if self._hosts is None:
            from roost.actor._host_mesh import this_host

            return this_host()
        return self._hosts

    async def logging_option(
        self,
        stream_to_client: bool = True,
        aggregate_window_sec: float | None = None,
        level: int = 20,
    ) -> None:
        """Says how the output of these processes reaches the controller.

        Args:
            stream_to_client: show it there.
            aggregate_window_sec: seconds in which identical lines of several ranks are folded into one;
                None shows each line at once.
            level: least level of ``logging`` records.

        Raises:
            ValueError: a negative window, or a level outside 0 to 255.
            RuntimeError: a window without streaming.
        """
        from roost.actor._logs import set_option

        await set_option(self, stream_to_client, aggregate_window_sec, level)

    async def __aenter__(self) -> ProcMesh:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._owned is not None and self._owned.stopped is None:
            await self.stop()

    def __repr__(self) -> str:
        return f"<ProcMesh {self._name} {self.extent!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcMesh) and (self._uid, self._region) == (other._uid, other._region)

    def __hash__(self) -> int:
        return hash((self._uid, self._region))

    def __reduce__(self) -> Any:
        return _rebuild, (self._name, self._uid, self._region, self._hosts, self._per_host)


def _rebuild(name: str, uid: int, region: Region, hosts: HostMesh | None, per_host: int) -> ProcMesh:
    from roost.actor._runtime import runtime

    mesh = ProcMesh(name, uid, region, hosts, per_host=per_host)
    mesh._learn(runtime())
    return mesh


def register_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], object]) -> None:
    """Calls ``callback`` with each mesh of processes that this process spawns from now on."""
    from roost.actor._runtime import runtime

    runtime().spawn_callbacks.append(callback)


def unregister_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], object]) -> None:
    """Undoes `register_proc_mesh_spawn_callback`.

    Raises:
        ValueError: the callback is not registered.
    """
    from roost.actor._runtime import runtime

    try:
        runtime().spawn_callbacks.remove(callback)
    except ValueError:
        raise ValueError(f"{callback!r} is not registered") from None


def get_active_proc_meshes() -> list[ProcMesh]:
    """The meshes of processes that this process has spawned and not stopped."""
    from roost.actor._runtime import runtime

    return [owned.mesh for owned in runtime().procs_owned.values() if owned.stopped is None]


def this_proc() -> ProcMesh:
    """The calling process, as a mesh of one."""
    from roost.actor._runtime import runtime

    here = runtime()
    uid, rank = here.me
    region = Region([], Slice(offset=rank, sizes=[], strides=[]))
    from roost.actor._host_mesh import this_host

    return ProcMesh(here.proc_name, uid, region, this_host())
