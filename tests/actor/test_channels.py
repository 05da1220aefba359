"""Ports lead back to their receiver from wherever they get to."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from typing import Any

import pytest

from roost.actor import (
    Actor,
    Channel,
    MeshFailure,
    Port,
    ProcMesh,
    SupervisionError,
    UndeliverableError,
    current_rank,
    endpoint,
    this_host,
)

from .conftest import eventually


class Sender(Actor):
    @endpoint
    def send_all(self, port: Port[Any], values: list[Any]) -> None:
        for value in values:
            port.send(value)

    @endpoint
    def fail(self, port: Port[Any]) -> None:
        port.exception(LookupError("by port"))

    @endpoint
    def pass_on(self, port: Port[Any], other: Any, values: list[Any]) -> None:
        other.send_all.call_one({"nested": [port]}["nested"][0], values).get()

    @endpoint
    def open(self) -> Port[Any]:
        port, self.receiver = Channel[Any].open()
        return port

    @endpoint
    def received(self, count: int) -> list[Any]:
        return [self.receiver.recv().get(timeout=20) for _ in range(count)]

    @endpoint
    def send_to_dead(self, port: Port[Any], strict: bool) -> str:
        port.return_undeliverable = strict
        try:
            port.send(1)
        except UndeliverableError as error:
            return str(error)
        return "dropped"


def test_messages_of_one_sender_come_in_order(procs: ProcMesh) -> None:
    sender = procs.slice(gpus=0).spawn("sender", Sender)
    port, receiver = Channel[int].open()
    sender.send_all.broadcast(port, list(range(500)))
    assert [receiver.recv().get(timeout=20) for _ in range(500)] == list(range(500))


def test_many_actors_fan_in_and_their_ranks_are_known(procs: ProcMesh) -> None:
    senders = procs.spawn("senders", Sender)
    port, receiver = Channel[str].open_ranked()
    senders.send_all.broadcast(port, ["a", "b"])
    got = [receiver.recv().get(timeout=20) for _ in range(8)]
    for rank in range(4):
        assert [value for sender, value in got if sender == rank] == ["a", "b"]
    port, plain = Channel[str].open()
    senders.slice(gpus=slice(1, 2)).send_all.broadcast(port, ["x"])
    assert plain.ranked().recv().get(timeout=20) == (0, "x")


def test_a_port_travels_through_others(procs: ProcMesh) -> None:
    first, second = (procs.slice(gpus=rank).spawn("s", Sender) for rank in (0, 1))
    port, receiver = Channel[Any].open()
    first.pass_on.call_one(pickle.loads(pickle.dumps(port)), second, [1, None]).get()
    assert [receiver.recv().get(timeout=20) for _ in range(2)] == [1, None]


def test_a_receiver_lives_in_an_actor_too(procs: ProcMesh) -> None:
    first, second = (procs.slice(gpus=rank).spawn("s", Sender) for rank in (0, 1))
    port = first.open.call_one().get()
    second.send_all.call_one(port, [1, 2]).get()
    port.send(3)
    assert sorted(first.received.call_one(3).get()) == [1, 2, 3]


def test_an_exception_that_is_sent_is_raised_as_itself(procs: ProcMesh) -> None:
    port, receiver = Channel[Any].open()
    procs.slice(gpus=0).spawn("s", Sender).fail.broadcast(port)
    with pytest.raises(LookupError, match="by port") as caught:
        receiver.recv().get(timeout=20)
    assert type(caught.value) is LookupError


def test_a_channel_for_one_message(procs: ProcMesh) -> None:
    port, receiver = Channel[int].open(once=True)
    port.send(1)
    with pytest.raises(RuntimeError, match="one message"):
        port.send(2)
    assert receiver.recv().get(timeout=20) == 1
    with pytest.raises(ValueError, match="one message"):
        receiver.recv()


def test_a_receive_that_times_out_loses_nothing() -> None:
    port, receiver = Channel[int].open()
    waiting = receiver.recv()
    with pytest.raises(TimeoutError):
        waiting.get(timeout=0.05)
    port.send(1)
    port.send(2)
    assert waiting.get(timeout=20) == 1
    assert receiver.recv().get(timeout=20) == 2


def test_receives_are_served_in_the_order_asked_from_threads_and_loops() -> None:
    port, receiver = Channel[int].open()
    asked = [receiver.recv() for _ in range(3)]
    got: list[int] = []
    threads = [threading.Thread(target=lambda f=future: got.append(f.get(timeout=20))) for future in asked]
    for thread in threads:
        thread.start()
    for number in range(5):
        port.send(number)
    for thread in threads:
        thread.join()
    assert sorted(got) == [0, 1, 2]
    assert [future.get() for future in asked] == [0, 1, 2]

    async def rest() -> list[int]:
        return [await receiver.recv(), await receiver.recv()]

    assert asyncio.run(rest()) == [3, 4]
    port.send(5)
    assert receiver.recv().get(timeout=20) == 5


def test_gathered_receives(procs: ProcMesh) -> None:
    async def run() -> list[int]:
        port, receiver = Channel[int].open()
        procs.slice(gpus=0).spawn("s", Sender).send_all.broadcast(port, list(range(10)))
        return await asyncio.gather(*(receiver.recv() for _ in range(10)))

    assert asyncio.run(run()) == list(range(10))


def test_a_receiver_does_not_travel() -> None:
    with pytest.raises(TypeError, match="send its Port"):
        pickle.dumps(Channel.open()[1])


def test_what_is_sent_to_a_dropped_receiver_is_dropped(procs: ProcMesh) -> None:
    sender = procs.slice(gpus=0).spawn("s", Sender)
    port, receiver = Channel[int].open()
    del receiver
    gc.collect()
    assert sender.send_to_dead.call_one(port, False).get(timeout=20) == "dropped"
    sender.send_all.call_one(port, list(range(100))).get(timeout=20)


def test_a_send_to_a_dead_process_is_dropped_or_raised(procs: ProcMesh, failures: list[MeshFailure]) -> None:
    import os

    class Mortal(Sender):
        @endpoint
        def die(self) -> None:
            os._exit(3)

    doomed = this_host().spawn_procs({"gpus": 1})
    mortal = doomed.spawn("mortal", Mortal).slice(gpus=0)
    port = mortal.open.call_one().get()
    sender = procs.slice(gpus=0).spawn("s", Sender)
    sender.send_all.call_one(port, [1]).get()
    with pytest.raises(SupervisionError):
        mortal.die.call_one().get(timeout=20)
    eventually(lambda: "gone" in sender.send_to_dead.call_one(port, True).get(timeout=20))
    assert sender.send_to_dead.call_one(port, False).get(timeout=20) == "dropped"
    assert eventually(lambda: failures)[0].exit_code == 3
    doomed.stop().get(timeout=20)


def test_big_messages_go_through_ports(procs: ProcMesh) -> None:
    port, receiver = Channel[Any].open()
    sender = procs.spawn("s", Sender)
    sender.send_all.broadcast(port, [b"x" * (3 << 20)] * 3)
    for _ in range(12):
        assert len(receiver.recv().get(timeout=20)) == 3 << 20


def test_a_rank_outside_actors_is_zero() -> None:
    port, receiver = Channel[int].open_ranked()
    port.send(7)
    assert receiver.recv().get(timeout=20) == (0, 7)
    assert current_rank().rank == 0


@pytest.mark.slow
def test_a_sender_whose_messages_nobody_takes_goes_on_after_a_while(procs: ProcMesh) -> None:
    """More than fits the window of a link: the receiver waits for the sender before it takes anything."""
    port, receiver = Channel[Any].open()
    sender = procs.slice(gpus=0).spawn("s", Sender)
    sender.send_all.call_one(port, [b"x" * (8 << 20)] * 12).get(timeout=60)
    for _ in range(12):
        assert len(receiver.recv().get(timeout=20)) == 8 << 20
