"""Whatever is done a thousand times leaves descriptors, threads and memory as they were."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from roost.actor import Channel, ProcMesh, this_host

from .conftest import eventually
from .servants import AsyncServant, Servant, Used, used

SLACK = Used(fds=6, threads=4, private_mib=8.0)


class Scene:
    """Two processes with an actor each, apart from those of other tests."""

    def __init__(self, procs: ProcMesh) -> None:
        self.procs = procs
        self.both: Any = procs.spawn("servants", Servant)
        self.one: Any = self.both.slice(gpus=0)
        self.other: Any = self.both.slice(gpus=1)
        self.overlapping: Any = procs.slice(gpus=1).spawn("overlapping", AsyncServant)

    def used(self) -> list[Used]:
        return [used(), *self.both.used.call().get(timeout=20).values()]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    procs = this_host().spawn_procs({"gpus": 2})
    yield Scene(procs)
    procs.stop().get(timeout=20)


def calls(scene: Scene, count: int) -> None:
    for number in range(count):
        assert scene.one.echo.call_one(number).get() == number


def errors(scene: Scene, count: int) -> None:
    for _ in range(count):
        assert isinstance(scene.one.fail.call_one().exception(), ValueError)


def overlooked_errors(scene: Scene, count: int) -> None:
    for _ in range(count):
        scene.one.fail.call_one()
    scene.one.echo.call_one().get()


def dropped_futures(scene: Scene, count: int) -> None:
    for number in range(count):
        scene.both.echo.call(number)
        scene.both.echo.stream(number)
        scene.both.echo.choose(number)
    scene.both.echo.call().get()


def cancelled(scene: Scene, count: int) -> None:
    for _ in range(count):
        scene.both.echo.call(1).cancel()
    scene.both.echo.call().get()


def timed_out(scene: Scene, count: int) -> None:
    for _ in range(count):
        error = scene.one.echo.options(timeout=0).call_one(b"x" * 200).exception()
        assert error is None or isinstance(error, TimeoutError)  # who is first is chance
    scene.one.echo.call_one().get()


def watched_by_a_timer(scene: Scene, count: int) -> None:
    async def run() -> None:
        for _ in range(count):
            await scene.one.echo.options(timeout=3600).call_one()

    asyncio.run(run())


def big_messages(scene: Scene, count: int) -> None:
    value = np.ones(300_000)
    for _ in range(count // 10):
        assert scene.one.echo.call_one(value).get()[-1] == 1


def loops(scene: Scene, count: int) -> None:
    async def run() -> None:
        assert await scene.one.echo.call_one(1) == 1

    for _ in range(count // 5):
        asyncio.run(run())


def loops_that_give_up(scene: Scene, count: int) -> None:
    async def run(number: int) -> None:
        if number % 4 == 0:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(scene.one.never.call_one(), 0.001)
        elif number % 4 == 1:
            with pytest.raises(ValueError, match="expected"):
                await asyncio.gather(scene.one.fail.call_one(), scene.other.rest.call_one(0.001))
        elif number % 4 == 2:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(Channel[int].open()[1].recv(), 0.001)
        else:
            scene.other.rest.call_one(0.001).as_asyncio()

    for number in range(count // 5):
        asyncio.run(run(number))
    scene.one.forget.call_one().get()


def waits_given_up_in_one_loop(scene: Scene, count: int) -> None:
    _port, receiver = Channel[int].open()

    async def wait(future: Any) -> Any:
        return await future

    async def run() -> None:
        call = scene.one.never.call_one()
        for _ in range(count * 15):
            tasks = [asyncio.ensure_future(wait(future)) for future in (receiver.recv(), call)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await scene.one.forget.call_one()

    asyncio.run(run())


def threads(scene: Scene, count: int) -> None:
    for _ in range(count // 5):
        thread = threading.Thread(target=lambda: scene.one.echo.call_one(1).get())
        thread.start()
        thread.join()


def channels(scene: Scene, count: int) -> None:
    for number in range(count):
        port, receiver = Channel[int].open()
        scene.one.emit.broadcast(port, number)
        assert receiver.recv().get(timeout=20) == number
    assert scene.other.open_channels.call_one(count).get() == count * (count - 1) // 2


def abandoned_channels(scene: Scene, count: int) -> None:
    for number in range(count):
        scene.one.emit.broadcast(Channel[int].open()[0], number)
    scene.one.echo.call_one().get()


def relayed_ports(scene: Scene, count: int) -> None:
    for _ in range(count // 5):
        assert scene.one.answer_through.call_one(scene.other).get(timeout=20) == 1


def overlapping_calls(scene: Scene, count: int) -> None:
    assert scene.overlapping.ask.call_one(scene.both.slice(gpus=0), count).get(timeout=60) == count


def sync_actors(scene: Scene, count: int) -> None:
    for number in range(count // 5):
        mesh: Any = scene.procs.spawn("servant", Servant)
        assert mesh.echo.call(number).get(timeout=20).values() == [number] * 2
        mesh.stop().get(timeout=20)


def async_actors(scene: Scene, count: int) -> None:
    for number in range(count // 5):
        mesh: Any = scene.procs.spawn("servant", AsyncServant)
        assert mesh.echo.call(number).get(timeout=20).values() == [number] * 2
        mesh.stop().get(timeout=20)


def slices(scene: Scene, count: int) -> None:
    for number in range(count):
        assert scene.both.slice(gpus=number % 2).echo.call_one(1).get() == 1
        assert scene.both.rename(gpus=f"g{number % 50}").echo.choose(1).get() == 1


def processes(scene: Scene, count: int) -> None:
    for _ in range(count // 50):
        mesh = this_host().spawn_procs({"gpus": 2})
        assert mesh.spawn("servants", Servant).echo.call(1).get(timeout=20).values() == [1, 1]
        mesh.stop().get(timeout=20)


WORK: list[Callable[[Scene, int], None]] = [
    calls,
    errors,
    overlooked_errors,
    dropped_futures,
    cancelled,
    timed_out,
    watched_by_a_timer,
    big_messages,
    loops,
    loops_that_give_up,
    waits_given_up_in_one_loop,
    threads,
    channels,
    abandoned_channels,
    relayed_ports,
    overlapping_calls,
    sync_actors,
    async_actors,
    slices,
    processes,
]


@pytest.mark.parametrize(
    "work",
    WORK,
    ids=lambda work: work.__name__,
)
def test_nothing_is_left_behind(scene: Scene, work: Callable[[Scene, int], None]) -> None:
    work(scene, 500)  # what is made once and kept
    before = scene.used()
    work(scene, 1000)

    def excess() -> list[tuple[float, ...]]:
        after = scene.used()
        return [
            tuple(now - then - slack for now, then, slack in zip(one, other, SLACK, strict=True))
            for one, other in zip(after, before, strict=True)
        ]

    eventually(
        lambda: all(value <= 0 for process in excess() for value in process),
        f"{before}: {excess()}",
        within_s=5.0,
    )


def test_no_process_of_roost_is_left_but_those_in_use(scene: Scene) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    processes(scene, 200)
    eventually(lambda: {child.pid for child in psutil.Process().children(recursive=True)} <= before)
