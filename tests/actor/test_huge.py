"""What is too big for shared memory arrives by another way or is refused; it never costs a process."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Program

HEAD = """
import numpy as np
from roost.actor import Actor, Channel, endpoint, this_host
class Echo(Actor):
    @endpoint
    def last(self, value): return int(memoryview(value)[-1]), memoryview(value).nbytes
    @endpoint
    def make(self, size):
        array = np.zeros(size, np.uint8)
        array[-1] = 7
        return array
    @endpoint
    def ping(self): return "pong"
echo = this_host().spawn_procs().spawn("echo", Echo)
"""


def run(program: Any, body: str, limit: str) -> str:
    made: Program = program(HEAD + body, ROOST_SHARED_MEMORY_LIMIT=limit)
    status, out, err = made.end(100)
    assert status == 0, err
    return out


@pytest.mark.parametrize(
    ("limit", "mib"), [("0", 1), ("0", 65), ("1MiB", 65), ("64MiB", 63), ("64MiB", 65), ("64MiB", 130)]
)
def test_a_payload_beyond_the_limit_of_shared_memory_arrives_all_the_same(
    program: Any, limit: str, mib: int
) -> None:
    body = f"""
size = {mib} << 20
array = np.zeros(size, np.uint8)
array[-1] = 3
for _ in range(2):
    print(echo.last.call_one(array).get(), echo.make.call_one(size).get()[-1])
"""
    assert run(program, body, limit) == f"(3, {mib << 20}) 7\n" * 2


@pytest.mark.parametrize("direction", ["argument", "result"])
def test_a_huge_payload_beyond_the_limit_arrives_or_is_refused(program: Any, direction: str) -> None:
    body = f"""
size = (1 << 30) + 5
try:
    if {direction!r} == "argument":
        array = np.zeros(size, np.uint8)
        array[-1] = 7
        print(echo.last.call_one(array).get()[0])
    else:
        print(echo.make.call_one(size).get()[-1])
except (TypeError, ValueError, MemoryError) as error:
    assert "shared_memory_limit" in str(error), error
    print(7)
print(echo.ping.call_one().get())
"""
    assert run(program, body, "64MiB") == "7\npong\n"
