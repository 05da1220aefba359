"""Actors that die in many ways, and those that own them.

They are here and not beside their tests so that a new process need not import what tests import.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

from roost.actor import Actor, MeshFailure, SupervisionError, context, endpoint, this_host


class Mortal(Actor):
    @endpoint
    def ping(self) -> str:
        return "pong"

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    @endpoint
    def die(self, how: str) -> None:
        print("last words", file=sys.stderr, flush=True)
        if how == "exit":
            os._exit(13)
        if how == "sys.exit":
            sys.exit("leaving")
        if how == "segfault":
            ctypes.string_at(8)
        if how == "abort":
            os.abort()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def raise_here(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def abort(self, reason: str) -> None:
        context().actor_instance.abort(reason)

    @endpoint(explicit_response_port=True)
    def leak(self, port: Any) -> None:
        raise KeyError("leaked")


class Owner(Actor):
    """Owns a mesh of mortals on processes of its own."""

    def __init__(self, answer: Any, count: int = 1) -> None:
        self.answer = answer
        self.seen: list[tuple[str, int, str]] = []
        self.procs = this_host().spawn_procs({"gpus": count})
        self.mortals = self.procs.spawn("mortals", Mortal)

    @endpoint
    def mesh(self) -> Any:
        return self.mortals

    @endpoint
    def reports(self) -> list[tuple[str, int, str]]:
        return self.seen

    @endpoint
    def wait_for(self, rank: int, seconds: float) -> str:
        try:
            self.mortals.slice(gpus=rank).rest.call_one(seconds).get()
        except SupervisionError as error:
            return f"told: {error}"
        return "rested"

    @endpoint
    def respawn(self) -> str:
        self.mortals = self.procs.spawn("again", Mortal)
        return self.mortals.slice(gpus=0).ping.call_one().get()  # type: ignore[no-any-return]

    def __supervise__(self, failure: MeshFailure) -> Any:
        self.seen.append((failure.mesh_name, failure.rank, failure.report()))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class AsyncOwner(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.mortals = this_host().spawn_procs({"gpus": 2}).spawn("mortals", Mortal)

    @endpoint
    async def mesh(self) -> Any:
        return self.mortals

    @endpoint
    async def reports(self) -> list[int]:
        return self.seen

    @endpoint
    async def wait_for(self, rank: int) -> str:
        try:
            await self.mortals.slice(gpus=rank).rest.call_one(60.0)
        except SupervisionError:
            return f"told, and supervised {self.seen}"
        return "rested"

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.seen.append(failure.rank)
        return True


class Holder(Actor):
    """Takes response ports, and answers them or not."""

    def __init__(self) -> None:
        self.ports: list[Any] = []

    @endpoint(explicit_response_port=True)
    def keep(self, port: Any) -> None:
        self.ports.append(port)

    @endpoint(explicit_response_port=True)
    def drop(self, port: Any) -> None:
        """Answers never."""

    @endpoint(explicit_response_port=True)
    def hand_on(self, port: Any, other: Any) -> None:
        other.take.call_one(port).get()

    @endpoint
    def take(self, port: Any) -> None:
        self.ports.append(port)

    @endpoint
    def forget(self) -> int:
        count = len(self.ports)
        self.ports.clear()
        return count

    @endpoint
    def answer(self, value: Any) -> None:
        for port in self.ports:
            port.send(value)

    @endpoint
    def die(self) -> None:
        os._exit(3)

    @endpoint
    def ask(self, other: Any) -> str:
        try:
            other.keep.call_one().get()
        except SupervisionError as error:
            return type(error).__name__
        return "answered"
