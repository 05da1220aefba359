"""Futures: waited for from anywhere, as often as one likes, and never lost."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from roost.actor import Actor, Future, ProcMesh, concurrent_endpoint, endpoint, returns_future

from .conftest import eventually


class Worker(Actor):
    def __init__(self) -> None:
        self.begun: list[int] = []

    @endpoint
    def rest(self, seconds: float, value: Any = None) -> Any:
        time.sleep(seconds)
        return value

    @endpoint
    def begin(self, number: int) -> int:
        self.begun.append(number)
        return number

    @endpoint
    def all_begun(self) -> list[int]:
        return self.begun

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)


@pytest.fixture
def worker(procs: ProcMesh) -> Any:
    return procs.slice(gpus=0).spawn("worker", Worker)


def test_a_timeout_consumes_nothing(worker: Any) -> None:
    future = worker.rest.call_one(0.5, "late")
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        future.get(timeout=0.05)
    assert not future.done()
    assert future.get() == future.result(timeout=1) == "late"
    assert future.done()


@pytest.mark.parametrize("timeout", [-1, math.inf, math.nan])
def test_an_invalid_timeout_is_a_value_error(worker: Any, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        worker.rest.call_one(0.2).get(timeout=timeout)


def test_a_timeout_of_another_type_is_a_type_error(worker: Any) -> None:
    with pytest.raises(TypeError, match="seconds"):
        worker.rest.call_one(0.2).get(timeout="1")


def test_exception_returns_what_get_would_raise(worker: Any) -> None:
    future = worker.fail.call_one("no")
    assert isinstance(future.exception(timeout=20), ValueError)
    assert worker.begin.call_one(1).exception() is None
    with pytest.raises(ValueError, match="no"):
        future.get()


def test_a_future_is_not_made_by_users_and_does_not_travel(worker: Any) -> None:
    with pytest.raises(TypeError):
        Future()
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(worker.begin.call_one(1))


def test_the_call_is_sent_whether_or_not_anybody_waits(worker: Any) -> None:
    worker.begin.call_one(7)
    assert worker.all_begun.call_one().get() == [7]


def test_many_threads_wait_for_one_future(worker: Any) -> None:
    future = worker.rest.call_one(0.3, "all")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: future.get(timeout=20), range(8))) == ["all"] * 8


def test_await_works_in_any_loop_and_again(worker: Any) -> None:
    future = worker.rest.call_one(0.1, 5)

    async def wait() -> Any:
        return await future, await future

    assert asyncio.run(wait()) == (5, 5)
    assert asyncio.run(wait()) == (5, 5)
    assert future.get() == 5


def test_loops_in_several_threads_wait_for_one_future(worker: Any) -> None:
    future = worker.rest.call_one(0.3, 5)

    async def wait() -> Any:
        return await future

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: asyncio.run(wait()), range(4))) == [5] * 4


def test_gather_and_wait_for_work(worker: Any) -> None:
    async def run() -> None:
        assert await asyncio.gather(*(worker.begin.call_one(n) for n in range(20))) == list(range(20))
        slow = worker.rest.call_one(0.5, "slow")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(slow, 0.05)
        assert await slow == "slow"

    asyncio.run(run())


def test_as_asyncio_is_a_fresh_future_of_the_loop(worker: Any) -> None:
    async def run() -> None:
        future = worker.rest.call_one(0.2, 1)
        first, second = future.as_asyncio(), future.as_asyncio()
        first.cancel()
        assert await second == 1
        assert isinstance(second, asyncio.Future)
        with pytest.raises(ValueError, match="no"):
            await worker.fail.call_one("no").as_asyncio()

    asyncio.run(run())
    with pytest.raises(RuntimeError, match="event loop"):
        worker.begin.call_one(1).as_asyncio()


def test_get_in_a_running_loop_warns(worker: Any) -> None:
    async def run() -> Any:
        with pytest.warns(UserWarning, match="await"):
            return worker.rest.call_one(0.2, 3).get()

    assert asyncio.run(run()) == 3


def test_a_cancelled_call_is_not_begun_and_its_waiters_are_told(worker: Any) -> None:
    blocker = worker.rest.call_one(0.5)
    doomed = worker.begin.call_one(1)
    waiter = ThreadPoolExecutor(1).submit(doomed.exception, 20)
    eventually(waiter.running)
    assert doomed.cancel()
    assert isinstance(waiter.result(20), asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        doomed.get()
    blocker.get()
    assert not blocker.cancel()
    assert worker.all_begun.call_one().get() == []


def test_done_callbacks_run_once_for_results_and_errors(worker: Any) -> None:
    seen: list[Any] = []
    done = threading.Event()

    def note(future: Any) -> None:
        seen.append(future)
        if len(seen) == 3:
            done.set()

    slow, bad = worker.rest.call_one(0.2), worker.fail.call_one("no")
    slow.add_done_callback(note)
    bad.add_done_callback(note)
    slow.get()
    slow.add_done_callback(note)
    assert done.wait(20)
    assert seen.count(slow) == 2
    assert isinstance(bad.exception(), ValueError)


def test_an_error_that_nobody_looked_at_is_logged_once(worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    future = worker.fail.call_one("overlooked")
    eventually(future.done)
    with caplog.at_level(logging.ERROR, "roost"):
        del future
        gc.collect()
        looked_at = worker.fail.call_one("seen")
        looked_at.exception()
        del looked_at
        gc.collect()
    assert [record.message.count("overlooked") > 0 for record in caplog.records] == [True]


def keep_until_done(worker: Any) -> None:
    future = worker.fail.call_one("overlooked")
    eventually(future.done)


def drop_at_once(worker: Any) -> None:
    worker.fail.call_one("overlooked")


def drop_while_it_waits_in_the_queue(worker: Any) -> None:
    worker.rest.call_one(0.2)
    worker.fail.call_one("overlooked")


def give_up_in_time(worker: Any) -> None:
    worker.rest.call_one(0.2)
    future = worker.fail.call_one("overlooked")
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)


def chosen(worker: Any) -> None:
    worker.fail.choose("overlooked")


def in_a_loop(worker: Any) -> None:
    async def run() -> None:
        worker.fail.call_one("overlooked")
        await worker.begin.call_one(1)

    asyncio.run(run())


OVERLOOKS = [
    keep_until_done,
    drop_at_once,
    drop_while_it_waits_in_the_queue,
    give_up_in_time,
    chosen,
    in_a_loop,
]


@pytest.mark.parametrize("overlook", OVERLOOKS, ids=lambda overlook: overlook.__name__)
def test_an_error_is_logged_however_it_was_overlooked(
    worker: Any, caplog: pytest.LogCaptureFixture, overlook: Callable[[Any], None]
) -> None:
    with caplog.at_level(logging.ERROR, "roost"):
        overlook(worker)
        gc.collect()
        worker.begin.call_one(1).get(timeout=20)
        eventually(lambda: caplog.records, "it is logged")
        worker.begin.call_one(2).get(timeout=20)
        gc.collect()
    [record] = caplog.records
    assert "overlooked" in record.getMessage()
    assert "Actor call worker" in record.getMessage()
    assert "in fail" in record.getMessage()


def look(worker: Any) -> None:
    worker.fail.call_one("looked at").exception(timeout=20)


def partly(worker: Any) -> None:
    worker.fail.options(partial=True).call("looked at").get(timeout=20)


def in_a_callback(worker: Any) -> None:
    seen: list[Any] = []
    worker.fail.call_one("looked at").add_done_callback(lambda future: seen.append(future.exception()))
    eventually(lambda: seen)


def gathered(worker: Any) -> None:
    async def run() -> None:
        await asyncio.gather(*(worker.fail.call_one("looked at") for _ in range(3)), return_exceptions=True)

    asyncio.run(run())


def cancelled(worker: Any) -> None:
    worker.rest.call_one(0.1)
    worker.fail.call_one("looked at").cancel()


def streamed(worker: Any) -> None:
    for future in worker.fail.stream("looked at"):
        future.exception(timeout=20)


@pytest.mark.parametrize(
    "looks",
    [look, partly, in_a_callback, gathered, cancelled, streamed],
    ids=lambda one: one.__name__,
)
def test_an_error_that_was_looked_at_is_not_logged(
    worker: Any, caplog: pytest.LogCaptureFixture, looks: Callable[[Any], None]
) -> None:
    with caplog.at_level(logging.ERROR, "roost"):
        looks(worker)
        gc.collect()
        worker.begin.call_one(1).get(timeout=20)
        gc.collect()
    assert caplog.records == []


class Lazy:
    @returns_future
    async def double(self, value: int) -> int:
        await asyncio.sleep(0)
        return 2 * value


def test_returns_future_makes_a_future_of_a_coroutine_function() -> None:
    async def wait() -> int:
        future = Lazy().double(3)
        return await future + await future

    assert Lazy().double(2).get() == 4
    assert asyncio.run(wait()) == 12


def test_futures_of_an_overlapping_actor_end_in_any_order(procs: ProcMesh) -> None:
    class Overlapping(Actor):
        @concurrent_endpoint
        async def rest(self, seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

    mesh = procs.slice(gpus=1).spawn("o", Overlapping)
    long, short = mesh.rest.call_one(1.0), mesh.rest.call_one(0.0)
    assert short.get() == 0.0
    assert not long.done()
    assert long.get() == 1.0
