"""Who gets the messages of a channel: threads, loops, several at once, and those who gave up."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from roost.actor import (
    Actor,
    Channel,
    Port,
    PortReceiver,
    ProcMesh,
    UndeliverableError,
    concurrent_endpoint,
    endpoint,
)

from .conftest import eventually


class Source(Actor):
    @endpoint
    def emit(self, port: Port[Any], *values: Any) -> None:
        for value in values:
            port.send(value)

    @endpoint
    def raise_into(self, port: Port[Any], error: BaseException) -> None:
        port.exception(error)

    @endpoint
    def rounds(self, port: Port[Any], count: int) -> int:
        """Hands a port of its own to the other side, and answers what comes by it."""
        own, receiver = Channel[int].open()
        port.send(own)
        total = 0
        for _ in range(count):
            total += receiver.recv().get(timeout=20)
        return total


class Sink(Actor):
    """Awaits the messages of its own channel while it handles other calls."""

    def __init__(self) -> None:
        self.port, self.receiver = Channel[int].open()
        self.got: list[int] = []

    @concurrent_endpoint
    async def run(self, count: int) -> list[int]:
        for _ in range(count):
            self.got.append(await self.receiver.recv())
        return self.got

    @concurrent_endpoint
    async def give_port(self) -> Port[int]:
        return self.port


@pytest.fixture(scope="module")
def source(procs: ProcMesh) -> Any:
    return procs.slice(gpus=3).spawn("source", Source)


async def bounded(future: Any, timeout_s: float = 5.0) -> Any:
    return await asyncio.wait_for(future, timeout_s)


def test_a_receiver_that_asks_for_ranks_lives_on_by_itself(source: Any) -> None:
    port, receiver = Channel[int].open()
    ranked = receiver.ranked()
    del receiver
    gc.collect()
    source.emit.call_one(port, 7).get(timeout=20)
    assert ranked.recv().get(timeout=5) == (0, 7)


def test_plain_and_ranked_receives_share_one_queue(source: Any) -> None:
    port, receiver = Channel[int].open()
    ranked = receiver.ranked()
    source.emit.call_one(port, 1, 2, 3).get(timeout=20)
    assert receiver.recv().get(timeout=5) == 1
    assert ranked.recv().get(timeout=5) == (0, 2)
    assert receiver.recv().get(timeout=5) == 3


@pytest.mark.parametrize("loops", [1, 2])
def test_several_wait_for_one_receive(source: Any, loops: int) -> None:
    port, receiver = Channel[int].open()
    future = receiver.recv()
    waiting = threading.Barrier(loops + 1, timeout=10)

    async def wait_all() -> list[int]:
        waiters = [asyncio.ensure_future(bounded(future)) for _ in range(3)]
        for _ in range(10):  # until each of them waits
            await asyncio.sleep(0)
        await asyncio.to_thread(waiting.wait)
        return await asyncio.gather(*waiters)

    with ThreadPoolExecutor(loops) as pool:
        results = [pool.submit(asyncio.run, wait_all()) for _ in range(loops)]
        waiting.wait()
        source.emit.call_one(port, 5).get(timeout=20)
        assert [result.result(timeout=20) for result in results] == [[5, 5, 5]] * loops


def gave_up_in_a_loop(receiver: PortReceiver[int]) -> None:
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(bounded(receiver.recv(), 0.05))


def dropped(receiver: PortReceiver[int]) -> None:
    receiver.recv()
    gc.collect()


def cancelled(receiver: PortReceiver[int]) -> None:
    assert receiver.recv().cancel()


@pytest.mark.parametrize("give_up", [gave_up_in_a_loop, dropped, cancelled])
def test_a_receive_that_was_given_up_takes_no_message(
    source: Any, give_up: Callable[[PortReceiver[int]], None]
) -> None:
    port, receiver = Channel[int].open()
    give_up(receiver)
    source.emit.call_one(port, 1).get(timeout=20)
    assert receiver.recv().get(timeout=1) == 1


@pytest.mark.parametrize("waits_already", [False, True])
def test_a_receive_of_a_closed_receiver_ends(waits_already: bool) -> None:
    _port, receiver = Channel[int].open()
    future = receiver.recv() if waits_already else None
    receiver.close()
    with pytest.raises((EOFError, ValueError, RuntimeError)):
        (future or receiver.recv()).get(timeout=1)


@pytest.mark.parametrize("strict", [True, False])
def test_a_send_to_a_receiver_that_is_gone_is_told(strict: bool, caplog: pytest.LogCaptureFixture) -> None:
    port, receiver = Channel[int].open()
    port.return_undeliverable = strict
    receiver.close()
    with caplog.at_level(logging.DEBUG, "roost"):
        if strict:
            with pytest.raises(UndeliverableError):
                port.send(1)
        else:
            port.send(1)
            eventually(lambda: caplog.records, "the drop is logged", within_s=1.0)


def test_a_port_for_one_message_is_for_one_in_all_its_copies() -> None:
    port, receiver = Channel[int].open(once=True)
    copy = pickle.loads(pickle.dumps(port))
    copy.send(1)
    assert receiver.recv().get(timeout=5) == 1
    with pytest.raises(RuntimeError, match="one message"):
        port.send(2)


def test_threads_and_loops_share_a_receiver(source: Any) -> None:
    port, receiver = Channel[int].open()
    count = 200
    taken: list[int] = []

    def take_in_a_thread() -> None:
        for _ in range(count // 4):
            taken.append(receiver.recv().get(timeout=20))

    async def take_in_a_loop() -> None:
        for _ in range(count // 4):
            taken.append(await bounded(receiver.recv(), 20))

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(take_in_a_thread) for _ in range(2)]
        jobs += [pool.submit(asyncio.run, take_in_a_loop()) for _ in range(2)]
        source.emit.broadcast(port, *range(count))
        for job in jobs:
            job.result(timeout=30)
    assert sorted(taken) == list(range(count))


def test_loops_come_and_go_at_a_receiver(source: Any) -> None:
    port, receiver = Channel[int].open()

    async def take() -> int:
        return await bounded(receiver.recv())

    for number in range(10):
        source.emit.broadcast(port, number)
        assert (asyncio.run(take()) if number % 2 else receiver.recv().get(timeout=5)) == number


def test_a_callback_takes_a_message(source: Any) -> None:
    port, receiver = Channel[int].open()
    seen: list[int] = []
    receiver.recv().add_done_callback(lambda future: seen.append(future.get()))
    source.emit.broadcast(port, 3)
    assert eventually(lambda: seen) == [3]


def test_a_callback_runs_though_nobody_keeps_the_future(source: Any) -> None:
    port, receiver = Channel[int].open()
    seen: list[int] = []
    receiver.recv().add_done_callback(lambda future: seen.append(future.get()))
    gc.collect()
    source.emit.broadcast(port, 4)
    assert eventually(lambda: seen) == [4]


def test_an_actor_receives_while_it_handles_calls(procs: ProcMesh, source: Any) -> None:
    sink = procs.slice(gpus=0).spawn("sink", Sink)
    port = sink.give_port.call_one().get(timeout=20)
    running = sink.run.call_one(20)
    for number in range(20):
        source.emit.broadcast(port, number)
        if number == 10:
            assert sink.give_port.call_one().get(timeout=20)
    assert running.get(timeout=20) == list(range(20))


def test_ports_are_handed_out_and_answered_within_one_call(source: Any) -> None:
    port, receiver = Channel[Any].open()
    running = source.rounds.call_one(port, 100)
    back = receiver.recv().get(timeout=20)
    for number in range(100):
        back.send(number)
    assert running.get(timeout=20) == sum(range(100))


@pytest.mark.parametrize(
    "value", [None, "text", [1, [2]], b"x" * (1 << 20), ValueError("as a value")], ids=type
)
def test_any_value_goes_through_a_channel(source: Any, value: Any) -> None:
    port, receiver = Channel[Any].open()
    source.emit.broadcast(port, value)
    got = receiver.recv().get(timeout=20)
    assert repr(got) == repr(value)


def test_messages_wait_for_who_asks_later(source: Any) -> None:
    port, receiver = Channel[int].open()
    source.emit.call_one(port, *range(1000)).get(timeout=20)
    futures = [receiver.recv() for _ in range(1000)]
    assert [future.get(timeout=20) for future in reversed(futures)] == list(reversed(range(1000)))
