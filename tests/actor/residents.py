"""Actors that tell where they live, and clean up when they leave.

They are here and not beside their tests so that a new process need not import what tests import.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from roost.actor import Actor, Port, context, endpoint, this_proc


class Plain(Actor):
    @endpoint
    def ping(self) -> str:
        return "pong"

    @endpoint
    def rest(self, seconds: float) -> str:
        time.sleep(seconds)
        return "rested"

    @endpoint
    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def about(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "cpus": sorted(os.sched_getaffinity(0)),
            "path": sys.path,
            "cwd": os.getcwd(),
            "executable": sys.executable,
        }


class Tidy(Actor):
    def __init__(self, port: Port[Any], name: str, depth: int = 0) -> None:
        self.port, self.name = port, name
        if depth:
            self.child = this_proc().spawn("child", Tidy, port, f"{name}.child", depth - 1)

    @endpoint
    def ping(self, seconds: float = 0) -> str:
        time.sleep(seconds)
        self.port.send(f"{self.name} handled")
        return "pong"

    @endpoint
    def fail(self) -> None:
        raise ValueError("on purpose")

    @endpoint
    def leave(self) -> None:
        context().actor_instance.stop("had enough")

    def __cleanup__(self, exc: BaseException | None) -> None:
        self.port.send(f"{self.name} cleaned up {type(exc).__name__}")


class AsyncTidy(Actor):
    def __init__(self, port: Port[Any]) -> None:
        self.port = port

    @endpoint
    async def ping(self) -> str:
        return "pong"

    async def __cleanup__(self, exc: BaseException | None) -> None:
        await asyncio.sleep(0.01)
        self.port.send(f"cleaned up {type(exc).__name__}")


def note_bootstrap(name: str) -> None:
    os.environ["NOTED"] = name


async def note_later(name: str) -> None:
    await asyncio.sleep(0.01)
    os.environ["NOTED"] = name
