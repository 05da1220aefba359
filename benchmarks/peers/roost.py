"""roost."""

from __future__ import annotations

import os
import time
from typing import Any

import roost.actor
from benchmarks.workloads import Call, call_others
from roost.actor import Actor, Channel, Port, endpoint, this_host

roost.actor.unhandled_fault_hook = lambda failure: None


class Server(Actor):
    @endpoint
    def ping(self) -> None: ...

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def first(self, array: Any) -> float:
        return float(array[0])

    @endpoint
    def hang(self) -> None:
        time.sleep(60)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def stream(self, port: Port[int], count: int) -> None:
        for number in range(count):
            port.send(number)

    @endpoint
    def call_other(self, other: Any, count: int) -> tuple[float, float]:
        return call_others(other.ping.call_one, lambda future: future.get(), count)


class AsyncServer(Actor):
    @endpoint
    async def ping(self) -> None: ...


class Peer:
    def spawn(self, count: int, kind: str = "sync") -> Any:
        actors = (
            this_host()
            .spawn_procs({"gpus": count})
            .spawn("servers", Server if kind == "sync" else AsyncServer)
        )
        actors.ping.call().get()
        return actors

    def one(self, actors: Any, index: int, method: str) -> Call:
        return getattr(actors.slice(gpus=index), method).call_one  # type: ignore[no-any-return]

    def reference(self, actors: Any, index: int) -> tuple[Any, ...]:
        return (actors.slice(gpus=index),)

    def all(self, actors: Any, method: str) -> Call:
        return getattr(actors, method).call  # type: ignore[no-any-return]

    def cast(self, actors: Any, method: str) -> Call:
        return getattr(actors, method).broadcast  # type: ignore[no-any-return]

    def get(self, future: Any) -> Any:
        return future.get()

    def get_all(self, future: Any) -> Any:
        return future.get()

    def stream(self, actors: Any, count: int) -> None:
        port, receiver = Channel[int].open()
        actors.slice(gpus=0).stream.broadcast(port, count)
        for _ in range(count):
            receiver.recv().get()
