"""What an actor owns: the meshes that it has made, which end with it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from roost._shape import Point
from roost.actor._failure import MeshFailure, Obituary, last_lines
from roost.actor._future import Future, Promise, Source
from roost.errors import SpawnError, SupervisionError

if TYPE_CHECKING:
    from collections.abc import Callable

SYSTEM_BOX = 0


class ControlSource(Source):
    """A request to the runtime of one or more processes; ``convert`` makes the result of the answers."""

    __slots__ = ("_call", "_convert", "_size")

    def __init__(self, call: Any, size: int, convert: Callable[[list[Any]], Any]) -> None:
        self._call, self._size, self._convert = call, size, convert

    def wait(self, timeout: float | None, mailbox: Any) -> int:
        return self._call.wait(self._size, timeout, mailbox)  # type: ignore[no-any-return]

    def is_ready(self) -> bool:
        return self._call.is_ready(self._size)  # type: ignore[no-any-return]

    def ring(self, bell: Any, token: int) -> None:
        self._call.ring(self._size, bell, token)

    def result(self) -> Any:
        return self._convert(self._call.take(0, self._size))


def check_answers(answers: list[Any]) -> None:
    """For requests whose only result is that they were done."""
    from roost.actor._calls import OK, error_of

    for rank, status, body, buffers in answers:
        if status != OK:
            raise error_of(None, rank, status, body, buffers)


class OwnedActors:
    """An actor mesh, in its owner's process."""

    def __init__(self, node: Any, mesh: Any, owner: Any, spawning: Any) -> None:
        self.node = node
        self.mesh = mesh
        self.owner = owner
        self.spawning = spawning
        self.failed: set[int] = set()
        self.stopped: str | None = None
        self._stopping: Future[Any] | None = None
        self._lock = threading.Lock()
        self._initialized: Future[None] | None = None

    @property
    def name(self) -> str:
        return self.mesh._name  # type: ignore[no-any-return]

    def has_ended(self) -> bool:
        """Whether it was stopped, and has."""
        return self._stopping is not None and self._stopping.done()

    def initialized(self) -> Future[None]:
        with self._lock:
            if self._initialized is None:
                self._initialized = Future._of(ControlSource(self.spawning, len(self.mesh), self._check))
                self._initialized._seen = True
            return self._initialized

    def _check(self, answers: list[Any]) -> None:
        from roost.actor._calls import DEAD, OK
        from roost.actor._runtime import runtime

        for rank, status, _, _ in answers:
            if status != OK:
                box = None if status == DEAD else self.mesh._box
                runtime().saw_failure(self.mesh._procs._uid, self.mesh._region.ranks()[rank], box)
        check_answers(answers)

    def stop(self, reason: str) -> Future[None]:
        with self._lock:
            if self._stopping is None:
                self.stopped = reason
                body = json.dumps(f"{reason} (by {self.owner.describe()})").encode()
                call = self.node.call(self.mesh._target, b"!stop", body)
                source = ControlSource(call, len(self.mesh), lambda answers: None)
                self._stopping = Future._of(source)
                self._stopping._seen = True
            return self._stopping

    def rank_of(self, proc: tuple[int, int]) -> int | None:
        """The rank whose process this is."""
        if proc[0] != self.mesh._procs._uid:
            return None
        try:
            return self.mesh._region.ranks().index(proc[1])  # type: ignore[no-any-return]
        except ValueError:
            return None

    def failure_of(self, rank: int, what: str, **known: Any) -> MeshFailure | None:
        """The failure of a rank, the first time."""
        with self._lock:
            if rank in self.failed or (self.stopped is not None and "cause" not in known):
                return None
            self.failed.add(rank)
        point = Point(rank, self.mesh.extent)
        return MeshFailure(self.name, rank=rank, point=point, what=what, mesh=self.mesh, **known)


