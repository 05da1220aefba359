"""The runtime of a process: its node, the actors in it, and the meshes that they own."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

from roost import _core, config
from roost._shape import Extent, Point
from roost.actor._context import Context, current_runner
from roost.actor._failure import MeshFailure, Obituary
from roost.actor._instance import ActorId, Instance, ProcId
from roost.actor._owned import SYSTEM_BOX, OwnedActors, OwnedProcs
from roost.actor._reports import dump_report, rebuild, show_banner
from roost.actor._serialize import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor._future import Future
    from roost.actor._logs import LogReader

REPLY, OBITUARY = 3, 7
OK, RAISED, CLOSED = 0, 1, 2


class Runtime:
    """Everything that a process of a roost program holds, from its start to its end."""

    logs: LogReader
    """What workers print; only the client has it."""

    def __init__(
        self,
        me: tuple[int, int],
        agent: tuple[int, int],
        root: tuple[int, int],
        *,
        name: str,
        log_box: int,
    ) -> None:
        self.me = me
        self.agent = agent
        self.address = ""
        """Where other hosts find the agent, if it listens."""
        self.root = root
        self.proc_name = name
        self.log_box = log_box
        self.node = _core.Node(me, agent, config.get("shared_memory_limit") or _memory_limit() // 4)
        self.system = self.node.open_box(SYSTEM_BOX)
        self.runners: dict[int, Any] = {}
        self.actors_owned: dict[int, OwnedActors] = {}
        self.procs_owned: dict[int, OwnedProcs] = {}
        self.owners: dict[int, Any] = {}
        self.is_closing = False
        self.agent_is_lost = False
        self.controllers: dict[str, Any] = {}
        self._crowded = 256
        self._ports: dict[Any, Any] = {}
        self.lock = threading.RLock()
        self._bootstrap_error: BaseException | None = None
        self._bootstrapped = threading.Event()
        self.spawn_callbacks: list[Callable[[Any], object]] = []
        view = Instance(
            name="client",
            class_name="client",
            actor_id=ActorId(ProcId(*me, label=name), 0, "client"),
            rank=Point(0, Extent([], [])),
            runner=None,
            creator=None,
        )
        self.client_context = Context(view, Extent([], []), 0)

    @property
    def stop_grace_s(self) -> float:
        """Seconds that actors and processes get to end by themselves."""
        return config.get("stop_grace_period")  # type: ignore[no-any-return]

    @property
    def cleanup_timeout_s(self) -> float:
        """Seconds that ``__cleanup__`` gets."""
        return config.get("cleanup_timeout")  # type: ignore[no-any-return]

    # -- what is owned ----------------------------------------------------------------------------------

    def current_owner(self) -> Any:
        """Who owns what the running code makes."""
        runner = current_runner()
        if runner is None:
            from roost.actor._context import _current

            context = _current.get()
            runner = None if context is None else context.actor_instance._runner
        return runner if runner is not None else self.owners[0]

    def own_actors(self, owned: OwnedActors) -> None:
        """Registers an actor mesh that this process has made."""
        if len(self.actors_owned) > self._crowded:
            self._forget_stopped()
        with self.lock:
            self.actors_owned[owned.mesh._box] = owned
        owned.owner.owned.append(owned)

    def _forget_stopped(self) -> None:
        """Meshes that were stopped are kept for a while, for what is still said about them; not forever."""
        with self.lock:
            everything: list[tuple[dict[int, Any], int, Any]] = []
            for mine in (self.actors_owned, self.procs_owned):
                everything += [(mine, key, owned) for key, owned in mine.items()]
            ended = {uid for uid, owned in self.procs_owned.items() if owned.has_ended()}
            for mine, key, owned in everything:
                on = getattr(owned.mesh, "_procs", None)
                if owned.has_ended() or (on is not None and on._uid in ended):
                    del mine[key]
                    with contextlib.suppress(ValueError):
                        owned.owner.owned.remove(owned)
            self._crowded = 256 + 2 * len(self.actors_owned)

    def own_procs(self, owned: OwnedProcs) -> None:
        """Registers a process mesh that this process has made."""
        with self.lock:
            self.procs_owned[owned.mesh._uid] = owned
        owned.owner.owned.append(owned)

    def procs_spawned(self, mesh: Any) -> None:
        """Tells those who asked that processes are being started."""
        for callback in list(self.spawn_callbacks):
            callback(mesh)

    def port_target(self, address: Any) -> Any:
        """The engine's address of a port."""
        target = self._ports.get(address)
        if target is None:
            mesh, rank, box = address
            if len(self._ports) > 4096:
                self._ports.clear()
            target = self._ports[address] = self.node.target(box, [(mesh, rank)])
        return target

    def stop_on(self, agents: list[Any]) -> Future[None]:
        """Stops the processes that this process has started on some hosts."""
        from roost.actor._future import Future, Promise

        waiting = [
            owned.stop("the hosts were stopped")
            for owned in list(self.procs_owned.values())
            if any(agent in agents for agent, _ in owned.spawning)
        ]
        promise = Promise()

        def wait() -> None:
            try:
                for one in waiting:
                    one.get()
                promise.set()
            except BaseException as error:
                promise.set(error=error)

        threading.Thread(target=wait, name="roost-stop", daemon=True).start()
        return Future._of(promise)

    # -- messages to the runtime ------------------------------------------------------------------------

    def serve(self) -> None:
        """Handles what comes for the runtime, until the process ends."""
        self.system.read_by_thread()
        while not self.is_closing:
            for message in self.system.take(64, None, False):
                try:
                    self.handle(message)
                except Exception as error:
                    import traceback

                    show_banner(f"roost: internal error: {error}\n{traceback.format_exc()}")

    def handle(self, message: Any) -> None:
        """One message to the runtime."""
        kind, meta, _, _, request, _ = message
        if kind == OBITUARY:
            self.bury(message)
            return
        if kind == REPLY:
            self._unseen(message)
            return
        verb = bytes(meta)
        if verb.startswith(b"failed"):
            self._actor_failed(verb, message)
            return
        handler = _HANDLERS.get(verb)
        if handler is not None:
            handler(self, message)
        elif request is not None:
            request.reply(RAISED, *dump_report(RuntimeError(f"unknown request {verb!r}"), "runtime", {}))

    def bury(self, message: Any) -> None:
        """A process has ended."""
        _, meta, _, _, _, source = message
        dead = (source[0], source[1])
        if dead == self.agent:
            self.agent_lost(Obituary(bytes(meta)))
            return
        obituary = Obituary(bytes(meta))
        if bytes(meta).startswith(b"lost:"):
            import logging

            logging.getLogger("roost").warning("lost process %d of mesh %x: %s", *dead[::-1], obituary.why)
        failures: list[tuple[Any, MeshFailure]] = []
        with self.lock:
            procs = self.procs_owned.get(dead[0])
            actors = list(self.actors_owned.values())
        for owned in actors:
            rank = owned.rank_of(dead)
            if rank is None:
                continue
            if obituary.expected or (procs is not None and procs.stopped is not None):
                continue
            failure = owned.failure_of(
                rank,
                f"is gone: its process {obituary.what()}",
                host=obituary.host,
                pid=obituary.pid,
                exit_code=obituary.exit_code,
                signal=obituary.signal,
                stderr_tail=obituary.stderr_tail,
            )
            if failure is not None:
                failures.append((owned.owner, failure))
        if procs is not None:
            own = procs.lost(dead[1], obituary)
            if own is not None and not any(owner is procs.owner for owner, _ in failures):
                failures.append((procs.owner, own))
        for owner, failure in failures:
            owner.post_failure(failure)
        for runner in list(self.runners.values()):
            if runner.owner[:2] == dead:
                runner.stop_self("its owner's process has ended")

    def _unseen(self, message: Any) -> None:
        """The exception of a call whose future was dropped before it came."""
        from roost.actor._future import log_unseen
        from roost.actor._reports import load_report

        _, report, body, buffers, _, _ = message
        log_unseen(load_report(report, [body, *(buffers or ())] if len(body) else None, None, 0))

    def show_output(self, mesh: int) -> None:
        """All processes of a mesh have ended."""

    def saw_failure(self, mesh: int, rank: int, box: int | None) -> None:
        """The program is being told of the failure of a process, or of one actor in it."""

    def agent_lost(self, obituary: Obituary) -> None:
        """The host agent is gone, and with it all processes of the host."""
        raise NotImplementedError

    def tell_owner(self, owner: tuple[int, int], box: int, rank: int, report: tuple[bytes, Any]) -> None:
        """An actor of this process has failed: its owner's process hears of it."""
        told = pickle.dumps((box, rank))
        self.node.cast(self.node.target(SYSTEM_BOX, [owner]), b"failed" + told, *report)

    def _actor_failed(self, verb: bytes, message: Any) -> None:
        box, rank = pickle.loads(verb.removeprefix(b"failed"))
        with self.lock:
            owned = self.actors_owned.get(box)
        if owned is None:
            return
        cause, described = rebuild(message[2], message[3])
        from roost.errors import ActorError, actor_error

        if not isinstance(cause, ActorError):
            cause = actor_error(cause, message=f"the actor {owned.name} failed", **described)
        failure = owned.failure_of(
            rank,
            f"has failed: {type(cause).__name__}",
            cause=cause,
            host=described["host"],
            pid=described["pid"],
        )
        if failure is not None:
            owned.owner.post_failure(failure)

    def _spawn(self, message: Any) -> None:
        _, _, body, buffers, request, source = message
        rank = source[3]
        try:
            spec = load(body, buffers)
        except BaseException as error:
            error.add_note("the class or the arguments of an actor could not be loaded in its process")
            report = dump_report(error, "spawn", {})
            self.node.open_box(source[5]).close(RAISED, report[0])
            request.reply(RAISED, *report)
            self.tell_owner((source[0], source[1]), source[5], rank, report)
            return
        mailbox = self.node.open_box(spec["box"])
        self._bootstrapped.wait()
        if self._bootstrap_error is not None:
            report = dump_report(self._bootstrap_error, "setup.setup", {})
            mailbox.close(RAISED, report[0])
            request.reply(RAISED, *report)
            return
        from roost.actor._actor import check_class, substitutes

        if spec["substitutes"]:
            substitutes.update(spec["substitutes"])
        if check_class(spec["class"]):
            from roost.actor._runner_async import AsyncRunner as Chosen
        else:
            from roost.actor._runner_sync import SyncRunner as Chosen  # type: ignore[assignment]
        runner = Chosen(self, mailbox, spec, rank, request)
        with self.lock:
            self.runners[runner.box] = runner
            self.owners[runner.box] = runner
        runner.start()

    def _bootstrap(self, message: Any) -> None:
        _, _, body, buffers, request, _ = message
        try:
            function = load(body, buffers)
            if function is not None:
                made = function()
                if hasattr(made, "__await__"):
                    import asyncio

                    async def wait() -> None:
                        await made

                    asyncio.run(wait())
            request.reply(OK, b"")
        except BaseException as error:
            self._bootstrap_error = error
            request.reply(RAISED, *dump_report(error, "setup.setup", {}))
        finally:
            self._bootstrapped.set()

    def _dropped(self, message: Any) -> None:
        import logging

        text = (
            "%s messages to ports whose receivers are gone were dropped; the last came from process %d of %x"
        )
        logging.getLogger("roost").warning(text, bytes(message[2]).decode(), message[5][1], message[5][0])

    def _probe(self, message: Any) -> None:
        from roost.actor._deadlock import probed

        probed(self.runners, self.me, bytes(message[2]))

    def _log_level(self, message: Any) -> None:
        from roost.actor._logs import set_log_level

        set_log_level(load(message[2], message[3]))
        message[4].reply(OK, b"")

    def _log(self, message: Any) -> None:
        from roost.actor._logs import drain

        mesh, stream, window = load(message[2], message[3])
        drain(self, 1.0)  # what was printed before is shown as it was wanted then
        self.logs.options[mesh] = (stream, window)
        message[4].reply(OK, b"")

    def _exit(self, message: Any) -> None:
        told = json.loads(bytes(message[2]))
        threading.Thread(
            target=self._leave, args=(told["reason"], told["grace_s"]), name="roost-exit", daemon=True
        ).start()

    def _leave(self, reason: str, grace_s: float) -> None:
        """Stops all actors of this process, then the process."""
        import time

        deadline = time.monotonic() + grace_s
        runners = list(self.runners.values())
        for runner in runners:
            self.node.cast(runner._me, b"!stop", json.dumps(reason).encode())
        for runner in runners:
            runner.ended.wait(max(0.0, deadline - time.monotonic()))
        self.close_process(0)

    def close_process(self, code: int) -> None:
        """Ends this process; the client does it otherwise."""
        raise NotImplementedError

    def forget_runner(self, runner: Any) -> None:
        """An actor of this process has ended."""
        with self.lock:
            self.runners.pop(runner.box, None)
            self.owners.pop(runner.box, None)


