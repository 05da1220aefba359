"""Many calls leave nothing behind; many processes work."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from typing import Any

import numpy as np
import psutil
import pytest

from roost.actor import Actor, Channel, Port, ProcMesh, concurrent_endpoint, endpoint, this_host
from roost.actor._runtime import runtime

SLACK_FDS, SLACK_THREADS, SLACK_MIB = 4, 3, 24


class Servant(Actor):
    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def fail(self) -> None:
        raise ValueError("expected")

    @endpoint
    def report(self, port: Port[int], count: int) -> None:
        for number in range(count):
            port.send(number)

    @endpoint
    def used(self) -> tuple[int, int, float]:
        return used()


class AsyncServant(Actor):
    @concurrent_endpoint
    async def echo(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value


def used() -> tuple[int, int, float]:
    """Descriptors, threads and MiB of this process."""
    gc.collect()
    runtime().node.trim()
    me = psutil.Process()
    return me.num_fds(), me.num_threads(), me.memory_full_info().pss / 2**20


def work(procs: ProcMesh, mesh: Any, overlapping: Any, calls: int) -> None:
    """So many calls, of all kinds."""
    random.seed(calls)
    array = np.ones(40_000)
    done = 0

    async def gather() -> None:
        answers = await asyncio.gather(*(overlapping.slice(gpus=n % 2).echo.call_one(n) for n in range(100)))
        assert answers == list(range(100))

    while done < calls:
        assert mesh.echo.call(done).get().values() == [done, done]
        futures = [mesh.slice(gpus=n % 2).echo.call_one(n) for n in range(200)]
        assert [future.get() for future in futures] == list(range(200))
        asyncio.run(gather())
        assert mesh.slice(gpus=0).fail.call_one().exception() is not None
        assert mesh.slice(gpus=1).echo.call_one(array).get().sum() == 40_000
        mesh.echo.broadcast(b"x" * random.randrange(100_000))
        mesh.echo.choose(1).cancel()
        port, receiver = Channel[int].open()
        mesh.slice(gpus=0).report.broadcast(port, 50)
        assert [receiver.recv().get() for _ in range(50)] == list(range(50))
        done += 2 + 200 + 100 + 1 + 1 + 2 + 1 + 1
    short = procs.spawn("short", Servant)
    assert short.echo.call(1).get().values() == [1, 1]
    short.stop().get()


@pytest.mark.parametrize(
    "calls", [5_000, pytest.param(200_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_many_calls_leave_nothing_behind(calls: int) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh, overlapping = procs.spawn("servants", Servant), procs.spawn("overlapping", AsyncServant)
    work(procs, mesh, overlapping, 3_000)
    calls_before = runtime().node.stats()["calls"]
    before = [used(), *mesh.used.call().get().values()]
    work(procs, mesh, overlapping, calls)
    after = [used(), *mesh.used.call().get().values()]
    for (fds, threads, mib), (fds_after, threads_after, mib_after) in zip(before, after, strict=True):
        assert fds_after <= fds + SLACK_FDS
        assert threads_after <= threads + SLACK_THREADS
        assert mib_after <= mib + SLACK_MIB
    assert runtime().node.stats()["calls"] < calls_before + 20
    procs.stop().get()


def test_spawning_and_stopping_leaves_nothing_behind() -> None:
    def once() -> None:
        procs = this_host().spawn_procs({"gpus": 2})
        assert procs.spawn("servants", Servant).echo.call(1).get().values() == [1, 1]
        procs.stop().get()

    for _ in range(3):
        once()
    before, agent = used(), psutil.Process(runtime().agent_pid)  # type: ignore[attr-defined]
    agent_fds, agent_children = agent.num_fds(), agent.children()
    for _ in range(15):
        once()
    after = used()
    assert after[0] <= before[0] + SLACK_FDS
    assert after[1] <= before[1] + SLACK_THREADS
    assert after[2] <= before[2] + SLACK_MIB
    assert agent.num_fds() <= agent_fds + SLACK_FDS
    assert agent.children() == agent_children


class Numbered(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def ask_all(self, others: Any) -> int:
        return len(set(others.pid.call().get().values()))


@pytest.mark.timeout(300)
def test_sixty_four_processes() -> None:
    procs = this_host().spawn_procs({"hosts": 8, "gpus": 8})
    mesh = procs.spawn("numbered", Numbered)
    assert len(set(mesh.pid.call().get(timeout=120).values())) == 64
    assert mesh.slice(hosts=3).ask_all.call(mesh.slice(hosts=4)).get(timeout=120).values() == [8] * 8
    procs.stop().get(timeout=120)
