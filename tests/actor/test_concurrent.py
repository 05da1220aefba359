"""Concurrent endpoints: they start in order, overlap, and end before their actor does."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from roost.actor import (
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Port,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    this_host,
)

from .conftest import eventually


class Gate(Actor):
    """Calls wait at the gate until it is opened."""

    def __init__(self, port: Port[Any] | None = None) -> None:
        self.port = port
        self.open = asyncio.Event()
        self.log: list[str] = []

    def tell(self, what: str) -> None:
        self.log.append(what)
        if self.port is not None:
            self.port.send(what)

    @concurrent_endpoint
    async def enter(self, name: str) -> str:
        self.tell(f"enter {name}")
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.tell(f"cancelled {name}")
            raise
        self.tell(f"leave {name}")
        return name

    @concurrent_endpoint
    async def stubborn(self) -> None:
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.tell("stubborn one said no")

    @endpoint
    async def sequential(self, name: str) -> str:
        self.tell(f"sequential {name}")
        return name

    @endpoint
    async def let_in(self) -> list[str]:
        self.open.set()
        return self.log

    @endpoint
    async def seen(self) -> list[str]:
        return self.log

    @concurrent_endpoint
    async def fail(self, error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    @concurrent_endpoint(explicit_response_port=True)
    async def answer_twice(self, port: Port[str], text: str) -> None:
        port.send(text)
        await asyncio.sleep(0)
        port.send(text.upper())

    @concurrent_endpoint(explicit_response_port=True)
    async def leak(self, port: Port[str]) -> None:
        await asyncio.sleep(0)
        raise KeyError("leaked")

    @concurrent_endpoint
    async def where(self) -> tuple[dict[str, int], str]:
        await asyncio.sleep(random.random() / 50)
        return dict(current_rank()), context().actor_instance.name

    async def __cleanup__(self, exc: BaseException | None) -> None:
        self.tell(f"cleanup {type(exc).__name__}")


class Wider(Gate):
    """Adds to what it inherits, and overrides some of it."""

    @concurrent_endpoint
    async def more(self) -> str:
        return "more"

    @concurrent_endpoint
    async def sequential(self, name: str) -> str:  # type: ignore[override]
        return f"now concurrent {name}"

    @endpoint
    async def where(self) -> tuple[dict[str, int], str]:  # type: ignore[override]
        return {}, "now sequential"


@pytest.fixture
def gate(procs: ProcMesh) -> Any:
    return procs.slice(gpus=0).spawn("gate", Gate)


def test_calls_start_in_order_and_sequential_ones_go_on_beside_them(gate: Any) -> None:
    waiting = [gate.enter.call_one(str(number)) for number in range(20)]
    assert gate.sequential.call_one("x").get(timeout=20) == "x"
    log = gate.let_in.call_one().get(timeout=20)
    assert log[:21] == [*(f"enter {number}" for number in range(20)), "sequential x"]
    assert [future.get(timeout=20) for future in waiting] == [str(number) for number in range(20)]


def test_each_call_has_a_context_of_its_own(procs: ProcMesh) -> None:
    mesh = procs.spawn("gates", Gate)
    parts = [mesh, mesh.slice(gpus=slice(1, 3)), mesh.flatten("x").slice(x=slice(0, 4, 3))]
    futures = [(part, part.where.call()) for part in parts * 20]
    for part, future in futures:
        for point, value in future.get(timeout=20):
            assert value == (dict(point), "gates"), part


@pytest.mark.parametrize("error", [ValueError("v"), TimeoutError("t"), StopAsyncIteration("s")])
def test_an_exception_goes_to_its_caller_and_the_others_go_on(gate: Any, error: Exception) -> None:
    waiting = gate.enter.call_one("other")
    with pytest.raises(type(error)) as caught:
        gate.fail.call_one(error).get(timeout=20)
    assert isinstance(caught.value, ActorError)
    gate.let_in.call_one().get(timeout=20)
    assert waiting.get(timeout=20) == "other"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("k")], ids=repr)
def test_a_base_exception_ends_the_actor_and_all_its_calls(
    gate: Any, failures: list[MeshFailure], error: BaseException
) -> None:
    waiting = gate.enter.call_one("other")
    with pytest.raises(ActorError, match=type(error).__name__):
        gate.fail.call_one(error).get(timeout=20)
    with pytest.raises(SupervisionError):
        waiting.get(timeout=20)
    with pytest.raises(SupervisionError):
        gate.seen.call_one().get(timeout=20)
    assert [failure.mesh_name for failure in eventually(lambda: failures)] == ["gate"]


def test_an_error_without_a_caller_ends_the_actor(gate: Any, failures: list[MeshFailure]) -> None:
    gate.fail.broadcast(ValueError("unheard"))
    assert "unheard" in eventually(lambda: failures)[0].report()
    with pytest.raises(SupervisionError, match="unheard"):
        gate.seen.call_one().get(timeout=20)


def test_an_explicit_port_may_be_answered_more_than_once(gate: Any) -> None:
    from roost.actor import send

    port, receiver = Channel[str].open()
    send(gate.answer_twice, ("hey",), {}, port)
    assert [receiver.recv().get(timeout=20) for _ in range(2)] == ["hey", "HEY"]
    assert gate.answer_twice.call_one("one").get(timeout=20) == "one"


def test_an_error_that_escapes_an_explicit_port_ends_the_actor(
    gate: Any, failures: list[MeshFailure]
) -> None:
    gate.leak.broadcast()
    assert "leaked" in eventually(lambda: failures)[0].report()
    with pytest.raises(SupervisionError):
        gate.seen.call_one().get(timeout=20)


def test_a_stop_cancels_what_runs_before_the_clean_up(procs: ProcMesh) -> None:
    port, receiver = Channel[str].open()
    gate = procs.slice(gpus=0).spawn("gate", Gate, port)
    waiting = [gate.enter.call_one(name) for name in "ab"]
    assert [receiver.recv().get(timeout=20) for _ in range(2)] == ["enter a", "enter b"]
    stubborn = gate.stubborn.call_one()
    gate.stop("closing time").get(timeout=20)
    told = [receiver.recv().get(timeout=20) for _ in range(4)]
    assert sorted(told[:3]) == ["cancelled a", "cancelled b", "stubborn one said no"]
    assert told[3] == "cleanup NoneType"
    for future in waiting:
        with pytest.raises(SupervisionError):
            future.get(timeout=20)
    assert stubborn.get(timeout=20) is None


def test_what_runs_is_cancelled_when_the_actor_fails(procs: ProcMesh, failures: list[MeshFailure]) -> None:
    port, receiver = Channel[str].open()
    gate = procs.slice(gpus=0).spawn("gate", Gate, port)
    waiting = gate.enter.call_one("a")
    assert receiver.recv().get(timeout=20) == "enter a"
    gate.fail.broadcast(ValueError("x"))
    assert [receiver.recv().get(timeout=20) for _ in range(2)] == ["cancelled a", "cleanup ValueError"]
    with pytest.raises(SupervisionError):
        waiting.get(timeout=20)
    eventually(lambda: failures)


def test_kinds_of_endpoints_are_inherited_and_changed(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("wider", Wider)
    waiting = mesh.enter.call_one("a")
    assert mesh.more.call_one().get(timeout=20) == "more"
    assert mesh.sequential.call_one("b").get(timeout=20) == "now concurrent b"
    assert mesh.where.call_one().get(timeout=20) == ({}, "now sequential")
    mesh.let_in.call_one().get(timeout=20)
    assert waiting.get(timeout=20) == "a"


def test_a_cancelled_call_that_runs_already_does_no_harm(gate: Any) -> None:
    first, second = gate.enter.call_one("first"), gate.enter.call_one("second")
    eventually(lambda: len(gate.seen.call_one().get(timeout=20)) == 2)
    first.cancel()
    gate.let_in.call_one().get(timeout=20)
    assert second.get(timeout=20) == "second"
    assert gate.sequential.call_one("x").get(timeout=20) == "x"


class Router(Actor):
    """Hands calls on to the mesh that it has a reference to."""

    def __init__(self, workers: Any) -> None:
        self.workers = {rank: workers.slice(gpus=rank) for rank in range(len(workers))}

    @concurrent_endpoint
    async def route(self, rank: int, value: int) -> int:
        return await self.workers[rank].square.call_one(value)  # type: ignore[no-any-return]

    @concurrent_endpoint
    async def route_all(self, values: list[int]) -> list[int]:
        calls = [self.route(number % len(self.workers), value) for number, value in enumerate(values)]
        return await asyncio.gather(*calls)


class Worker(Actor):
    @endpoint
    def square(self, value: int) -> int:
        if value < 0:
            raise ValueError(f"{value} is negative")
        return value * value


def test_a_router_keeps_hundreds_of_calls_in_flight(procs: ProcMesh) -> None:
    router = procs.slice(gpus=0).spawn("router", Router, procs.spawn("workers", Worker))

    async def run() -> None:
        calls = [router.route.call_one(number % 4, number) for number in range(500)]
        assert await asyncio.gather(*calls) == [number * number for number in range(500)]
        mixed = await asyncio.gather(
            *(asyncio.wait_for(router.route.call_one(n % 4, n - 5), 30) for n in range(10)),
            return_exceptions=True,
        )
        assert [type(value).__mro__[-1] for value in mixed] == [object] * 10
        assert [isinstance(value, ValueError) for value in mixed] == [n < 5 for n in range(10)]

    asyncio.run(run())
    assert router.route_all.call_one(list(range(300))).get(timeout=30) == [n * n for n in range(300)]
    with pytest.raises(ValueError, match="-1 is negative"):
        router.route_all.call_one([1, -1]).get(timeout=20)


def test_a_worker_that_dies_fails_only_the_calls_that_went_to_it(
    procs: ProcMesh, failures: list[MeshFailure]
) -> None:
    mortal = this_host().spawn_procs({"gpus": 2})
    router = procs.slice(gpus=0).spawn("router", Router, mortal.spawn("workers", Worker))
    assert router.route.call_one(1, 3).get(timeout=20) == 9

    class Killer(Actor):
        @endpoint
        def kill(self) -> None:
            import os

            os._exit(1)

    mortal.slice(gpus=1).spawn("killer", Killer).kill.broadcast()
    eventually(lambda: router.route.call_one(1, 3).exception(timeout=20) is not None)
    with pytest.raises(SupervisionError):
        router.route.call_one(1, 3).get(timeout=20)
    assert router.route.call_one(0, 3).get(timeout=20) == 9
    eventually(lambda: failures)
    mortal.stop().get(timeout=20)
