"""The client: the program that the user has started, and the root of all ownership."""

from __future__ import annotations

import atexit
import collections
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from roost import config
from roost.actor._failure import MeshFailure, Obituary, default_fault_hook
from roost.actor._reports import show_banner
from roost.actor._runtime import Runtime, fresh_id, runtime_if_started
from roost.actor._transport import listen_here

if TYPE_CHECKING:
    from roost.actor._future import Future


_SEEN_S = 3.0
"""The error of a call and the news of the failure behind it come by two ways, this far apart at most."""


class RootOwner:
    """Owns what the program makes outside actors. Failures that nobody handles end here."""

    box = 0

    def __init__(self, here: ClientRuntime) -> None:
        self._runtime = here
        self.owned: list[Any] = []
        self._unseen: list[tuple[float, MeshFailure]] = []
        self._seen: collections.deque[_Seen] = collections.deque(maxlen=1024)
        self._lock = threading.Condition()
        self._watch: threading.Thread | None = None

    def describe(self) -> str:
        """For the actors that the program makes."""
        return "<root>"

    def post_failure(self, failure: MeshFailure) -> None:
        """The hook is called, in a thread of its own. The default hook waits a little: a program that handles
        the error of a call to what has failed has handled the failure."""
        import roost.actor

        grace = 0.0
        with self._lock:
            if roost.actor.unhandled_fault_hook is default_fault_hook:
                now = time.monotonic()
                if any(seen.until > now and seen.covers(failure) for seen in self._seen):
                    return
                grace = config.get("unhandled_fault_grace")
            self._unseen.append((time.monotonic() + grace, failure))
            if self._watch is None:
                self._watch = threading.Thread(target=self._wait, name="roost-faults", daemon=True)
                self._watch.start()
            self._lock.notify()

    def saw(self, mesh: int, rank: int, box: int | None) -> None:
        """The program got an error for a process, or for one actor in it, so it knows."""
        import roost.actor

        seen = _Seen(time.monotonic() + _SEEN_S, mesh, rank, box)
        with self._lock:
            self._seen.append(seen)
            if roost.actor.unhandled_fault_hook is default_fault_hook:
                self._unseen = [(due, failure) for due, failure in self._unseen if not seen.covers(failure)]

    def first_unseen(self) -> MeshFailure | None:
        """A failure that the program does not know of."""
        with self._lock:
            return self._unseen[0][1] if self._unseen else None

    def _wait(self) -> None:
        while True:
            with self._lock:
                while not self._unseen or self._unseen[0][0] > time.monotonic():
                    left = self._unseen[0][0] - time.monotonic() if self._unseen else None
                    self._lock.wait(left)
                failure = self._unseen.pop(0)[1]
            if self._runtime.is_closing:
                return
            self._call_hook(failure)

    def _call_hook(self, failure: MeshFailure) -> None:
        import roost.actor

        hook = roost.actor.unhandled_fault_hook
        if hook is default_fault_hook:
            self._runtime.end_program(failure, None)
            return
        try:
            hook(failure)
        except BaseException as error:
            self._runtime.end_program(failure, error)


class _Seen(NamedTuple):
    """An error that the program got from a call of its own."""

    until: float
    mesh: int
    rank: int
    box: int | None
    """The actor that it was about; None is the whole process."""

    def covers(self, failure: MeshFailure) -> bool:
        mesh = failure.mesh
        ranks = mesh._region.ranks()
        if failure.rank >= len(ranks) or ranks[failure.rank] != self.rank:
            return False
        if getattr(mesh, "_procs", mesh)._uid != self.mesh:
            return False
        is_of_actor = failure.exit_code is None and failure.signal is None
        # Of a process mesh only its bootstrap fails without an end; every call to its actors tells of that.
        return self.box is None or (is_of_actor and getattr(mesh, "_box", self.box) == self.box)


