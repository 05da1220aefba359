"""Actors that own others, lose them, and end.

The classes are here and not beside their tests so that a new process need not import what tests import.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

from roost.actor import Actor, MeshFailure, Port, endpoint, this_host, this_proc


class Leaf(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def rest(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Owner(Actor):
    """Owns one mesh of leaves, on processes of its own or on those that it is given."""

    def __init__(self, procs: Any = None, handles: bool = True) -> None:
        self.handles = handles
        self.seen: list[str] = []
        self.procs = this_host().spawn_procs({"gpus": 2}) if procs is None else procs
        self.leaves = self.procs.spawn("leaves", Leaf)
        self.leaves.initialized.get()

    @endpoint
    def owned(self) -> Any:
        return self.leaves

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def reports(self) -> list[str]:
        return self.seen

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def stop_owned(self, what: str) -> None:
        (self.leaves if what == "actors" else self.procs).stop("by its owner").get()

    @endpoint
    def rest_with(self, rank: int, seconds: float) -> float:
        return self.leaves.slice(gpus=rank).rest.call_one(seconds).get()  # type: ignore[no-any-return]

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.seen.append(failure.report())
        return self.handles


class Nest(Actor):
    """Processes in processes in processes."""

    @endpoint
    def dig(self, depth: int) -> list[int]:
        if depth == 0:
            return [os.getpid()]
        self.inner: Any = this_host().spawn_procs({"gpus": 1}).spawn("nest", Nest)
        return [os.getpid(), *self.inner.slice(gpus=0).dig.call_one(depth - 1).get()]


class Middle(Actor):
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.leaf = this_proc().spawn("leaf", Leaf)

    @endpoint
    def fail_leaf(self) -> None:
        self.leaf.fail.broadcast("the first failure")

    def __supervise__(self, failure: MeshFailure) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Top(Actor):
    def __init__(self, answer: Any) -> None:
        self.seen: list[MeshFailure] = []
        self.middle = this_proc().spawn("middle", Middle, answer)

    @endpoint
    def start(self) -> None:
        self.middle.fail_leaf.call_one().get()

    @endpoint
    def reports(self) -> list[tuple[str, str]]:
        return [(failure.mesh_name, failure.report()) for failure in self.seen]

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.seen.append(failure)
        return True


class Replacing(Actor):
    """Spawns again what it has lost, from within ``__supervise__``."""

    def __init__(self) -> None:
        self.replaced = 0
        self.spawn()

    def spawn(self) -> None:
        self.leaf: Any = this_host().spawn_procs().spawn("leaf", Leaf)

    @endpoint
    def pid(self) -> tuple[int, int]:
        return self.leaf.pid.call_one().get(), self.replaced

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.spawn()
        self.leaf.pid.call_one().get()
        self.replaced += 1
        return True


class AsyncReplacing(Replacing):
    @endpoint
    async def pid(self) -> tuple[int, int]:
        return await self.leaf.pid.call_one(), self.replaced

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.spawn()
        await self.leaf.pid.call_one()
        self.replaced += 1
        return True


class Untidy(Actor):
    def __init__(self, port: Port[str], how: str) -> None:
        self.port, self.how = port, how

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self) -> None:
        raise ValueError("the first failure")

    def __cleanup__(self, exc: BaseException | None) -> None:
        self.port.send(f"cleaning up after {exc!r}")
        if self.how == "raise":
            raise ArithmeticError("in cleanup")
        if self.how == "exit":
            sys.exit("in cleanup")
        if self.how == "hang":
            threading.Event().wait(30)


class AsyncUntidy(Untidy):
    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def fail(self) -> None:
        raise ValueError("the first failure")

    async def __cleanup__(self, exc: BaseException | None) -> None:
        self.port.send(f"cleaning up after {exc!r}")
        if self.how == "hang":
            await asyncio.sleep(30)
        elif self.how != "fine":
            raise ArithmeticError("in cleanup")


class Mourner(Actor):
    """Owns two meshes, handles no failure, and tells at its end which of their processes still run."""

    def __init__(self, port: Port[list[int]]) -> None:
        self.port = port
        meshes = [this_host().spawn_procs({"gpus": 2}).spawn("leaves", Leaf) for _ in range(2)]
        self.owned_pids = [pid for mesh in meshes for pid in mesh.pid.call().get().values()]

    @endpoint
    def pids(self) -> list[int]:
        return self.owned_pids

    def __cleanup__(self, exc: BaseException | None) -> None:
        running = []
        for pid in self.owned_pids:
            try:
                with open(f"/proc/{pid}/stat") as file:
                    running += [pid] if file.read().rpartition(")")[2].split()[0] != "Z" else []
            except OSError:
                continue
        self.port.send(running)
