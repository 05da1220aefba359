"""Actors that do a little work and tell what their process uses.

They are here and not beside their tests so that a new process need not import what tests import.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import Any, NamedTuple

from roost.actor import (
    Actor,
    Channel,
    Port,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
)


class Used(NamedTuple):
    """What a process holds."""

    fds: int
    threads: int
    private_mib: float


def used() -> Used:
    """What this process holds now. Memory that it shares with others is not counted."""
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in file if line.endswith("kB\n")}
    mib = (sizes["Private_Clean"] + sizes["Private_Dirty"]) / 1024
    return Used(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mib)


class Servant(Actor):
    """Answers, raises, sends."""

    def __init__(self) -> None:
        self.ports: list[Port[Any]] = []

    @endpoint
    def echo(self, value: Any = None) -> Any:
        return value

    @endpoint
    def fail(self) -> None:
        raise ValueError("expected")

    @endpoint
    def emit(self, port: Port[Any], *values: Any) -> None:
        for value in values:
            port.send(value)

    @endpoint(explicit_response_port=True)
    def answer_through(self, port: Port[Any], other: Any) -> None:
        other.emit.broadcast(port, 1)

    @endpoint(explicit_response_port=True)
    def never(self, port: Port[Any]) -> None:
        """Keeps its caller waiting until it is told to forget."""
        self.ports.append(port)

    @endpoint
    def forget(self) -> None:
        self.ports.clear()

    @endpoint
    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    @endpoint
    def open_channels(self, count: int) -> int:
        total = 0
        for number in range(count):
            port, receiver = Channel[int].open()
            port.send(number)
            total += receiver.recv().get(timeout=20)
        return total

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def pids_of(self, others: Any) -> list[int]:
        return others.pid.call().get().values()  # type: ignore[no-any-return]

    @endpoint
    def used(self) -> Used:
        return used()


class AsyncServant(Actor):
    """Answers in an event loop."""

    @concurrent_endpoint
    async def echo(self, value: Any = None) -> Any:
        await asyncio.sleep(0)
        return value

    @concurrent_endpoint
    async def ask(self, other: Any, count: int) -> int:
        return sum(await asyncio.gather(*(other.echo.call_one(1) for _ in range(count))))


class Ranked(Actor):
    """Tells its rank, and those of others."""

    @endpoint
    def told(self) -> tuple[int, dict[str, int], dict[str, int]]:
        return context().actor_instance.rank.rank, dict(current_rank()), current_size()

    @endpoint
    def ranks_of(self, other: Any) -> list[int]:
        return [rank for rank, _, _ in other.told.call().get().values()]
