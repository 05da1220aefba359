"""Async actors, and async programs that use actors."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
import time
from typing import Any

import pytest

from roost.actor import (
    Actor,
    Channel,
    Port,
    ProcMesh,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    this_host,
)


class Sequential(Actor):
    def __init__(self) -> None:
        self.log: list[str] = []

    @endpoint
    async def work(self, name: str, seconds: float = 0.0) -> list[str]:
        self.log.append(f"begin {name}")
        await asyncio.sleep(seconds)
        self.log.append(f"end {name}")
        return self.log

    @endpoint
    async def fail(self) -> None:
        await asyncio.sleep(0)
        raise LookupError("async")

    @endpoint
    async def rank_after_switch(self) -> int:
        await asyncio.sleep(0.01)
        return await asyncio.create_task(self._rank())

    async def _rank(self) -> int:
        return current_rank()["gpus"]

    @endpoint
    async def name_in_thread(self) -> str:
        return await asyncio.to_thread(lambda: context().actor_instance.name)

    @endpoint
    async def forward(self, other: Any, name: str) -> list[str]:
        return await other.work.call_one(name)  # type: ignore[no-any-return]

    @endpoint
    async def loop_is_running(self) -> bool:
        return asyncio.get_running_loop().is_running()

    @endpoint
    async def talk_to_a_socket(self) -> bytes:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 300_000 + b"\n")
        await writer.drain()
        line = await reader.readline()
        writer.close()
        server.close()
        return line

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readuntil(b"\n")
        writer.write(str(len(data)).encode() + b"\n")
        await writer.drain()

    @endpoint
    async def blocking_read_elsewhere(self) -> str:
        left, right = socket.socketpair()
        threading.Timer(0.1, right.send, [b"late"]).start()
        return (await asyncio.to_thread(left.recv, 10)).decode()

    @endpoint
    async def blocking_get(self, other: Any) -> list[str]:
        return other.work.call_one("blocking").get()  # type: ignore[no-any-return]


@pytest.fixture
def one(procs: ProcMesh) -> Any:
    return procs.slice(gpus=0).spawn("one", Sequential)


def test_an_async_actor_handles_one_message_at_a_time(one: Any) -> None:
    futures = [one.work.call_one("a", 0.2), one.work.call_one("b")]
    assert futures[1].get() == ["begin a", "end a", "begin b", "end b"]


def test_actors_of_one_process_run_at_the_same_time(procs: ProcMesh) -> None:
    slow, quick = (procs.slice(gpus=0).spawn(name, Sequential) for name in ("slow", "quick"))
    waiting = slow.work.call_one("slow", 1.0)
    assert quick.work.call_one("quick").get() == ["begin quick", "end quick"]
    assert not waiting.done()
    waiting.get()


def test_errors_after_a_switch_reach_the_caller(one: Any) -> None:
    with pytest.raises(LookupError, match="async"):
        one.fail.call_one().get()
    assert one.work.call_one("after").get() == ["begin after", "end after"]


def test_the_context_follows_into_tasks_and_threads(procs: ProcMesh, one: Any) -> None:
    mesh = procs.spawn("mesh", Sequential)
    assert mesh.rank_after_switch.call().get().values() == [0, 1, 2, 3]
    assert one.name_in_thread.call_one().get() == "one"


def test_an_actor_awaits_another_also_in_its_own_process(procs: ProcMesh, one: Any) -> None:
    for rank in (0, 1):
        other = procs.slice(gpus=rank).spawn("other", Sequential)
        assert one.forward.call_one(other, "x").get() == ["begin x", "end x"]


def test_sockets_and_threads_work_beside_messages(one: Any) -> None:
    assert one.loop_is_running.call_one().get()
    for _ in range(3):
        assert one.talk_to_a_socket.call_one().get(timeout=20) == b"300001\n"
        assert one.blocking_read_elsewhere.call_one().get(timeout=20) == "late"


def test_a_blocking_get_in_an_async_endpoint_warns_and_works(procs: ProcMesh, one: Any) -> None:
    other = procs.slice(gpus=1).spawn("other", Sequential)
    assert one.blocking_get.call_one(other).get(timeout=20) == ["begin blocking", "end blocking"]


class Busy(Actor):
    def __init__(self) -> None:
        self.peak = self.now = 0

    @concurrent_endpoint
    async def hold(self, port: Port[int], number: int) -> int:
        self.now += 1
        self.peak = max(self.peak, self.now)
        port.send(number)
        await asyncio.sleep(0.2)
        self.now -= 1
        if number % 10 == 7:
            raise ArithmeticError(str(number))
        return number

    @concurrent_endpoint
    async def peak_now(self) -> int:
        return self.peak


def test_hundreds_of_calls_overlap_under_gather(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("busy", Busy)

    async def run() -> list[Any]:
        port, receiver = Channel[int].open()
        calls = asyncio.gather(*(mesh.hold.call_one(port, n) for n in range(300)), return_exceptions=True)
        started = [await receiver.recv() for _ in range(300)]
        assert started == list(range(300))
        return await calls

    results = asyncio.run(run())
    assert [r for r in results if isinstance(r, int)] == [n for n in range(300) if n % 10 != 7]
    assert all(isinstance(results[n], ArithmeticError) for n in range(7, 300, 10))
    assert mesh.peak_now.call_one().get() > 100


def test_wait_for_gives_up_on_one_of_many(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("one", Sequential)

    async def run() -> None:
        slow = mesh.work.call_one("slow", 0.6)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(mesh.work.call_one("queued"), 0.05)
        await slow

    asyncio.run(run())


def test_a_mesh_is_an_async_context_manager() -> None:
    async def run() -> list[int]:
        async with this_host().spawn_procs({"gpus": 2}) as mesh:
            await mesh.initialized
            workers = mesh.spawn("workers", Sequential)
            await workers.initialized
            values = (await workers.rank_after_switch.call()).values()
        with pytest.raises(RuntimeError, match="stopped"):
            mesh.spawn("again", Sequential)
        return values

    assert asyncio.run(run()) == [0, 1]


variable = contextvars.ContextVar("variable", default="unset")


def test_loops_come_and_go(one: Any) -> None:
    async def run(number: int) -> Any:
        variable.set(str(number))
        answers = await asyncio.gather(*(one.loop_is_running.call_one() for _ in range(5)))
        return variable.get(), all(answers)

    for number in range(20):
        assert asyncio.run(run(number)) == (str(number), True)


def test_a_thread_of_an_actor_may_call_others(procs: ProcMesh) -> None:
    class Threaded(Actor):
        @endpoint
        def run(self, other: Any) -> list[Any]:
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(other.work.call_one("t").get()))
            thread.start()
            thread.join()
            return found

    other = procs.slice(gpus=1).spawn("other", Sequential)
    mesh = procs.slice(gpus=0).spawn("threaded", Threaded)
    assert mesh.run.call_one(other).get(timeout=20) == [["begin t", "end t"]]


def test_sync_endpoints_see_no_loop(procs: ProcMesh) -> None:
    class Sync(Actor):
        @endpoint
        def run(self) -> str:
            async def inner() -> str:
                return "ran"

            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return asyncio.run(inner())

    started = time.monotonic()
    assert procs.slice(gpus=0).spawn("sync", Sync).run.call_one().get() == "ran"
    assert time.monotonic() - started < 20
