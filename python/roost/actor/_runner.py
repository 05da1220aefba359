"""An actor's life in its process: made, handling messages one by one, ended.

States: *starting* (``__init__`` runs; messages queue), *running*, *ending* (owned meshes stop, then
``__cleanup__``), *ended* (the mailbox tells callers by whom and why). It ends by a stop, which queues behind
earlier messages, or by a failure, of which the owner hears.
"""

from __future__ import annotations

import collections
import json
import pickle
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from roost._shape import Extent, Point
from roost.actor._actor import endpoints_of
from roost.actor._channel import NullPort, Port, ResponsePort
from roost.actor._context import Context
from roost.actor._endpoint import is_async
from roost.actor._failure import MeshFailure, closed_reason
from roost.actor._instance import ActorId, Instance, ProcId
from roost.actor._reports import dump_report, format_exception, show_banner
from roost.actor._serialize import dump, load_args
from roost.errors import SupervisionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor._runtime import Runtime

OK, RAISED, CLOSED = 0, 1, 2
URGENT = 1


class Prepared(NamedTuple):
    """A kind of message, decoded once."""

    name: str
    function: Callable[..., Any]
    explicit: bool
    asynchronous: bool
    concurrent: bool
    extent: Extent
    port: Any


class ActorFailed(SupervisionError):
    """The actor has failed while its code waited: unwinds that code."""


