"""The floor: forked processes and socket pairs, with no framework at all. Bytes only."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from benchmarks.workloads import MIB, SIZES, Metrics, p50, p99, pss_mib, rate, times


def _read(source: socket.socket, view: memoryview) -> None:
    while len(view):
        count = source.recv_into(view)
        if count == 0:
            raise EOFError
        view = view[count:]


def _serve(link: socket.socket) -> None:
    head = bytearray(8)
    while True:
        _read(link, memoryview(head))
        body = bytearray(struct.unpack("<Q", head)[0])
        _read(link, memoryview(body))
        link.sendall(head)
        link.sendall(body)


class Process:
    """A child that sends back what it gets."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.link.close()
            try:
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def send(self, body: bytes) -> None:
        self.link.sendall(struct.pack("<Q", len(body)))
        self.link.sendall(body)

    def receive(self) -> bytearray:
        head = bytearray(8)
        _read(self.link, memoryview(head))
        body = bytearray(struct.unpack("<Q", head)[0])
        _read(self.link, memoryview(body))
        return body

    def echo(self, body: bytes) -> bytearray:
        self.send(body)
        return self.receive()


def spawn(count: int) -> list[Process]:
    made = [Process() for _ in range(count)]
    for process in made:
        process.echo(b"")
    return made


def messages() -> Metrics:
    (process,) = spawn(1)
    found = times(lambda: process.echo(b"x" * 64), 3000, 200)

    def pipelined(count: int) -> None:
        for _ in range(count // 100):
            for _ in range(100):
                process.send(b"x" * 64)
            for _ in range(100):
                process.receive()

    return {
        "call_one sync p50": p50(found) * 1e6,
        "call_one sync p99": p99(found) * 1e6,
        "call_one pipelined": rate(pipelined, 10_000),
    }


def meshes(count: int) -> Metrics:
    started = time.perf_counter()
    made = spawn(count)
    found = {f"spawn {count}": (time.perf_counter() - started) * 1e3}

    def call() -> None:
        for process in made:
            process.send(b"x" * 64)
        for process in made:
            process.receive()

    found[f"mesh call {count} p50"] = p50(times(call, 200, 10)) * 1e6
    return found


def payloads() -> Metrics:
    import threading

    (process,) = spawn(1)
    found: Metrics = {}
    for name, size in SIZES.items():
        body = os.urandom(1024) * (size // 1024)

        def echo(body: bytes = body) -> Any:
            if len(body) < MIB:
                return process.echo(body)
            sender = threading.Thread(target=process.send, args=(body,))
            sender.start()
            answer = process.receive()
            sender.join()
            return answer

        seconds = p50(times(echo, max(5, min(200, 128 * MIB // size)), 2))
        found[f"echo bytes {name}"] = 2 * size / seconds / 1e9
    return found


def deaths() -> Metrics:
    found = []
    memory = 0.0
    for _ in range(3):
        (process,) = spawn(1)
        memory = pss_mib(process.pid)
        started = time.perf_counter()
        os.kill(process.pid, 9)
        try:
            process.receive()
        except (EOFError, ConnectionError):
            found.append(time.perf_counter() - started)
    return {"kill to exception": p50(sorted(found)) * 1e3, "worker memory": memory}


GROUPS: dict[str, Callable[[], Metrics]] = {
    "messages": messages,
    **{f"mesh{count}": lambda count=count: meshes(count) for count in (1, 4, 16, 32)},  # type: ignore[misc]
    "payloads": payloads,
    "deaths": deaths,
}
