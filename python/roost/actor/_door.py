"""The host agent's door to other hosts: it listens, dials, and looks after programs from elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from roost import _core, config
from roost.actor._reports import host_name

if TYPE_CHECKING:
    from roost.actor._agent import Agent

_OWN = {
    "HOME",
    "HOSTNAME",
    "LOGNAME",
    "PWD",
    "ROOST_HOST_NAME",
    "ROOST_KEY",
    "SHELL",
    "TMPDIR",
    "USER",
    "XDG_RUNTIME_DIR",
}
"""Variables that say something of a host, not of a program: processes keep those of their own host."""
_OWN_PREFIXES = ("CUDA_VISIBLE", "SLURM_", "SSH_", "XDG_SESSION")
_TOKEN = 1
_FAREWELL_S = 1.0


class Door:
    """What an agent has to do with other hosts. It costs nothing until the first is dealt with."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.address = ""
        self.once = False
        self.ending: str | None = None
        self.control: socket.socket | None = None
        self.bell: Any = None
        self.key: str | None = None
        self._dials: dict[int, Any] = {}
        self._served = False
        self._environment = dict(os.environ)
        self._path = list(sys.path)
        self._config = config.snapshot()

    # -- opening -----------------------------------------------------------------------------------------

    def open(self, key: str | None, name: str, pulse: tuple[float, float, float]) -> None:
        """Makes the agent ready to deal with other hosts. From now on a thread of the core, which never runs
        Python, keeps the sessions alive while the agent imports or forks."""
        node = self.agent.node
        node.configure_hosts(name, *pulse, key if key != self.key else None)
        self.key = key or self.key
        if self.bell is None:
            self.bell = _core.Bell()
            self.agent.poller.unregister(node.fileno())
            self.agent.poller.register(self.bell.fileno(), 1)
            self.agent.system.read_by_loop(self.bell, _TOKEN)
            warnings.filterwarnings("ignore", "This process.*is multi-threaded", DeprecationWarning)
            node.start_backup()

    def listen(self, bind: str, advertised: str | None, key: str | None) -> str:
        """Listens; returns the address for others."""
        self.open(key, "", pulse())
        real = self.agent.node.listen(bind)
        if advertised is None:
            advertised = real
        elif advertised.endswith(":0"):
            advertised = advertised[:-1] + real.rpartition(":")[2]
        self.address = advertised
        self.open(None, shown(advertised), pulse())
        return advertised

    def try_listen(self, order: dict[str, Any]) -> dict[str, Any]:
        """Listens; the address, or what stands against it."""
        try:
            return {"listening": self.listen(order["bind"], order["advertised"], order["key"])}
        except (OSError, ValueError) as error:
            return {"error": str(error)}

    def is_woken_by(self, fd: int) -> bool:
        """Whether a descriptor is of the door; answers it."""
        if self.bell is not None and fd == self.bell.fileno():
            self.bell.answer()
            return True
        if self.control is not None and fd == self.control.fileno():
            self.ending = "the program that had started this host has ended"
            return True
        return False

    # -- messages ----------------------------------------------------------------------------------------

    def handle(self, meta: bytes, message: Any) -> None:
        """A message that has to do with other hosts."""
        if meta == b"dial":
            self._dial(message)
        elif meta == b"dialled":
            self._dialled(bytes(message[2]).decode())
        elif meta == b"refused":
            source, why = bytes(message[2]).decode().split("\n", 1)
            print(f"roost: refused a connection from {source}: {why}", file=sys.stderr, flush=True)
        elif meta == b"listen":
            message[4].reply(0, json.dumps(self.try_listen(json.loads(bytes(message[2])))).encode())
        elif meta == b"shutdown":
            message[4].reply(0, b"")
            self.ending = f"the host was shut down: {bytes(message[2]).decode()}"

    def _dial(self, message: Any) -> None:
        told = json.loads(bytes(message[2]))
        number = len(self._dials) + 1 if not self._dials else max(self._dials) + 1
        try:
            self.open(told["key"], shown(self.address), tuple(told["pulse"]))
            self._dials[number] = message[4]
            self.agent.node.dial(number, told["address"])
        except (OSError, ValueError) as error:
            self._dials.pop(number, None)
            answer = {"agent": 0, "kind": "unreachable", "why": str(error)}
            message[4].reply(0, json.dumps(answer).encode())

    def _dialled(self, text: str) -> None:
        number, agent, kind, why = text.split("\n", 3)
        request = self._dials.pop(int(number), None)
        if request is not None:
            request.reply(0, json.dumps({"agent": int(agent, 16), "kind": kind, "why": why}).encode())

    # -- programs whose client is elsewhere -----------------------------------------------------------------

    def localise(self, spec: dict[str, Any]) -> dict[str, Any]:
        """What is to be started for a program on another host, as it has to be on this one."""
        if self.agent.client == tuple(spec["root"]):
            return spec
        self._served = True
        path = [*spec["path"], *(entry for entry in self._path if entry not in spec["path"])]
        environment = {name: value for name, value in spec["env"].items() if not _is_own(name)}
        environment |= {name: value for name, value in self._environment.items() if _is_own(name)}
        for name, value in self._environment.items():
            environment.setdefault(name, value)
        places = environment.get("PATH", "").split(os.pathsep)
        own = self._environment.get("PATH", "").split(os.pathsep)
        environment["PATH"] = os.pathsep.join([*places, *(place for place in own if place not in places)])
        return {**spec, "path": path, "env": environment}

    def ended(self, sender: tuple[int, int]) -> None:
        """A process of another host has ended, or a whole host: what belongs to it here goes with it."""
        agent = self.agent
        for child in list(agent.children.values()):
            if child.log_target[0] == sender:
                agent._kill(child, "the program has ended")
            elif child.owner == sender:
                agent._kill(child, "its owner's process has ended")
        for key in [key for key in agent.targets if key[0] == sender]:
            del agent.targets[key]
        if self._served and self.agent.client is None:
            stays = any(child.log_target[0] != sender for child in agent.children.values())
            if not stays:
                config.inherit(self._config)
                sys.path[:] = self._path
                if self.once and not agent.node.stats()["hosts"]:
                    self.ending = "its one program has ended"

    def say_goodbye(self, reason: str) -> None:
        """Tells other hosts that this one leaves, as far as they still listen."""
        if self.bell is None:
            return
        node = self.agent.node
        node.leave_hosts(reason)
        deadline = time.monotonic() + _FAREWELL_S
        while node.stats()["hosts"] and time.monotonic() < deadline:
            node.poll()
            time.sleep(0.002)


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith(_OWN_PREFIXES)


