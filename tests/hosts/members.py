"""Actors of the tests of hosts."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from roost.actor import (
    Actor,
    Channel,
    Port,
    context,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    this_host,
    this_proc,
)


class Member(Actor):
    """Does a little of everything."""

    def __init__(self) -> None:
        self.sum = 0
        self.seen: list[int] = []

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def parent(self) -> int:
        return os.getppid()

    @endpoint
    def rank(self) -> tuple[int, dict[str, int]]:
        point = current_rank()
        return point.rank, dict(point)

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def raises(self) -> None:
        raise KeyError("over there")

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def say(self, text: str) -> None:
        print(text)

    @endpoint
    def ask(self, other: Any) -> list[int]:
        return list(other.pid.call().get(timeout=30).values())

    @endpoint
    def note(self, number: int) -> int:
        self.seen.append(number)
        return number

    @endpoint
    def noted(self) -> list[int]:
        return self.seen

    @endpoint
    def send(self, port: Port[Any], values: list[Any]) -> None:
        for value in values:
            port.send(value)

    @endpoint
    def collect(self, other: Any, count: int) -> list[Any]:
        port, receiver = Channel.open()
        other.send.broadcast(port, ["a", "b"])
        return [receiver.recv().get(timeout=30) for _ in range(count)]

    @endpoint
    def open_port(self) -> Port[Any]:
        port, self.receiver = Channel.open()
        return port

    @endpoint
    def received(self, count: int) -> list[Any]:
        return [self.receiver.recv().get(timeout=30) for _ in range(count)]

    @endpoint
    def fill(self, size: int) -> np.ndarray:
        return np.full(size, 3, np.uint8)

    @endpoint
    def total(self, array: np.ndarray) -> int:
        return int(array.sum(dtype=np.int64))

    @endpoint
    def die(self, code: int) -> None:
        print("last words", file=sys.stderr, flush=True)
        os._exit(code)

    @endpoint
    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @endpoint
    def wait_for(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.01)

    @endpoint
    def breed(self) -> list[int]:
        self.procs = this_host().spawn_procs({"kids": 2})
        self.kids = self.procs.spawn("kids", Member)
        return list(self.kids.pid.call().get(timeout=30).values())

    @endpoint
    def offspring(self) -> Any:
        return self.kids

    @endpoint
    def me(self) -> Any:
        return this_proc()

    @endpoint
    def controller(self) -> int:
        return get_or_spawn_controller("the one", Counter).get(timeout=30).count.call_one().get(timeout=30)

    @endpoint
    def host(self) -> str:
        return str(context().actor_instance.proc_id)

    @endpoint
    def threads(self) -> int:
        return threading.active_count()


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @endpoint
    def count(self) -> int:
        self.value += 1
        return self.value
