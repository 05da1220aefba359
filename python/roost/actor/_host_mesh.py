"""Meshes of hosts, and the processes that they start."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from roost import config
from roost._shape import Extent, MeshTrait, Region, Slice
from roost.actor._binding import parse_list
from roost.actor._bootstrap import BootstrapCommand
from roost.actor._future import Future
from roost.actor._owned import SYSTEM_BOX, OwnedProcs
from roost.actor._proc_mesh import ProcMesh
from roost.actor._serialize import dump
from roost.errors import SpawnError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from roost._shape import Point
    from roost.actor._attach import Attachment

_BINDINGS = ("cpunodebind", "membind", "physcpubind", "cpus")


class HostMesh(MeshTrait):
    """Hosts, each with an agent that starts processes there."""

    def __init__(
        self,
        agents: list[tuple[int, int]],
        region: Region,
        *,
        python: str | None = None,
        addresses: list[str] | None = None,
        attachment: Attachment | None = None,
    ) -> None:
        self._known = agents
        self._region = region
        self._python = python
        self._addresses = addresses
        self._attachment = attachment
        self._is_owned = False

    @property
    def _agents(self) -> list[tuple[int, int]]:
        """The agents of all hosts that the ranks of the region count; waits for hosts being attached."""
        if self._attachment is not None:
            self._known, self._addresses = self._attachment.hosts()
        return self._known

    def _homes(self) -> list[tuple[int, str]] | None:
        """Agent and address of each host in the order of ranks; None when it is the caller's own host."""
        agents = self._agents
        if self._addresses is None:
            return None
        return [(agents[base][0], self._addresses[base]) for base in self._region.ranks()]

    def _with_region(self, region: Region) -> HostMesh:
        return HostMesh(
            self._known,
            region,
            python=self._python,
            addresses=self._addresses,
            attachment=self._attachment,
        )

    def _reference(self) -> HostMesh:
        return self._with_region(self._region)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], object] | Callable[[], Awaitable[object]] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
        env: Mapping[str, str] | Callable[[Point], Mapping[str, str]] | None = None,
    ) -> ProcMesh:
        """Starts processes on each host, and returns at once; the first use waits for them.

        Args:
            per_host: sizes of the dimensions within a host, such as ``{"gpus": 8}``; they come after the
                dimensions of the hosts. Without it, one process a host.
            bootstrap: runs in each process before any actor; may be ``async def``. If it raises, the mesh
                has failed.
            name: for people.
            proc_bind: for each process of a host, which processors and memory it is bound to: ``cpus``
                and ``physcpubind`` (lists such as ``0-3,8``), ``cpunodebind`` and ``membind`` (NUMA nodes).
            bootstrap_command: the command that starts a process, or a function that makes one of its
                point; by default a process is forked from the host's warm interpreter.
            env: variables set in each process, or a function of its point.

        Raises:
            ValueError: a size below 1, a dimension that the hosts have already, or a ``proc_bind`` of the
                wrong length.
            SpawnError: the host agent has died.
        """
        sizes = dict(per_host or {})
        overlap = [label for label in sizes if label in self.extent]
        if overlap:
            raise ValueError(f"per_host has the dimensions {overlap}, which the hosts have already")
        for label, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"per_host[{label!r}] is {size!r}; a size is an int of at least 1")
        if bootstrap is not None and not callable(bootstrap):
            raise TypeError(f"bootstrap is a function without arguments, not {bootstrap!r}")
        count = 1
        for size in sizes.values():
            count *= size
        if proc_bind is not None:
            _check_bindings(proc_bind, count)
        hosts = self.extent
        extent = Extent([*hosts.labels, *sizes], [*hosts.sizes, *sizes.values()])
        region = Region(extent.labels, Slice.new_row_major(extent.sizes))
        from roost.actor._runtime import fresh_id, runtime

        here = runtime()
        if here.agent_is_lost:
            raise SpawnError(
                "the host agent of this program has died, so no process can be started; restart it"
            )
        uid = fresh_id()
        shown = name or f"procs-{uid & 0xFFFF:04x}"
        agents = self._agents
        mesh = ProcMesh(shown, uid, region, self._reference(), per_host=count)
        mesh._learn(here)
        owned = OwnedProcs(here.node, mesh, here.current_owner(), [])
        mesh._owned = owned
        here.own_procs(owned)
        for number, base in enumerate(self._region.ranks()):
            agent = agents[base]
            ranks = list(range(number * count, (number + 1) * count))
            spec = self._spec(here, uid, shown, ranks, extent, proc_bind, bootstrap_command, env)
            body, buffers = dump(spec)
            if not here.node.cast(here.node.target(SYSTEM_BOX, [agent]), b"start", body, buffers):
                owned.stop("it could not be started")
                raise SpawnError(f"host {number} of {self!r} is lost; attach to it again when it is back")
            owned.spawning.append((agent, ranks))
        body, buffers = dump(bootstrap)
        system = here.node.target(SYSTEM_BOX, [(uid, rank) for rank in region.ranks()])
        owned.bootstrap = here.node.call(system, b"bootstrap", body, buffers)
        if bootstrap is not None:
            owned.watch_bootstrap()
        here.procs_spawned(mesh)
        return mesh

    def _spec(
        self,
        here: Any,
        uid: int,
        name: str,
        ranks: list[int],
        extent: Extent,
        proc_bind: Any,
        command: Any,
        env: Any,
    ) -> dict[str, Any]:
        if command is None and self._python is not None and self._python != sys.executable:
            command = BootstrapCommand.default(self._python)
        made = [command(extent.point(r)) if callable(command) else command for r in ranks]
        if launchers:
            made = [_ask_launcher(one, name, extent.point(r)) for r, one in zip(ranks, made, strict=True)]
        commands = [one.as_tuple() if isinstance(one, BootstrapCommand) else one for one in made]
        envs = None
        if env is not None:
            envs = [_checked_env(env(extent.point(r)) if callable(env) else env) for r in ranks]
        return {
            "mesh": uid,
            "name": name,
            "ranks": ranks,
            "extent": (list(extent.labels), list(extent.sizes)),
            "owner": here.me,
            "root": here.root,
            "log_box": here.log_box,
            "env": dict(os.environ),
            "envs": envs,
            "path": list(sys.path),
            "cwd": _cwd(),
            "preload": [module for module in _preloaded() if module in sys.modules],
            "bind": None if proc_bind is None else [dict(one) for one in proc_bind],
            "commands": commands,
            "config": config.snapshot(),
        }

    def with_python_executable(self, python_executable: str) -> HostMesh:
        """The same hosts, where processes run under another interpreter."""
        made = self._reference()
        made._python = python_executable
        return made

    @property
    def initialized(self) -> Future[bool]:
        """Done when the hosts can be used."""
        return Future._done(True) if self._attachment is None else self._attachment.initialized()

    def shutdown(self) -> Future[None]:
        """Ends the hosts' agents and all their processes.

        Raises:
            RuntimeError: the hosts are not this handle's: a slice, a received handle, or ``this_host()``.
        """
        if not self._is_owned or self._attachment is None:
            raise RuntimeError("cannot shut down a HostMesh that is a reference instead of owned")
        return self._attachment.shutdown()

    def stop(self) -> Future[None]:
        """Ends what this program runs on the hosts; the hosts stay."""
        from roost.actor._runtime import runtime

        return runtime().stop_on([self._agents[base] for base in self._region.ranks()])

    async def __aenter__(self) -> HostMesh:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await (self.shutdown() if self._is_owned else self.stop())

    def __repr__(self) -> str:
        return f"<HostMesh {self.extent!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostMesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> Any:
        return id(self._attachment) if self._attachment else tuple(self._known), self._region

    def __reduce__(self) -> Any:
        return _rebuild_hosts, (self._agents, self._region, self._python, self._addresses)