def shown(address: str) -> str:
    """What people call this host."""
    where = address.partition("://")[2] if address.startswith("tcp://") else ""
    name = os.environ.get("ROOST_HOST_NAME") or where.rpartition(":")[0].strip("[]") or host_name()
    return f"{name} ({address})" if address else name


def pulse() -> tuple[float, float, float]:
    """Seconds between signs of life, of silence after which a host is dead, and to try to connect."""
    dead = max(0.01, config.get("host_timeout"))
    return min(config.get("host_heartbeat_interval"), dead / 3), dead, config.get("host_connect_timeout")


def serve(order: dict[str, Any], control: socket.socket | None) -> None:
    """Listens, says where, and serves one program after another until told to stop. Never returns.

    Args:
        order: ``bind``, ``advertised``, ``key`` (text or None) and ``once``.
        control: where to say it, and whose end is ours too; without it the standard output.
    """
    from roost.actor._agent import Agent, preload
    from roost.actor._runtime import fresh_id

    _core.set_process_name("roost-host")
    agent = Agent((fresh_id(), 0), None, None)
    door = agent.door
    door.once = order["once"]
    told = door.try_listen(order)
    if control is not None:
        control.sendall(json.dumps(told).encode() + b"\n")
    elif "error" in told:
        print(f"roost: cannot listen at {order['bind']}: {told['error']}", file=sys.stderr)
    else:
        print(f"roost: listening at {told['listening']}", flush=True)
    if "error" in told:
        os._exit(1)

    def end(number: int, frame: object) -> None:
        door.ending = f"the host was stopped by {signal.Signals(number).name}"

    for number in (signal.SIGTERM, signal.SIGINT) if control is None else (signal.SIGTERM,):
        signal.signal(number, end)
    if control is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        door.control = control
        agent.poller.register(control.fileno(), 1)
    preload()
    agent.run()


def main() -> None:
    """Entry point of a host that another program has started: the descriptor of its orders."""
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    control = socket.socket(fileno=fd)
    with contextlib.closing(control.makefile("rb")) as orders:
        line = orders.readline()
    serve(json.loads(line), control)
