"""The command stream: what the controller has told the processes of a mesh to do, in batches.

A `Place` is a mesh with the actors that compute for it. Its *feed* collects commands and the numbers of
values that nobody refers to any more, and sends both as one message when enough have come together, when
somebody is about to wait, or a few milliseconds after the first of them.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roost.actor import ActorMesh, ProcMesh
    from roost.tensor._worker import TensorWorker

BATCH_COMMANDS = 64
"""Commands that go out as one message: more leave the workers idle, fewer cost the controller time."""

DELAY_S = 0.002
"""How long a command waits for others when the controller issues none."""

FORGET_S = 1.0
"""How long values that nobody refers to are kept when no command follows."""

fresh_numbers = itertools.count(1)
"""Numbers of values. They are never used twice, so that every mesh can keep its values in one table."""


class Ref:
    """The controller's hold on a value of the workers, who forget the value when this dies."""

    __slots__ = ("_dead", "number", "shared")

    def __init__(self, number: int, dead: list[int]) -> None:
        self.number = number
        self.shared = False
        self._dead = dead

    def __del__(self) -> None:
        self._dead.append(self.number)


class Place:
    """Where tensors live: the ranks of a mesh, and the feed to the actors that compute there."""

    def __init__(self, mesh: ProcMesh, workers: ActorMesh[TensorWorker], engine: Engine) -> None:
        self.mesh = mesh
        self.workers = workers._with_region(mesh._region)
        self.ranks = frozenset(mesh._region.ranks())
        self.engine = engine
        self.dead: list[int] = []
        self.commands: list[tuple[Any, ...]] = []
        self._values: list[Any] = []
        self._known: set[int] = set()
        self._definitions: list[tuple[Any, ...]] = []
        self._run = self.workers._endpoint("run")

    def ref(self) -> Ref:
        return Ref(next(fresh_numbers), self.dead)

    def append(self, command: tuple[Any, ...]) -> None:
        """Adds a command: the number of its template, and what fills the template's gaps."""
        engine = self.engine
        if engine.current is not self:
            engine.switch(self)
        commands = self.commands
        commands.append(command)
        count = len(commands)
        if count == 1:
            engine.clock.wake()
        elif count >= BATCH_COMMANDS:
            self.flush()

    def define(self, number: int, definition: Any) -> None:
        """Makes a template known to the workers, once, before the first command that uses it."""
        if number not in self._known:
            with self.engine.lock:
                self._known.add(number)
                self._definitions.append((number, definition))

    def send_value(self, value: Any) -> int:
        """A value that travels with the batch; its index there goes into the command at once."""
        with self.engine.lock:
            self._values.append(value)
            return len(self._values) - 1

    def flush(self) -> None:
        """Sends what has come together. Returns without waiting for anybody."""
        with self.engine.lock:
            # The dead first: every command that uses one of them is among the commands taken next.
            dead = self._take(self.dead)
            current = self.engine.current
            if current is not None and current is not self and not current.ranks.isdisjoint(self.ranks):
                current.flush()
            commands = self._take(self.commands)
            definitions, self._definitions = self._definitions, []
            values, self._values = self._values, []
            if not (commands or dead or definitions):
                return
            body = pickle.dumps((definitions, commands, dead), 5)
            if values:
                self._run.broadcast(body, values)
            else:
                self._run.broadcast(body)

    @staticmethod
    def _take(waiting: list[Any]) -> list[Any]:
        """Empties a list to which other threads append meanwhile."""
        count = len(waiting)
        taken = waiting[:count]
        del waiting[:count]
        return taken


class Engine:
    """The places of one mesh of processes. They share workers, so their commands keep one order."""

    def __init__(self, workers: ActorMesh[TensorWorker]) -> None:
        self.workers = workers
        self.lock = threading.RLock()
        self.current: Place | None = None
        self.clock = clock
        self._places: dict[Any, Place] = {}

    def place(self, mesh: ProcMesh) -> Place:
        found = self._places.get(mesh._region)
        if found is None:
            found = self._places[mesh._region] = Place(mesh, self.workers, self)
            self.clock.watch(found)
        return found

    def switch(self, place: Place) -> None:
        """Commands for other ranks than before: those that both have must see the earlier ones first."""
        with self.lock:
            before = self.current
            if before is not None and not before.ranks.isdisjoint(place.ranks):
                before.flush()
            elif before is not None:
                for other in self._places.values():
                    if other is not place and other.commands and not other.ranks.isdisjoint(place.ranks):
                        other.flush()
            self.current = place

    @property
    def places(self) -> list[Place]:
        return list(self._places.values())


class _Clock:
    """Sends what the controller has left lying for a moment: one thread, nearly always asleep."""

    def __init__(self) -> None:
        self._places: weakref.WeakSet[Place] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._started = False

    def watch(self, place: Place) -> None:
        with self._lock:
            self._places.add(place)
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="roost-feeds", daemon=True).start()

    def wake(self) -> None:
        """A command lies somewhere. Not for values that have died: those die anywhere, also in here."""
        if not self._event.is_set():
            self._event.set()

    def _run(self) -> None:
        while True:
            if self._event.wait(FORGET_S):
                time.sleep(DELAY_S)
            self._event.clear()
            with self._lock:
                places = list(self._places)
            for place in places:
                if place.commands or place.dead:
                    with contextlib.suppress(Exception):  # stopped: whoever uses it next is told
                        place.flush()
            del places


clock = _Clock()
