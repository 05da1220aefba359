"""The host agent: starts, watches and ends the processes of one host.

It is one thread, so that it may fork: a new process begins with everything imported that it needs. It holds a
link with each process, makes the links between them, reads what they print (also the last words of one that
crashes), and says why one has ended. When the program that started it is gone, it kills all and leaves.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

from roost import _core, config
from roost.actor._door import Door
from roost.actor._memory import MemoryWatch
from roost.actor._reports import host_name

OBITUARY = 7
_TAIL_BYTES = 4096
_MOST_READ = 64 << 10
_LOOK_EVERY_S = 1.0
_CROWD = 4
"""Processes of one mesh for each core, above which they are scheduled for throughput."""


class Child:
    """A process that this agent has started."""

    def __init__(self, pid: int, proc: tuple[int, int], spec: dict[str, Any], pipes: list[int]) -> None:
        self.pid = pid
        self.proc = proc
        self.owner: tuple[int, int] = tuple(spec["owner"])
        self.log_target = (tuple(spec["root"]), spec["log_box"])
        self.name: str = spec["name"]
        self.pipes = pipes
        self.tail = b""
        self.stopping: str | None = None
        self.kill_at: float | None = None
        self.frozen_since: float | None = None
        self.started = time.monotonic()
        self.is_there = False
        self.killed = ""


class Agent:
    """The agent's loop and its children."""

    def __init__(
        self, me: tuple[int, int], client: tuple[int, int] | None, client_socket: int | None
    ) -> None:
        self.me = me
        self.client = client
        self.node = _core.Node(me, None, 64 << 20)
        self.system = self.node.open_box(0)
        self.children: dict[int, Child] = {}
        self.by_proc: dict[tuple[int, int], Child] = {}
        self.pipes: dict[int, tuple[Child, int]] = {}
        self.poller = select.epoll()
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.poller.register(self.wake_read, select.EPOLLIN)
        self.poller.register(self.node.fileno(), select.EPOLLIN)
        if client is not None and client_socket is not None:
            self.node.adopt(client, client_socket)
        self.door = Door(self)
        self.targets: dict[Any, Any] = {}
        self.unloaded = list(_WHEN_IDLE)
        self.next_look = 0.0
        self.memory = MemoryWatch()

    def run(self) -> None:
        """Serves until the client is gone, or the host is told to end."""
        while True:
            self.node.poll()
            # Until there are none: a link that is adopted is read at once, and no event tells of that.
            while messages := self.system.take(256, 0.0):
                for message in messages:
                    try:
                        self.handle(message)
                    except Exception:
                        traceback.print_exc()  # the other processes of this host still need their agent
            self.reap()
            self.kill_late()
            self.look_after()
            ready = self.poller.poll(0.0 if self.unloaded else self._timeout())
            if self.unloaded and not ready:
                importlib.import_module(self.unloaded.pop())
            for fd, _ in ready:
                if fd == self.wake_read:
                    os.read(fd, 4096)
                elif fd in self.pipes:
                    self.read_pipe(fd)
                else:
                    self.door.is_woken_by(fd)
            if self.door.ending is not None:
                self.leave(self.door.ending)

    def _timeout(self) -> float:
        times = [child.kill_at for child in self.children.values() if child.kill_at is not None]
        return 1.0 if not times else max(0.0, min(1.0, min(times) - time.monotonic()))

    def handle(self, message: Any) -> None:
        """One request, or the end of a link."""
        kind, meta, body, buffers, _, source = message
        sender = (source[0], source[1])
        if kind == OBITUARY:
            if sender == self.client:
                self.leave("the program has ended")
            elif sender not in self.by_proc:
                self.door.ended(sender)
            return
        if meta == b"start":
            self.start(pickle.loads(body, buffers=buffers or ()))
        elif meta == b"end":
            self.end(json.loads(bytes(body)))
        elif meta == b"ready":
            if sender in self.by_proc:
                self.by_proc[sender].is_there = True
        elif meta == b"flushed?":
            self.drain_pipes()
            message[4].reply(0, b"")
        else:
            self.door.handle(bytes(meta), message)

    # -- starting ---------------------------------------------------------------------------------------

    def start(self, spec: dict[str, Any]) -> None:
        """Starts the processes of one mesh on this host."""
        spec = {**self.door.localise(spec), "address": self.door.address}
        sys.path[:] = spec["path"]
        config.inherit(spec["config"])
        for module in spec["preload"]:
            if module not in sys.modules:
                try:
                    importlib.import_module(module)
                except Exception as error:
                    print(f"roost: could not preload {module}: {error}", file=sys.stderr)
        gc.collect()
        gc.freeze()
        for number, rank in enumerate(spec["ranks"]):
            try:
                self._start_one(spec, number, rank)
            except OSError as error:
                told = {"pid": 0, "host": host_name(), "why": f"could not be started: {error}"}
                proc = (spec["mesh"], rank)
                self.node.publish_obituary(proc, tuple(spec["owner"]), json.dumps(told).encode())

    def _start_one(self, spec: dict[str, Any], number: int, rank: int) -> None:
        proc = (spec["mesh"], rank)
        own = {**spec, "number": number}
        command = spec["commands"][number]
        if isinstance(command, str):
            raise OSError(command)
        with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            given.callback(theirs.close)
            pipes, ends = [], []
            for _ in range(2):
                read, write = os.pipe2(os.O_CLOEXEC)
                pipes.append(read)
                ends.append(write)
                kept.callback(os.close, read)
                given.callback(os.close, write)
            if command is None:
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    _become_worker(own, rank, self.me, parent, theirs, *ends)
            else:
                pid = _run_command(own, rank, self.me, command, theirs, *ends)
            kept.pop_all()
        child = Child(pid, proc, spec, pipes)
        self.children[pid] = child
        self.by_proc[proc] = child
        for which, fd in enumerate(pipes, 1):
            os.set_blocking(fd, False)
            self.pipes[fd] = (child, which)
            self.poller.register(fd, select.EPOLLIN)
        self.node.adopt(proc, ours.detach())
        self.node.introduce(child.owner, proc)

    # -- output -----------------------------------------------------------------------------------------

    def read_pipe(self, fd: int) -> bool:
        """Hands on what a child has printed; false at the end."""
        child, which = self.pipes[fd]
        try:
            data = os.read(fd, _MOST_READ)
        except BlockingIOError:
            return False
        if not data:
            self.close_pipe(fd)
            return False
        if which == 2:
            child.tail = (child.tail + data)[-_TAIL_BYTES:]
        self.hand_on(child, which, data)
        return True

    def hand_on(self, child: Child, which: int, data: bytes) -> None:
        """Sends what a child has printed to the program; nothing stands for the end."""
        key = child.log_target
        target = self.targets.get(key)
        if target is None:
            target = self.targets[key] = self.node.target(key[1], [key[0]])
        meta = json.dumps([which, child.proc[1], child.name, child.proc[0]]).encode()
        self.node.cast(target, meta, data)

    def close_pipe(self, fd: int) -> None:
        """Forgets a pipe."""
        child, which = self.pipes.pop(fd)
        self.hand_on(child, which, b"")
        self.poller.unregister(fd)
        os.close(fd)
        child.pipes.remove(fd)

    def drain_pipes(self) -> None:
        """Hands on everything that has been printed."""
        for fd in list(self.pipes):
            while fd in self.pipes and self.read_pipe(fd):
                pass

    # -- ending -----------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Says why children have ended."""
        while self.children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is not None:
                self.by_proc.pop(child.proc, None)
                self._bury(child, status)

    def _bury(self, child: Child, status: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # what the process itself has started
        for fd in list(child.pipes):
            while fd in self.pipes and self.read_pipe(fd):
                pass
            if fd in self.pipes:
                self.close_pipe(fd)
        told: dict[str, Any] = {"pid": child.pid, "host": host_name()}
        if os.WIFSIGNALED(status):
            told["signal"] = os.WTERMSIG(status)
            if told["signal"] == signal.SIGKILL and not child.killed:
                child.killed = self.memory.verdict(child.pid)
        else:
            told["exit_code"] = os.WEXITSTATUS(status)
        self.memory.forget(child.pid)
        told["stderr_tail"] = child.tail.decode(errors="replace")
        told["why"] = child.killed
        if child.stopping is not None and (child.killed or told.get("exit_code") == 0):
            told["expected"] = True
            told["why"] = child.killed or child.stopping
        self.node.publish_obituary(child.proc, child.owner, json.dumps(told).encode())
        for other in list(self.children.values()):
            if other.owner == child.proc:
                self._kill(other, "its owner's process has ended")

    def end(self, told: dict[str, Any]) -> None:
        """The processes of a mesh were asked to end; kills those that have not after a while."""
        for child in self.children.values():
            if child.proc[0] == told["mesh"]:
                child.stopping = told["reason"]
                child.kill_at = time.monotonic() + told["after_s"]

    def kill_late(self) -> None:
        """Kills what did not end in time."""
        now = time.monotonic()
        for child in list(self.children.values()):
            if child.kill_at is not None and child.kill_at <= now:
                child.kill_at = None
                self._kill(child, f"killed: it did not end in time ({child.stopping})")

    def look_after(self) -> None:
        """Ends processes that will answer nobody: stopped in their tracks, or never begun."""
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + _LOOK_EVERY_S
        patience_s, limit_s = config.get("mesh_proc_spawn_max_idle"), config.get("frozen_timeout")
        for child in list(self.children.values()):
            self.memory.look(child.pid)
            if not child.is_there and now - child.started >= patience_s:
                why = f"it had not reported {patience_s:g} s after its start, and was killed"
                self._kill(child, why, wanted=False)
            if not is_frozen(child.pid):
                child.frozen_since = None
            elif child.frozen_since is None:
                child.frozen_since = now
            elif now - child.frozen_since >= limit_s:
                why = f"it was frozen (SIGSTOP) for {limit_s:g} s, and was killed"
                self._kill(child, why, wanted=False)

    def _kill(self, child: Child, why: str, *, wanted: bool = True) -> None:
        child.killed = child.killed or why
        if wanted:
            child.stopping = child.stopping or why
        for kill in (os.killpg, os.kill):
            try:
                kill(child.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def leave(self, why: str) -> None:
        """The client is gone, or the host ends: nothing of it stays."""
        for child in list(self.children.values()):
            self._kill(child, why)
        for pid in list(self.children):
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue
        self.door.say_goodbye(why)
        os._exit(0)


def is_frozen(pid: int) -> bool:
    """Whether a process is stopped by a signal, and not by a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def _become_worker(
    spec: dict[str, Any],
    rank: int,
    agent: tuple[int, int],
    parent: int,
    link: socket.socket,
    out: int,
    err: int,
) -> None:
    """The life of a forked child. Never returns: the agent's stack below it must not go on."""
    code = 71
    try:
        if not _core.detach_process(parent):
            os._exit(code)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        fd = link.detach()
        _core.close_other_fds([fd])
        enter(spec, rank)
        from roost.actor._worker import run

        run(spec, rank, agent, fd)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def enter(spec: dict[str, Any], rank: int) -> None:
    """Makes the calling process what the spec says: environment, path, place, binding, name."""
    number = spec["number"]
    if spec["env"] is not None:
        os.environ.clear()
        os.environ.update(spec["env"])
    if spec["envs"] is not None:
        os.environ.update(spec["envs"][number])
    sys.path[:] = spec["path"]
    if spec["cwd"] is not None:
        with contextlib.suppress(OSError):
            os.chdir(spec["cwd"])
    if spec["bind"] is not None:
        from roost.actor._binding import bind

        bind(spec["bind"][number])
    if len(spec["ranks"]) > _CROWD * (os.cpu_count() or 1) and os.sched_getscheduler(0) == os.SCHED_OTHER:
        # Where processes crowd the cores, a woken one does not take the core from the one who sends to all of
        # them: each then wakes once for several messages (docs/design/001).
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    _core.set_process_name(f"{spec['name']}:{rank}")


def _for_command(spec: dict[str, Any]) -> dict[str, Any]:
    """What a process that was started by a command is told: its environment it has already."""
    return {**spec, "env": None, "envs": None, "commands": None}


def _run_command(
    spec: dict[str, Any],
    rank: int,
    agent: tuple[int, int],
    command: tuple[Any, ...],
    link: socket.socket,
    out: int,
    err: int,
) -> int:
    program, arg0, args, changes, inherits = command
    environment: dict[str, str] = dict(spec["env"]) if inherits else {}
    if spec["envs"] is not None:
        environment.update(spec["envs"][spec["number"]])
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    environment["ROOST_WORKER_FDS"] = "3,4"
    environment.setdefault("PYTHONPATH", os.pathsep.join(part for part in spec["path"] if part))
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, out, 1),
        (os.POSIX_SPAWN_DUP2, err, 2),
        (os.POSIX_SPAWN_DUP2, link.fileno(), 3),
    ]
    words = [arg0 or program, *args]
    # Its orders lie in memory that it may read or not: a pipe would make us wait for it.
    orders = os.memfd_create("roost-orders")
    try:
        with open(orders, "wb", closefd=False) as file:
            pickle.dump((_for_command(spec), rank, agent), file, 5)
        os.lseek(orders, 0, os.SEEK_SET)
        actions.append((os.POSIX_SPAWN_DUP2, orders, 4))
        return os.posix_spawnp(program, words, environment, file_actions=actions, setsid=True)
    finally:
        os.close(orders)


def main() -> None:
    """Entry point: descriptor of the client's link, own name, the client's name."""
    fd, me, client = int(sys.argv[1]), int(sys.argv[2], 16), int(sys.argv[3], 16)
    os.set_inheritable(fd, False)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _core.set_process_name("roost-agent")
    preload()
    Agent((me, 0), (client, 0), fd).run()


_AT_ONCE = (
    "roost.actor._worker",
    "roost.actor._runner_sync",
    "roost.actor._logs",
    "roost.actor._actor_mesh",
    "roost.actor._host_mesh",
    "roost.actor._calls",
    "logging",
    "weakref",
    "cloudpickle",
)
"""What every worker needs: imported once, before the first is forked."""
_WHEN_IDLE = ("roost.actor._runner_async", "traceback", "roost.actor._stream", "roost.actor._bells")
"""What many workers need: it is not worth keeping the first ones waiting for."""


def preload() -> None:
    """Imports what every worker needs, once."""
    for module in _AT_ONCE:
        importlib.import_module(module)
