"""Many calls leave nothing behind; many processes work."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import psutil
import pytest

from roost.actor import Channel, ProcMesh, this_host

from .servants import AsyncServant, Servant, Used, used

SLACK = Used(fds=4, threads=3, private_mib=24.0)


def assert_no_more(before: Used, after: Used) -> None:
    """What a process uses is what it used before, but for the slack."""
    for name, was, now, slack in zip(Used._fields, before, after, SLACK, strict=True):
        assert now <= was + slack, name


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
        mesh.slice(gpus=0).emit.broadcast(port, *range(50))
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
    before = [used(), *mesh.used.call().get().values()]
    work(procs, mesh, overlapping, calls)
    after = [used(), *mesh.used.call().get().values()]
    for process_before, process_after in zip(before, after, strict=True):
        assert_no_more(process_before, process_after)
    procs.stop().get()


def test_spawning_and_stopping_leaves_nothing_behind() -> None:
    def once() -> None:
        procs = this_host().spawn_procs({"gpus": 2})
        assert procs.spawn("servants", Servant).echo.call(1).get().values() == [1, 1]
        procs.stop().get()

    for _ in range(3):
        once()
    before, [agent] = used(), psutil.Process().children()
    agent_fds, agent_children = agent.num_fds(), agent.children()
    for _ in range(15):
        once()
    after = used()
    assert_no_more(before, after)
    assert agent.num_fds() <= agent_fds + SLACK.fds
    assert agent.children() == agent_children


@pytest.mark.timeout(300)
def test_sixty_four_processes() -> None:
    procs = this_host().spawn_procs({"hosts": 8, "gpus": 8})
    mesh = procs.spawn("servants", Servant)
    assert len(set(mesh.pid.call().get(timeout=120).values())) == 64
    pids = mesh.slice(hosts=4).pid.call().get(timeout=120).values()
    assert mesh.slice(hosts=3).pids_of.call(mesh.slice(hosts=4)).get(timeout=120).values() == [pids] * 8
    procs.stop().get(timeout=120)
