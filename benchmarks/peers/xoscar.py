"""xoscar, whose calls can only be awaited: the workloads once more, for event loops."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import xoscar as xo
from xoscar.backends.allocate_strategy import ProcessIndex

from benchmarks.workloads import MIB, SIZES, Metrics, p50, p99, pss_mib, scaled


class Server(xo.Actor):
    def ping(self) -> None: ...

    async def ping_later(self) -> None: ...

    def echo(self, value: Any) -> Any:
        return value

    def first(self, array: Any) -> float:
        return float(array[0])

    def hang(self) -> None:
        time.sleep(60)

    def pid(self) -> int:
        return os.getpid()

    async def call_other(self, address: str, uid: str, count: int) -> tuple[float, float]:
        other = await xo.actor_ref(address, uid)
        found = await _times(other.ping, count, 50)
        return p50(found) * 1e6, await _rate(
            lambda calls: asyncio.gather(*(other.ping() for _ in range(calls))), 2 * count
        )


async def _times(work: Callable[[], Awaitable[Any]], count: int, warm: int) -> list[float]:
    for _ in range(scaled(warm)):
        await work()
    found = []
    for _ in range(scaled(count)):
        started = time.perf_counter()
        await work()
        found.append(time.perf_counter() - started)
    return sorted(found)


async def _rate(work: Callable[[int], Awaitable[Any]], count: int) -> float:
    count = scaled(count)
    await work(max(1, count // 10))
    started = time.perf_counter()
    await work(count)
    return count / (time.perf_counter() - started)


async def _spawn(count: int) -> list[Any]:
    pool = await xo.create_actor_pool("127.0.0.1", n_process=count)
    place = pool.external_address
    refs = [
        await xo.create_actor(Server, address=place, uid=f"server{n}", allocate_strategy=ProcessIndex(n + 1))
        for n in range(count)
    ]
    await asyncio.gather(*(ref.ping() for ref in refs))
    return refs


async def messages() -> Metrics:
    refs = await _spawn(2)
    found: Metrics = {}
    for kind, ping in (("sync", refs[0].ping), ("async", refs[0].ping_later)):
        measured = await _times(ping, 1500, 200)
        found[f"call_one {kind} p50"], found[f"call_one {kind} p99"] = (
            p50(measured) * 1e6,
            p99(measured) * 1e6,
        )
    ping = refs[0].ping
    found["call_one pipelined"] = await _rate(lambda n: asyncio.gather(*(ping() for _ in range(n))), 4000)
    other = await refs[0].call_other(refs[1].address, refs[1].uid, scaled(1000))
    found["actor to actor p50"], found["actor to actor pipelined"] = other
    return found


async def meshes(count: int) -> Metrics:
    started = time.perf_counter()
    refs = await _spawn(count)
    found = {f"spawn {count}": (time.perf_counter() - started) * 1e3}

    async def call() -> None:
        await asyncio.gather(*(ref.ping() for ref in refs))

    found[f"mesh call {count} p50"] = p50(await _times(call, 1200 // count + 20, 5)) * 1e6
    if count in (4, 32):
        rate = await _rate(lambda n: asyncio.gather(*(call() for _ in range(n))), 4000 // count)
        found[f"mesh calls pipelined {count}"] = rate
    return found


async def payloads() -> Metrics:
    import numpy as np

    (ref,) = await _spawn(1)
    kinds: list[tuple[str, str, Any]] = [
        (name, "bytes", os.urandom(1024) * (size // 1024)) for name, size in SIZES.items()
    ]
    kinds += [(name, "array", np.ones(SIZES[name] // 8)) for name in ("1 MiB", "64 MiB", "256 MiB")]
    found: Metrics = {}
    for name, kind, value in kinds:
        measured = await _times(
            lambda value=value: ref.echo(value), max(5, min(300, 128 * MIB // SIZES[name])), 2
        )
        found[f"echo {kind} {name}"] = 2 * SIZES[name] / statistics.median(measured) / 1e9
    return found


async def one_to_many() -> Metrics:
    import numpy as np

    refs = await _spawn(8)
    array = np.ones(8 * MIB)
    measured = await _times(lambda: asyncio.gather(*(ref.first(array) for ref in refs)), 6, 2)
    return {"broadcast 64 MiB to 8": statistics.median(measured) * 1e3}


async def deaths() -> Metrics:
    (ref,) = await _spawn(1)
    pid = await ref.pid()
    memory = pss_mib(pid)
    waiting = asyncio.ensure_future(ref.hang())
    await asyncio.sleep(0.3)
    started = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        await waiting
    except Exception:
        return {"kill to exception": (time.perf_counter() - started) * 1e3, "worker memory": memory}
    return {"worker memory": memory}


GROUPS: dict[str, Callable[[], Any]] = {
    "messages": messages,
    **{f"mesh{count}": lambda count=count: meshes(count) for count in (1, 4, 16, 32)},  # type: ignore[misc]
    "payloads": payloads,
    "one_to_many": one_to_many,
    "deaths": deaths,
}