def _serve_controller(here: Runtime, message: Any) -> None:
    from roost.actor._controllers import serve_controller

    serve_controller(here, message)


_HANDLERS: dict[bytes, Callable[[Runtime, Any], None]] = {
    b"spawn": Runtime._spawn,
    b"bootstrap": Runtime._bootstrap,
    b"dropped": Runtime._dropped,
    b"probe": Runtime._probe,
    b"log": Runtime._log,
    b"log_level": Runtime._log_level,
    b"exit": Runtime._exit,
    b"controller": _serve_controller,
}

_runtime: Runtime | None = None
_start_lock = threading.RLock()


def runtime() -> Runtime:
    """This process's runtime. In a plain program the first use starts it as the client."""
    found = _runtime
    if found is not None:
        return found
    with _start_lock:
        if _runtime is None:
            from roost.actor._client import start_client

            set_runtime(start_client())
        assert _runtime is not None
        return _runtime


def runtime_if_started() -> Runtime | None:
    """This process's runtime, without starting it."""
    return _runtime


def set_runtime(value: Runtime | None) -> None:
    """Makes a runtime this process's own."""
    global _runtime
    _runtime = value


def fresh_id() -> int:
    """A name that nobody else has."""
    return int.from_bytes(os.urandom(8), "little") | 1


def _memory_limit() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 4 << 30


if sys.platform != "linux":
    raise ImportError("roost runs on Linux: it needs epoll, memfd and process descriptors")