class ClientRuntime(Runtime):
    """The runtime of the program itself."""

    def __init__(self, me: tuple[int, int], agent: tuple[int, int], agent_pid: int) -> None:
        super().__init__(me, agent, me, name="client", log_box=0)
        self.agent_pid = agent_pid
        self.root_owner = RootOwner(self)
        self.owners[0] = self.root_owner
        self._bootstrapped.set()
        self._ended = False
        self._end_lock = threading.Lock()

    def start(self, agent_socket: int) -> None:
        """Starts the threads."""
        from roost.actor._logs import LogReader, follow_notebook

        self.node.start_backup()
        self.node.adopt(self.agent, agent_socket)
        mailbox = self.node.open_fresh_box()
        self.log_box = mailbox.id
        self.logs = LogReader(mailbox)
        threading.Thread(target=self.serve, name="roost-runtime", daemon=True).start()
        atexit.register(self._at_exit)
        follow_notebook(self)

    def saw_failure(self, mesh: int, rank: int, box: int | None) -> None:
        self.root_owner.saw(mesh, rank, box)

    def show_output(self, mesh: int) -> None:
        self.logs.show_now(mesh)

    def agent_lost(self, obituary: Obituary) -> None:
        if self.is_closing or self._ended:
            return
        self.agent_is_lost = True
        show_banner("roost: the host agent of this program has died; its processes are gone")
        for owned in list(self.procs_owned.values()):
            owned.all_lost()

    def end_program(self, failure: MeshFailure, error: BaseException | None) -> None:
        """Nobody has handled a failure: reports it, and ends the program with a non-zero status."""
        if self.is_closing:
            return
        text = "roost: unhandled failure, ending the program\n" + failure.report()
        if error is not None and not isinstance(error, SystemExit):
            text += f"\nunhandled_fault_hook raised {type(error).__name__}: {error}"
        text += "\n(handle it with try/except around the call, __supervise__ in an actor, or "
        text += "roost.actor.unhandled_fault_hook)"
        show_banner(text)
        main = threading.main_thread()
        if main.ident is not None and main.is_alive():
            signal.pthread_kill(main.ident, signal.SIGINT)
            main.join(10.0)
        if main.is_alive():
            self.shutdown(1.0)
            os._exit(1)

    def _at_exit(self) -> None:
        unseen = self.root_owner.first_unseen()
        self.shutdown(self.stop_grace_s)
        if unseen is not None:
            show_banner("roost: the program ended with an unhandled failure\n" + unseen.report())
            if sys.stdout is not None:
                sys.stdout.flush()
            os._exit(1)

    def shutdown(self, grace_s: float) -> None:
        """Stops everything that the program owns, and the host agent."""
        with self._end_lock:
            if self._ended:
                return
            self._ended = True
            self._stop_all(grace_s)
            self.is_closing = True
            self.node.shutdown()
            self._reap_agent()
            self.logs.close()

    def _stop_all(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s + 2
        local = [owned for owned in self.actors_owned.values() if owned.mesh._procs._uid == self.me[0]]
        procs = list(self.procs_owned.values())
        try:
            futures = [owned.stop("the program has ended") for owned in local]
            futures += [
                owned.stop("the program has ended", grace_s)
                for owned in procs
                if owned.owner is self.root_owner
            ]
            for future in futures:
                future.get(timeout=max(0.0, deadline - time.monotonic()))
        except Exception as error:
            show_banner(f"roost: at the end of the program: {error}")
        except KeyboardInterrupt:
            show_banner("roost: interrupted while stopping; killing what is left")
        from roost.actor._logs import drain

        drain(self, max(0.1, min(2.0, deadline - time.monotonic())))

    def _reap_agent(self) -> None:
        for _ in range(200):
            try:
                pid, _ = os.waitpid(self.agent_pid, os.WNOHANG)
            except ChildProcessError:
                return
            if pid:
                return
            time.sleep(0.01)
        os.kill(self.agent_pid, signal.SIGKILL)
        os.waitpid(self.agent_pid, 0)


def _occupy_standard_streams() -> None:
    """Where a program was started without them, the next descriptors would take their numbers, and what is
    printed would go into a link."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def start_client() -> ClientRuntime:
    """Starts the host agent as a child process, and the runtime of this program.

    Raises:
        TypeError, ValueError: a setting is wrong, see `config.check`; nothing has been started then.
    """
    config.check()
    _occupy_standard_streams()
    ours, theirs = socket.socketpair()
    me, agent = (fresh_id(), 0), (fresh_id(), 0)
    theirs.set_inheritable(True)
    code = "from roost.actor._agent import main; main()"
    words = [sys.executable, "-c", code, str(theirs.fileno()), f"{agent[0]:x}", f"{me[0]:x}"]
    environment = dict(os.environ)
    path = os.pathsep.join(part for part in sys.path if part)
    environment["PYTHONPATH"] = path
    if sys.stdout is not None:
        sys.stdout.flush()
    pid = os.posix_spawn(sys.executable, words, environment, setsid=True)
    theirs.close()
    runtime = ClientRuntime(me, agent, pid)
    runtime.start(ours.detach())
    listen_here(runtime)
    os.register_at_fork(after_in_child=_forget)
    return runtime


def _forget() -> None:
    """A child that the user's code forks is no client: it shares no sockets with its parent."""
    from roost.actor._runtime import set_runtime

    here = runtime_if_started()
    if isinstance(here, ClientRuntime):
        atexit.unregister(here._at_exit)
        _kept.append(here)
        set_runtime(None)


_kept: list[Any] = []


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Stops what the program owns, as at its end. Afterwards nothing of roost works in this process.

    Args:
        host_timeout: seconds that processes get to end by themselves.

    Raises:
        ValueError: the timeout is negative.
    """
    from roost.actor._future import Future, Promise

    if host_timeout is not None and (host_timeout < 0 or host_timeout != host_timeout):
        raise ValueError(f"host_timeout is a number of seconds, not {host_timeout!r}")
    here = runtime_if_started()
    if not isinstance(here, ClientRuntime):
        return Future._done()
    promise = Promise()

    def work() -> None:
        try:
            here.shutdown(here.stop_grace_s if host_timeout is None else host_timeout)
            promise.set()
        except BaseException as error:
            promise.set(error=error)

    threading.Thread(target=work, name="roost-shutdown", daemon=True).start()
    return Future._of(promise)
