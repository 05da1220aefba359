"""Actors that wait for each other in a cycle get an error that names it; those that only seem to do not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from roost.actor import Actor, DeadlockError, ProcMesh, concurrent_endpoint, endpoint, this_host


class Caller(Actor):
    """Calls the next one, so long as there are steps left."""

    @endpoint
    def set_next(self, other: Any) -> None:
        self.other = other

    @endpoint
    def walk(self, steps: int) -> int:
        return 0 if steps == 0 else 1 + self.other.walk.call_one(steps - 1).get()

    @endpoint
    def walk_until(self, steps: int, timeout: float) -> str:
        try:
            self.other.walk.call_one(steps - 1).get(timeout=timeout)
        except TimeoutError:
            return "timed out"
        return "answered"

    @endpoint
    def rest(self, seconds: float) -> int:
        time.sleep(seconds)
        return 1


class AsyncCaller(Actor):
    @endpoint
    async def set_next(self, other: Any) -> None:
        self.other = other

    @endpoint
    async def walk(self, steps: int) -> int:
        return 0 if steps == 0 else 1 + await self.other.walk.call_one(steps - 1)


class OverlappingCaller(Actor):
    @concurrent_endpoint
    async def set_next(self, other: Any) -> None:
        self.other = other

    @concurrent_endpoint
    async def walk(self, steps: int) -> int:
        return 0 if steps == 0 else 1 + await self.other.walk.call_one(steps - 1)


class Myself(Actor):
    @endpoint
    def ask(self, me: Any) -> Any:
        return me.answer.call_one().get()

    @endpoint
    def answer(self) -> str:
        return "yes"


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 3})
    yield mesh
    mesh.stop().get()


def ring(procs: ProcMesh, cls: type[Any], size: int) -> list[Any]:
    members = [procs.slice(gpus=rank).spawn(f"member{rank}", cls) for rank in range(size)]
    for rank, member in enumerate(members):
        member.set_next.call_one(members[(rank + 1) % size]).get()
    return members


@pytest.mark.parametrize("cls", [Caller, AsyncCaller])
@pytest.mark.parametrize("size", [2, 3])
def test_a_cycle_raises_naming_its_members_and_all_live_on(
    procs: ProcMesh, cls: type[Any], size: int
) -> None:
    members = ring(procs, cls, size)
    with pytest.raises(DeadlockError) as caught:
        members[0].walk.call_one(size).get(timeout=60)
    for rank in range(size):
        assert f"member{rank}" in str(caught.value)
    for member in members:
        assert member.walk.call_one(size - 1).get(timeout=60) == size - 1


def test_an_actor_that_waits_for_itself_raises_at_once(procs: ProcMesh) -> None:
    me = procs.slice(gpus=0).spawn("me", Myself)
    with pytest.raises(DeadlockError, match="its own endpoint"):
        me.ask.call_one(me).get(timeout=60)
    assert me.answer.call_one().get(timeout=60) == "yes"


def test_a_cycle_of_concurrent_endpoints_is_none(procs: ProcMesh) -> None:
    members = ring(procs, OverlappingCaller, 2)
    assert members[0].walk.call_one(20).get(timeout=60) == 20


def test_long_waits_in_a_line_are_none(procs: ProcMesh) -> None:
    members = ring(procs, Caller, 3)
    slow = members[2].rest.call_one(2.0)
    assert members[0].walk.call_one(2).get(timeout=60) == 2
    assert slow.get(timeout=60) == 1


def test_a_wait_with_a_timeout_ends_by_itself(procs: ProcMesh) -> None:
    members = ring(procs, Caller, 2)
    assert members[0].walk_until.call_one(3, 1.5).get(timeout=60) == "timed out"