class Runner:
    """What sync and async actors have in common."""

    def __init__(self, runtime: Runtime, mailbox: Any, spec: dict[str, Any], rank: int, spawn: Any) -> None:
        self.runtime = runtime
        self.node = runtime.node
        self.mailbox = mailbox
        self.box: int = spec["box"]
        self.name: str = spec["name"]
        self.owner: tuple[int, int, int] = tuple(spec["owner"])
        self.proc_mesh = spec["procs"]
        self.thread_id = 0
        self.instance: Any = None
        self.owned: list[Any] = []
        self.ended = threading.Event()
        self.doom: BaseException | None = None
        self._spec = spec
        self._spawn_request = spawn
        self._extent = Extent(spec["labels"], spec["sizes"])
        self._rank = rank
        self._leaving: tuple[str, str] | None = None
        self._table: dict[bytes, Prepared] = {}
        self._failures: collections.deque[MeshFailure] = collections.deque()
        self._failing = False
        self._dying = False
        self.address = (*runtime.me, self.box)
        self.waits: dict[int, Any] = {}
        self._me = self.node.target(self.box, [runtime.me])
        self.view = Instance(
            name=self.name,
            class_name=f"{spec['class'].__module__}.{spec['class'].__qualname__}",
            actor_id=ActorId(ProcId(*runtime.me, label=runtime.proc_name), self.box, self.name),
            rank=Point(rank, self._extent),
            runner=self,
            creator=spec["creator"],
        )
        self._idle_context = Context(self.view, self._extent, rank)

    def describe(self) -> str:
        """For the actors that this one makes."""
        return repr(self.view)

    def start(self) -> None:
        """Starts the actor's thread."""
        thread = threading.Thread(target=self._run, name=f"actor-{self.name}", daemon=True)
        thread.start()

    def _run(self) -> None:
        raise NotImplementedError

    # -- messages ---------------------------------------------------------------------------------------

    def prepare(self, meta: bytes) -> Prepared:
        """Finds the method that a message is for."""
        name, labels, sizes, explicit, port = pickle.loads(meta)
        function = getattr(self.instance, name, None)
        if function is None:
            known = ", ".join(sorted(endpoints_of(type(self.instance)))) or "none"
            raise AttributeError(
                f"{type(self.instance).__qualname__} has no endpoint {name!r}; its endpoints are: {known}"
            )
        declared = endpoints_of(type(self.instance)).get(name)
        made = Prepared(
            name,
            function,
            explicit,
            is_async(function),
            bool(declared is not None and declared.concurrent),
            Extent(labels, sizes),
            None if port is None else Port(port),
        )
        if len(self._table) > 4096:
            self._table.clear()
        self._table[meta] = made
        return made

    def arguments(self, prepared: Prepared, message: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a message, with the port in front where the endpoint wants one."""
        _, _, body, buffers, request, source = message
        args, kwargs = load_args(body, buffers)
        if prepared.explicit:
            port: Port[Any]
            if prepared.port is not None:
                port = Port(prepared.port._address, rank=rank_in_message(source))
            elif request is not None:
                port = ResponsePort(request, rank_in_message(source), self.name)
            else:
                port = NullPort(rank_in_message(source))
            args = (port, *args)
        return args, kwargs

    def answer(self, prepared: Prepared, message: Any, value: Any) -> None:
        """Sends the result of an endpoint to whoever wants it."""
        request = message[4]
        if prepared.port is not None:
            if not prepared.explicit:
                Port(prepared.port._address, rank=rank_in_message(message[5])).send(value)
            if request is not None:
                request.reply(OK, b"")
            return
        if prepared.explicit or request is None:
            return
        try:
            body, buffers = dump(value)
        except Exception as error:
            error.add_note(f"the value was returned by {self.name}.{prepared.name}")
            request.reply(RAISED, *self.report(error, message))
            return
        request.reply(OK, body, buffers)

    def failed_message(self, prepared: Prepared | None, message: Any, error: BaseException) -> None:
        """An endpoint has raised: its caller gets the exception; without a caller the actor fails."""
        request = message[4]
        explicit = prepared is not None and prepared.explicit
        if isinstance(error, ActorFailed) and self.doom is not None:
            if request is not None and not explicit:
                request.reply(CLOSED, closed_reason("failed", str(error)))
            return
        if prepared is not None and prepared.port is not None and not explicit:
            Port(prepared.port._address, rank=rank_in_message(message[5])).exception(error)
            if request is not None:
                request.reply(OK, b"")
            if isinstance(error, Exception):
                return
        elif request is not None:
            request.reply(RAISED, *self.report(error, message))
            if isinstance(error, Exception) and not explicit:
                return
        self.doom = error

    def report(self, error: BaseException, message: Any) -> tuple[bytes, Any]:
        """The exception as it travels to the caller."""
        return dump_report(error, self.name, dict(self.view.rank.items()))

    def refuse(self, message: Any) -> None:
        """Tells the caller of a message that was taken and not begun that the actor has ended."""
        request = message[4]
        if request is None:
            return
        if self.doom is not None:
            text = f"{self.name} has failed before it came to this call: {self.doom}"
            request.reply(CLOSED, closed_reason("failed", text))
        else:
            text = f"{self.name} was stopped before it came to this call"
            request.reply(CLOSED, closed_reason("stopped", text))

    @property
    def label(self) -> str:
        """The actor's name and where it is in its mesh."""
        where = ", ".join(f"{dim}={index}" for dim, index in self.view.rank.items())
        return f"{self.name}({where})" if where else self.name

    def is_blocked_by(self, endpoint: Any, ranks: list[int], blocking: bool) -> bool:
        """Whether waiting for these ranks of an endpoint is waiting for this actor's own next message."""
        mesh = endpoint._mesh
        if mesh._box != self.box or mesh._procs._uid != self.runtime.me[0]:
            return False
        base = mesh._region.ranks()
        if not any(base[rank] == self.runtime.me[1] for rank in ranks):
            return False
        if blocking and self.thread_id == threading.get_ident():
            return True  # also a concurrent endpoint needs the thread
        return self.is_busy() and not endpoint._is_concurrent

    def is_busy(self) -> bool:
        """Whether the code that runs now is the one that the actor's next message waits for."""
        return self.thread_id == threading.get_ident()

    # -- leaving ----------------------------------------------------------------------------------------

    def stop_self(self, reason: str) -> None:
        """Ends the actor after the message that it handles."""
        self._leaving = self._leaving or ("stop", reason)
        self.nudge()

    def abort(self, reason: str) -> None:
        """Fails the actor after the message that it handles."""
        self._leaving = self._leaving or ("abort", reason)
        self.nudge()

    def post_failure(self, failure: MeshFailure) -> None:
        """A mesh of this actor has failed."""
        self._failures.append(failure)
        self.nudge()

    def nudge(self) -> None:
        """Interrupts the actor's wait, for a message or for an answer."""
        self.node.cast(self._me, b"!wake", b"", flags=URGENT)

    def handle_urgent(self) -> None:
        raise NotImplementedError

    def escalate(self, failure: MeshFailure, raised: BaseException | None) -> None:
        """The failure of an owned mesh was not handled: this actor fails."""
        text = f"{self.name} did not handle the failure of a mesh that it owns: {failure.report()}"
        cause = ActorFailed(text, failure=failure)
        if raised is None:
            self.doom = cause
            return
        text = "This error occurred while handling another failure: " + failure.report()
        raised.__cause__ = raised.__cause__ or SupervisionError(text, failure=failure)
        self.doom = raised

    def stop_owned(self, reason: str) -> None:
        """Ends the meshes that this actor has made, the last one first."""
        for mesh in reversed(self.owned):
            try:
                mesh.stop(reason).get(timeout=self.runtime.stop_grace_s + 5)
            except Exception as error:
                show_banner(f"roost: {self.name} could not stop {mesh.name!r}: {error}")
        self.owned.clear()

    def leave(self, reason: str, request: Any, error: BaseException | None) -> None:
        """The actor has stopped."""
        if self.ended.is_set():
            return
        if error is not None:
            self.fail(error)
        if request is not None:
            request.reply(OK, b"")
        self.mailbox.close(CLOSED, closed_reason("stopped", reason))
        self._end()

    def fail(self, error: BaseException, starting: bool = False) -> None:
        """Tells the callers and the owner that the actor has failed."""
        if self._failing:
            return
        self._failing = True
        report = self.report(error, None)
        if starting and report[1] is None:
            self.mailbox.close(RAISED, report[0])
        else:
            text = f"{self.name}: {format_exception(error).rstrip()}"
            self.mailbox.close(CLOSED, closed_reason("failed", text))
        self.runtime.tell_owner(self.owner[:2], self.box, self._rank, report)

    def _end(self) -> None:
        if self.ended.is_set():
            return
        self.runtime.forget_runner(self)
        self.instance = None
        self.ended.set()


def rank_in_message(source: tuple[int, ...]) -> int:
    """This actor's rank in the mesh that a message was sent to; one that was chosen is told which it is."""
    return source[5] - 1 if source[5] else source[3]


def stop_request(message: Any) -> tuple[str, Any]:
    """The reason and the request of a ``!stop`` message."""
    return json.loads(bytes(message[2]) or b'"stopped"'), message[4]
