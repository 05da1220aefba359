"""What type checkers see of a program that uses roost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from __future__ import annotations
from typing import reveal_type
from roost.actor import Actor, Port, concurrent_endpoint, endpoint, this_host

class A(Actor):
    @endpoint
    def add(self, x: int, *, y: float = 1.0) -> str: return ""
    @endpoint
    async def later(self, x: int) -> str: return ""
    @concurrent_endpoint
    async def beside(self, x: int) -> bytes: return b""
    @endpoint(explicit_response_port=True)
    def answer(self, port: Port[int], x: str) -> None: ...
    @endpoint(idempotent=True)
    def again(self, x: int) -> int: return x

a = this_host().spawn_procs({"w": 2}).spawn("a", A)
reveal_type(a.slice(w=0))  # A
reveal_type(len(a))  # int
reveal_type(a.add.call(1, y=2.0).get())  # ValueMesh[str]
reveal_type(a.later.call_one(1).get())  # str
reveal_type(a.beside.call_one(2).get())  # bytes
reveal_type(a.answer.call_one("x").get())  # int
reveal_type(a.again.choose(1).get())  # int
a.add.call("x")  # error: arg-type
a.add.call()  # error: call-arg
a.ad.call()  # error: attr-defined
"""


@pytest.mark.timeout(300)
def test_meshes_and_endpoints_have_the_types_of_their_class(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--no-color-output", str(path)],
        capture_output=True,
        text=True,
    )
    found = dict[int, str]()
    for line, kind, text in re.findall(r"program\.py:(\d+): (note|error): (.*)", done.stdout):
        found[int(line)] = found.get(int(line), "") + f"{kind}: {text}"
    expected = {}
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        if "  # " in line:
            expected[number] = line.partition("  # ")[2]
    assert set(found) == set(expected), done.stdout
    for number, wanted in expected.items():
        if wanted.startswith("error: "):
            assert f"[{wanted.removeprefix('error: ')}]" in found[number]
        else:
            revealed = re.sub(r"\w+\.", "", found[number])
            assert f'"{wanted}"' in revealed
