"""Making this machine a host that programs elsewhere may attach."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from roost.actor._addresses import is_loopback, resolve, split
from roost.actor._keys import find_key
from roost.errors import HostError

if TYPE_CHECKING:
    import socket
    import subprocess

_START_S = 60.0


class WorkerLoop:
    """A host that runs in a process of its own, as long as the program that has started it.

    Attributes:
        address: where it listens, as others have to dial it.
        pid: of its agent.
    """

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, address: str) -> None:
        self._process = process
        self._control = control
        self.address = address
        self.pid = process.pid

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end, and returns its exit status.

        Raises:
            TimeoutError: it still runs.
        """
        import subprocess

        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the host at {self.address} still runs") from None

    def stop(self) -> None:
        """Ends it, and everything that it runs."""
        self._control.close()
        self._process.wait()

    def __repr__(self) -> str:
        return f"<WorkerLoop {self.address}>"


def order(address: str, ca: object, private_key: object, *, once: bool) -> dict[str, Any]:
    """What a host has to know to serve.

    Raises:
        PermissionError: others can reach the address, and there is no key.
        ValueError: it is no address.
    """
    bind, advertised = split(address)
    real = resolve(bind)
    if advertised is None and not is_loopback(bind) and real.partition("://")[2].startswith("0.0.0.0:"):
        import socket

        advertised = f"tcp://{socket.gethostname()}:{real.rpartition(':')[2]}"
    key = find_key([bind], ca, private_key)
    return {"bind": real, "advertised": advertised, "key": key, "once": once}


def start_worker_loop_forever(
    *, address: str = "tcp://127.0.0.1:0", ca: object = None, private_key: object = None
) -> WorkerLoop:
    """Makes this machine a host, in the background. Returns once it listens.

    Args:
        address: ``tcp://HOST:PORT`` (port 0: any that is free), ``unix:///PATH``, or ``ADVERTISED@BIND``.
        ca: a cluster key other than this user's; see `attach_to_workers`.
        private_key: see `attach_to_workers`.

    Returns:
        The host, with its address. It ends with this program.

    Raises:
        HostError: it cannot listen there.
        PermissionError: others can reach the address, and there is no cluster key.
    """
    return _start(order(address, ca, private_key, once=False))


def _start(told: dict[str, Any]) -> WorkerLoop:
    import socket
    import subprocess

    ours, theirs = socket.socketpair()
    code = "from roost.actor._door import main; main()"
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,
        )
    ours.sendall(json.dumps(told).encode() + b"\n")
    ours.settimeout(_START_S)
    with ours.makefile("rb") as answers:
        line = answers.readline()
    answer = json.loads(line) if line else {"error": f"its process ended with status {process.wait()}"}
    if "error" in answer:
        ours.close()
        process.wait()
        raise HostError(told["bind"], "listen", answer["error"])
    return WorkerLoop(process, ours, answer["listening"])


def run_worker_loop_forever(*, address: str, ca: object = None, private_key: object = None) -> None:
    """Makes this machine a host, and serves one program after another. Blocks until a program shuts it down.

    Args:
        address: where to listen; see `start_worker_loop_forever`.
        ca: a cluster key other than this user's; see `attach_to_workers`.
        private_key: see `attach_to_workers`.

    Raises:
        HostError: it cannot listen there.
        PermissionError: others can reach the address, and there is no cluster key.
    """
    _block(_start(order(address, ca, private_key, once=False)))


def run_worker_loop_until_shutdown(*, address: str, ca: object = None, private_key: object = None) -> None:
    """As `run_worker_loop_forever`, for one program: ends also when that program does."""
    _block(_start(order(address, ca, private_key, once=True)))


def _block(loop: WorkerLoop) -> None:
    try:
        loop.wait()
    finally:
        loop.stop()