launchers: list[Callable[[str, Point, BootstrapCommand | None], BootstrapCommand | None]] = []
"""Asked how to start each process, the last one only; for tests (`roost.testing.patch_launcher`)."""


def _preloaded() -> list[str]:
    """What takes long to import: the host agent does so once, when this program has."""
    return [name.strip() for name in config.get("preload").split(",") if name.strip()]


def _ask_launcher(command: Any, name: str, point: Point) -> Any:
    """The command, None for a fork, or why the process cannot be started."""
    try:
        return launchers[-1](name, point, command)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _rebuild_hosts(
    agents: list[tuple[int, int]], region: Region, python: str | None, addresses: list[str] | None
) -> HostMesh:
    mesh = HostMesh(agents, region, python=python, addresses=addresses)
    if addresses is not None:
        from roost.actor._runtime import runtime

        node = runtime().node
        for agent, address in mesh._homes() or ():
            node.learn_proc((agent, 0), agent, address)
    return mesh


def _checked_env(env: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"env[{name!r}] is {value!r}; variables and their values are text")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"env[{name!r}] = {value!r} cannot be set: a name is not empty and has no = or NUL"
            )
    return dict(env)


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _check_bindings(proc_bind: Sequence[Mapping[str, str]], count: int) -> None:
    if len(proc_bind) != count:
        raise ValueError(
            f"proc_bind has {len(proc_bind)} entries; it needs one for each of {count} processes a host"
        )
    for number, binding in enumerate(proc_bind):
        unknown = [key for key in binding if key not in _BINDINGS]
        if unknown:
            raise ValueError(f"proc_bind[{number}] has {unknown}; the keys are {', '.join(_BINDINGS)}")
        for numbers in binding.values():
            parse_list(numbers)


def this_host() -> HostMesh:
    """The host of the caller, as a mesh of one."""
    from roost.actor._runtime import runtime

    here = runtime()
    region = Region([], Slice(offset=0, sizes=[], strides=[]))
    return HostMesh([here.agent], region, addresses=[here.address])