class OwnedProcs:
    """A process mesh, in its owner's process."""

    def __init__(self, node: Any, mesh: Any, owner: Any, spawning: list[tuple[Any, list[int]]]) -> None:
        self.node = node
        self.mesh = mesh
        self.owner = owner
        self.spawning = spawning
        self.alive: set[int] = set(mesh._region.ranks())
        self.failed: set[int] = set()
        self.stopped: str | None = None
        self.bootstrap: Any = None
        self._lock = threading.Lock()
        self._gone = Promise()
        self._stop_sent = False
        self._initialized: Future[None] | None = None
        self._bootstrap_error: tuple[int, Any] | None = None

    @property
    def name(self) -> str:
        return self.mesh._name  # type: ignore[no-any-return]

    def has_ended(self) -> bool:
        """Whether it was stopped, and its processes have ended."""
        return self.stopped is not None and not self.alive

    def initialized(self) -> Future[None]:
        """Done when all processes answer and have run the bootstrap."""
        with self._lock:
            if self._initialized is None:
                source = ControlSource(self.bootstrap, len(self.mesh), self._check)
                self._initialized = Future._of(source)
                self._initialized._seen = True
            return self._initialized

    def _check(self, answers: list[Any]) -> None:
        from roost.actor._calls import OK, RAISED
        from roost.actor._reports import load_report

        for rank, status, body, buffers in answers:
            if status != OK:
                from roost.actor._runtime import runtime

                runtime().saw_failure(self.mesh._uid, self.mesh._region.ranks()[rank], None)
            if status == RAISED:
                error: Any = load_report(body, buffers, None, rank)
                self._bootstrap_error = (rank, error)
                raise error
            if status != OK:
                obituary = Obituary(bytes(body)) if status == 3 else None
                text = (
                    f"rank {rank} of {self.name!r} {'did not start' if obituary is None else obituary.what()}"
                )
                if obituary is not None and obituary.stderr_tail:
                    text += "\nlast lines of its stderr:\n" + "\n".join(last_lines(obituary.stderr_tail))
                raise SpawnError(text)

    def watch_bootstrap(self) -> None:
        """The owner hears of a bootstrap that raises."""
        self.initialized().add_done_callback(self._bootstrapped)

    def _bootstrapped(self, future: Future[None]) -> None:
        future.exception()
        if self._bootstrap_error is None:
            return
        rank, cause = self._bootstrap_error
        with self._lock:
            if self.stopped is not None or rank in self.failed:
                return
            self.failed.add(rank)
        failure = MeshFailure(
            self.name,
            rank=rank,
            point=Point(rank, self.mesh.extent),
            what=f"could not be set up: its bootstrap raised {type(cause.exception).__name__}",
            mesh=self.mesh,
            cause=cause,
            host=cause.host,
            pid=cause.pid,
        )
        self.owner.post_failure(failure)

    def lost(self, rank: int, obituary: Obituary) -> MeshFailure | None:
        """A process has ended. Returns the failure, unless the end was wanted."""
        from roost.actor._runtime import runtime

        with self._lock:
            self.alive.discard(rank)
            if not self.alive:
                runtime().show_output(self.mesh._uid)
                self._gone.set()
            if self.stopped is not None or rank in self.failed or obituary.expected:
                return None
            self.failed.add(rank)
        where = self.mesh._region.ranks().index(rank)
        return MeshFailure(
            self.name,
            rank=where,
            point=Point(where, self.mesh.extent),
            what=obituary.what(),
            mesh=self.mesh,
            host=obituary.host,
            pid=obituary.pid,
            exit_code=obituary.exit_code,
            signal=obituary.signal,
            stderr_tail=obituary.stderr_tail,
        )

    def all_lost(self) -> None:
        """The host agent has died, and with it whoever could say more of its processes."""
        with self._lock:
            self.alive.clear()
            self._gone.set()

    def stop(self, reason: str, grace_s: float | None = None) -> Future[None]:
        """Stops the actors of each process, then the process; kills what has not ended in time."""
        with self._lock:
            first, self._stop_sent = not self._stop_sent, True
            self.stopped = self.stopped or reason
            if not self.alive:
                self._gone.set()
        if first:
            from roost.actor._runtime import runtime

            if grace_s is None:
                grace_s = runtime().stop_grace_s
            body = json.dumps({"reason": reason, "grace_s": grace_s}).encode()
            uid = self.mesh._uid
            with self._lock:
                alive = sorted(self.alive)
            if alive:
                target = self.node.target(SYSTEM_BOX, [(uid, rank) for rank in alive])
                self.node.cast(target, b"exit", body)
            for agent, _ in self.spawning:
                kill = json.dumps({"mesh": uid, "after_s": grace_s, "reason": reason}).encode()
                self.node.cast(self.node.target(SYSTEM_BOX, [agent]), b"end", kill)
        future: Future[None] = Future._of(self._gone)
        future._seen = True
        return future

    def refuse(self) -> None:
        """Raises when nothing can be spawned here any more."""
        if self.stopped is not None:
            raise SupervisionError(f"the process mesh {self.name!r} has already been stopped: {self.stopped}")
