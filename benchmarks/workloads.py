"""The workloads, once for all peers whose calls can be waited for in plain code.

A peer gives callables of its own framework (`Peer.one` and so on), which are called here as a user would.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

Metrics = dict[str, float]
Call = Callable[..., Any]

KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    "1 KiB": KIB,
    "64 KiB": 64 * KIB,
    "1 MiB": MIB,
    "16 MiB": 16 * MIB,
    "64 MiB": 64 * MIB,
    "256 MiB": 256 * MIB,
}


class Peer(Protocol):
    """What a framework is asked for. Actors have ``ping``, ``echo``, ``first``, ``hang``, ``pid``,
    ``stream`` and ``call_other``."""

    def spawn(self, count: int, kind: str = "sync") -> Any:
        """Starts so many processes with an actor each, and waits until each has answered."""

    def one(self, actors: Any, index: int, method: str) -> Call:
        """Sends to one actor; gives a future."""

    def all(self, actors: Any, method: str) -> Call:
        """Sends to all actors; gives something to wait for."""

    def cast(self, actors: Any, method: str) -> Call:
        """Sends to all actors, and wants no answer."""

    def reference(self, actors: Any, index: int) -> tuple[Any, ...]:
        """What another actor needs to call this one."""

    def get(self, future: Any) -> Any:
        """Waits for one answer."""

    def get_all(self, future: Any) -> Any:
        """Waits for all answers."""


def scaled(count: int) -> int:
    """Fewer repetitions when the run is only to show that it works."""
    return max(3, int(count * float(os.environ.get("BENCHMARKS_SCALE", "1"))))


def times(work: Callable[[], Any], count: int, warm: int) -> list[float]:
    """Seconds of each repetition, sorted."""
    for _ in range(scaled(warm)):
        work()
    found = []
    for _ in range(scaled(count)):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return sorted(found)


def p50(found: list[float]) -> float:
    return found[len(found) // 2]


def p99(found: list[float]) -> float:
    return found[int(len(found) * 0.99)]


def rate(work: Callable[[int], Any], count: int) -> float:
    """Repetitions a second of work that does so many at once."""
    count = scaled(count)
    work(max(1, count // 10))
    started = time.perf_counter()
    work(count)
    return count / (time.perf_counter() - started)


def pss_mib(pid: int) -> float:
    """A process's own share of its memory."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024


def messages(peer: Peer) -> Metrics:
    """Calls of one actor by the controller and by another actor; a stream to the controller."""
    found: Metrics = {}
    for kind in ("sync", "async"):
        actors = peer.spawn(2, kind)
        ping = peer.one(actors, 0, "ping")
        measured = times(lambda ping=ping: peer.get(ping()), 1500, 200)
        found[f"call_one {kind} p50"], found[f"call_one {kind} p99"] = (
            p50(measured) * 1e6,
            p99(measured) * 1e6,
        )
        if kind == "async":
            break

        def pipelined(count: int, ping: Call = ping) -> None:
            for future in [ping() for _ in range(count)]:
                peer.get(future)

        found["call_one pipelined"] = rate(pipelined, 4000)
        reference = peer.reference(actors, 1)
        other = peer.get(peer.one(actors, 0, "call_other")(*reference, scaled(1000)))
        found["actor to actor p50"], found["actor to actor pipelined"] = other
        if hasattr(peer, "stream"):
            found["port stream"] = rate(lambda count, actors=actors: peer.stream(actors, count), 8000)
    return found


def meshes(peer: Peer, count: int) -> Metrics:
    """Spawn, calls of all and broadcasts of a mesh of ``count``."""
    started = time.perf_counter()
    actors = peer.spawn(count)
    found = {f"spawn {count}": (time.perf_counter() - started) * 1e3}
    ping = peer.all(actors, "ping")
    found[f"mesh call {count} p50"] = p50(times(lambda: peer.get_all(ping()), 1200 // count + 20, 5)) * 1e6
    if count in (4, 32):

        def pipelined(calls: int) -> None:
            for future in [ping() for _ in range(calls)]:
                peer.get_all(future)

        found[f"mesh calls pipelined {count}"] = rate(pipelined, 4000 // count)
    cast = peer.cast(actors, "ping")

    def broadcasts(calls: int) -> None:
        for _ in range(calls):
            cast()
        peer.get_all(ping())

    found[f"broadcast {count}"] = rate(broadcasts, 6000 // count)
    return found


def payloads(peer: Peer) -> Metrics:
    """Echo of bytes, arrays and tensors: both ways count."""
    import numpy as np

    actors = peer.spawn(1)
    echo = peer.one(actors, 0, "echo")
    kinds: list[tuple[str, str, Any]] = [
        (name, "bytes", os.urandom(KIB) * (size // KIB)) for name, size in SIZES.items()
    ]
    kinds += [(name, "array", np.ones(SIZES[name] // 8)) for name in ("1 MiB", "64 MiB", "256 MiB")]
    if os.environ.get("BENCHMARKS_TORCH"):
        import torch

        kinds.append(("64 MiB", "tensor", torch.ones(16 * MIB)))
    found: Metrics = {}
    for name, kind, value in kinds:
        count = max(5, min(300, 256 * MIB // SIZES[name]))
        seconds = statistics.median(times(lambda value=value: peer.get(echo(value)), count, 3))
        found[f"echo {kind} {name}"] = 2 * SIZES[name] / seconds / 1e9
    return found


def one_to_many(peer: Peer) -> Metrics:
    """A large array to eight actors, until each has looked at it."""
    import numpy as np

    actors = peer.spawn(8)
    first = peer.all(actors, "first")
    array = np.ones(8 * MIB)
    share = getattr(peer, "share", lambda value: value)
    measured = times(lambda: peer.get_all(first(share(array))), 8, 3)
    return {"broadcast 64 MiB to 8": statistics.median(measured) * 1e3}


def deaths(peer: Peer) -> Metrics:
    """From the kill of a worker to the exception of the call that waits for it; a worker's memory before."""
    found, memory = [], []
    actors = peer.spawn(3)
    for index in range(3):
        pid = peer.get(peer.one(actors, index, "pid")())
        memory.append(pss_mib(pid))
        waiting = peer.one(actors, index, "hang")()
        time.sleep(0.2)
        started = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        try:
            peer.get(waiting)
        except Exception:
            found.append(time.perf_counter() - started)
    return {"kill to exception": statistics.median(found) * 1e3, "worker memory": statistics.median(memory)}


GROUPS: dict[str, Callable[[Peer], Metrics]] = {
    "messages": messages,
    "mesh1": lambda peer: meshes(peer, 1),
    "mesh4": lambda peer: meshes(peer, 4),
    "mesh16": lambda peer: meshes(peer, 16),
    "mesh32": lambda peer: meshes(peer, 32),
    "payloads": payloads,
    "one_to_many": one_to_many,
    "deaths": deaths,
}


def call_others(ping: Call, get: Call, count: int) -> tuple[float, float]:
    """Within an actor: median us of a call of another, and calls a second when many are under way."""
    found = []
    for _ in range(count + 50):
        started = time.perf_counter()
        get(ping())
        found.append(time.perf_counter() - started)
    started = time.perf_counter()
    for future in [ping() for _ in range(2 * count)]:
        get(future)
    return statistics.median(found[50:]) * 1e6, 2 * count / (time.perf_counter() - started)
