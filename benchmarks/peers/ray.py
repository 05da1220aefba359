"""Ray."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import ray

from benchmarks.workloads import Call, call_others


class Server:
    def ping(self) -> None: ...

    def echo(self, value: Any) -> Any:
        return value

    def first(self, array: Any) -> float:
        return float(array[0])

    def hang(self) -> None:
        time.sleep(60)

    def pid(self) -> int:
        return os.getpid()

    def call_other(self, other: Any, count: int) -> tuple[float, float]:
        return call_others(other.ping.remote, ray.get, count)


class AsyncServer:
    async def ping(self) -> None: ...


class Peer:
    def __init__(self) -> None:
        self._started = False

    def spawn(self, count: int, kind: str = "sync") -> Any:
        if not self._started:
            ray.init(num_cpus=64, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            self._started = True
        cls = ray.remote(num_cpus=1, max_restarts=0)(Server if kind == "sync" else AsyncServer)
        actors = [cls.remote() for _ in range(count)]
        ray.get([actor.ping.remote() for actor in actors])
        return actors

    def one(self, actors: Any, index: int, method: str) -> Call:
        return getattr(actors[index], method).remote  # type: ignore[no-any-return]

    def reference(self, actors: Any, index: int) -> tuple[Any, ...]:
        return (actors[index],)

    def all(self, actors: Any, method: str) -> Call:
        methods = [getattr(actor, method).remote for actor in actors]
        return lambda *args: [method(*args) for method in methods]

    def cast(self, actors: Any, method: str) -> Call:
        return self.all(actors, method)

    def share(self, value: Any) -> Any:
        """Put into the object store once, as its users do with what many actors get."""
        return ray.put(value)

    def get(self, future: Any) -> Any:
        return ray.get(future)

    def get_all(self, future: Any) -> Any:
        return ray.get(future)
