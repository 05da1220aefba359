"""The event loops of async actors do what any event loop does, beside the messages of the actor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from roost.actor import Actor, Channel, ProcMesh, concurrent_endpoint, context, endpoint, this_proc


class Loops(Actor):
    """Each endpoint uses one ability of the loop, and tells what came of it."""

    @endpoint
    async def sleep_in_order(self, times_ms: list[int]) -> list[int]:
        order: list[int] = []

        async def one(ms: int) -> None:
            await asyncio.sleep(ms / 1000)
            order.append(ms)

        await asyncio.gather(*(one(ms) for ms in times_ms))
        return order

    @endpoint
    async def calls_from_threads(self, count: int) -> int:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        seen: list[int] = []

        def note(number: int) -> None:
            seen.append(number)
            if len(seen) == count:
                done.set()

        def work() -> None:
            for number in range(count):
                loop.call_soon_threadsafe(note, number)

        thread = threading.Thread(target=work)
        thread.start()
        await done.wait()
        thread.join()
        return len(seen)

    @endpoint
    async def a_late_call_from_a_thread(self) -> str:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        threading.Timer(0.2, loop.call_soon_threadsafe, [future.set_result, "woken"]).start()
        return await future

    @endpoint
    async def executor(self) -> list[int]:
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return await asyncio.gather(*(loop.run_in_executor(pool, pow, 2, n) for n in range(20)))

    @endpoint
    async def coroutine_from_a_thread(self) -> str:
        loop = asyncio.get_running_loop()

        async def inner() -> str:
            await asyncio.sleep(0.01)
            return context().actor_instance.name

        def work() -> str:
            return asyncio.run_coroutine_threadsafe(inner(), loop).result(20)

        return await asyncio.to_thread(work)

    @endpoint
    async def subprocess(self) -> tuple[int | None, str]:
        words = [sys.executable, "-c", "print(input()[::-1])"]
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate(b"stressed\n")
        return process.returncode, out.decode().strip()

    @endpoint
    async def many_streams(self, count: int) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readline()).upper())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=count)
        port = server.sockets[0].getsockname()[1]

        async def ask(number: int) -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"line {number}\n".encode())
            answer = await reader.readline()
            writer.close()
            return answer == f"LINE {number}\n".encode()

        async with server:
            return sum(await asyncio.gather(*(ask(number) for number in range(count))))

    @endpoint
    async def readers_and_writers(self) -> tuple[bytes, int]:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        left.setblocking(False)
        right.setblocking(False)
        got: asyncio.Future[bytes] = loop.create_future()
        loop.add_reader(left, lambda: got.done() or got.set_result(left.recv(10)))
        await loop.sock_sendall(right, b"ping")
        first = await got
        loop.remove_reader(left)
        writable: asyncio.Future[int] = loop.create_future()
        loop.add_writer(right, lambda: writable.done() or writable.set_result(1))
        second = await writable
        loop.remove_writer(right)
        left.close()
        right.close()
        return first, second

    @endpoint
    async def datagrams(self) -> bytes:
        loop = asyncio.get_running_loop()
        got: asyncio.Future[bytes] = loop.create_future()

        class Protocol(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, address: Any) -> None:
                got.set_result(data)

        receiving, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
        address = receiving.get_extra_info("sockname")
        sending, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
        sending.sendto(b"datagram")
        data = await got
        receiving.close()
        sending.close()
        return data

    @endpoint
    async def structured(self) -> list[str]:
        told: list[str] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.sleep(10)
            told.append("not reached")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(10))
                group.create_task(self._fail())
        except* LookupError as caught:
            told.append(f"group of {len(caught.exceptions)}")
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        producer = asyncio.create_task(self._produce(queue, 20))
        told.append(str(sum([await queue.get() for _ in range(20)])))
        await producer
        told.append(str([number async for number in self._count(3)]))
        return told

    async def _fail(self) -> None:
        await asyncio.sleep(0)
        raise LookupError

    async def _produce(self, queue: asyncio.Queue[int], count: int) -> None:
        for number in range(count):
            await queue.put(number)

    async def _count(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number
            await asyncio.sleep(0)


class Background(Actor):
    """Has a task of its own from the start, which goes on between messages."""

    def __init__(self) -> None:
        self.ticks = 0
        self.task: asyncio.Task[None] | None = None

    @endpoint
    async def start(self) -> None:
        self.task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.005)

    @endpoint
    async def ticked(self) -> int:
        return self.ticks

    @concurrent_endpoint
    async def ticked_later(self) -> int:
        await asyncio.sleep(0.05)
        return self.ticks


@pytest.fixture(scope="module", params=["another process", "the same process"])
def loops(request: pytest.FixtureRequest, procs: ProcMesh) -> Any:
    place = this_proc() if request.param == "the same process" else procs.slice(gpus=1)
    return place.spawn("loops", Loops)


EXPECTED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "sleep_in_order": (([60, 20, 40, 0, 80],), [0, 20, 40, 60, 80]),
    "calls_from_threads": ((5000,), 5000),
    "a_late_call_from_a_thread": ((), "woken"),
    "executor": ((), [2**number for number in range(20)]),
    "coroutine_from_a_thread": ((), "loops"),
    "subprocess": ((), (0, "desserts")),
    "many_streams": ((100,), 100),
    "readers_and_writers": ((), (b"ping", 1)),
    "datagrams": ((), b"datagram"),
    "structured": ((), ["group of 1", "190", "[0, 1, 2]"]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_loop_has_every_ability(loops: Any, name: str) -> None:
    args, expected = EXPECTED[name]
    for _ in range(2):
        assert getattr(loops, name).call_one(*args).get(timeout=30) == expected


def test_all_abilities_are_used_while_messages_rush_in(loops: Any) -> None:
    futures = [getattr(loops, name).call_one(*args) for name, (args, _) in list(EXPECTED.items()) * 3]
    expected = [value for _, value in list(EXPECTED.values()) * 3]
    assert [future.get(timeout=60) for future in futures] == expected


def test_a_task_goes_on_between_messages_and_ends_with_its_actor(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("background", Background)
    mesh.start.call_one().get(timeout=20)
    first = mesh.ticked.call_one().get(timeout=20)
    deadline = time.monotonic() + 20
    while mesh.ticked.call_one().get(timeout=20) < first + 20:
        assert time.monotonic() < deadline
    assert mesh.ticked_later.call_one().get(timeout=20) > first
    mesh.stop().get(timeout=20)


def test_a_busy_task_does_not_starve_messages(procs: ProcMesh) -> None:
    class Greedy(Actor):
        @endpoint
        async def start(self) -> None:
            self.task = asyncio.create_task(self._spin())
            self.spins = 0

        async def _spin(self) -> None:
            while True:
                self.spins += 1
                await asyncio.sleep(0)

        @endpoint
        async def echo(self, value: int) -> int:
            return value

    mesh = procs.slice(gpus=0).spawn("greedy", Greedy)
    mesh.start.call_one().get(timeout=20)
    assert [mesh.echo.call_one(number).get(timeout=20) for number in range(100)] == list(range(100))
    mesh.stop().get(timeout=20)


def test_many_futures_are_awaited_in_a_loop_that_has_other_work(procs: ProcMesh) -> None:
    class Echo(Actor):
        @endpoint
        def echo(self, value: int) -> int:
            return value

    mesh = procs.slice(gpus=2).spawn("echo", Echo)

    async def run() -> None:
        read, write = os.pipe()
        loop = asyncio.get_running_loop()
        seen = 0

        def readable() -> None:
            nonlocal seen
            seen += len(os.read(read, 1000))

        loop.add_reader(read, readable)
        for number in range(50):
            os.write(write, b"x")
            assert await asyncio.gather(*(mesh.echo.call_one(n) for n in range(20))) == list(range(20))
            port, receiver = Channel[int].open()
            port.send(number)
            assert await receiver.recv() == number
        while seen < 50:
            await asyncio.sleep(0.001)
        loop.remove_reader(read)
        os.close(read)
        os.close(write)

    asyncio.run(run())
