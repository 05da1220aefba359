"""Options of calls: time limits, partial results, retries, streams; and who is chosen."""

from __future__ import annotations

import asyncio
import collections
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from roost.actor import (
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Point,
    ProcMesh,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    send,
    this_host,
)

from .conftest import eventually
from .mortals import Mortal


class Worker(Actor):
    """Handles what the test wants, when the test wants it."""

    def __init__(self) -> None:
        self.begun = 0
        self.ports: list[Any] = []

    @endpoint
    def rest(self, seconds: float) -> int:
        time.sleep(seconds)
        return current_rank().rank

    @endpoint
    def rest_by_rank(self, seconds: list[float]) -> int:
        time.sleep(seconds[current_rank().rank])
        return current_rank().rank

    @endpoint
    def begin(self) -> int:
        self.begun += 1
        return self.begun

    @endpoint
    def ranks(self) -> tuple[int, int]:
        return context().actor_instance.rank.rank, current_rank().rank

    @endpoint
    def fail_on(self, ranks: list[int]) -> int:
        if current_rank().rank in ranks:
            raise ValueError(f"on {current_rank().rank}")
        return current_rank().rank

    @endpoint(explicit_response_port=True)
    def never(self, port: Any) -> None:
        self.ports.append(port)

    @endpoint
    def waiting(self) -> int:
        return len(self.ports)

    @endpoint
    def call_it(self, other: Any) -> Any:
        return other.call().get()


@pytest.fixture
def mesh(procs: ProcMesh) -> Any:
    return procs.spawn("workers", Worker)


@pytest.fixture
def one(mesh: Any) -> Any:
    return mesh.slice(gpus=0)


WAITS = {
    "get": lambda future: future.get(),
    "get with a longer timeout": lambda future: future.get(timeout=60),
    "await": lambda future: asyncio.run(_await(future)),
    "exception": lambda future: _raise(future.exception()),
}


async def _await(future: Any) -> Any:
    return await future


def _raise(error: BaseException | None) -> None:
    assert error is not None
    raise error


@pytest.mark.parametrize("how", WAITS)
@pytest.mark.parametrize("adverb", ["call_one", "call", "choose", "stream"])
def test_a_time_limit_ends_the_wait_however_one_waits(mesh: Any, adverb: str, how: str) -> None:
    part = mesh.slice(gpus=slice(0, 1)) if adverb != "call_one" else mesh.slice(gpus=0)
    made = getattr(part.rest.options(timeout=0.1), adverb)(0.4)
    future = next(made) if adverb == "stream" else made
    with pytest.raises(TimeoutError, match=r"workers\.rest did not answer within 0\.1 s"):
        WAITS[how](future)
    assert future.done()


def test_a_time_limit_that_is_over_is_told_to_callbacks(one: Any) -> None:
    future = one.never.options(timeout=0.1).call_one()
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(20)
    assert isinstance(future.exception(), TimeoutError)


def test_a_time_limit_that_is_over_is_seen_by_who_asks_now_and_then(one: Any) -> None:
    future = one.never.options(timeout=0.05).call_one()
    eventually(future.done, within_s=1.0)


def test_what_still_queues_when_the_time_is_over_is_not_begun(one: Any) -> None:
    busy = one.rest.call_one(0.5)
    late = [one.begin.options(timeout=0.05).call_one() for _ in range(10)]
    assert all(isinstance(future.exception(), TimeoutError) for future in late)
    busy.get(timeout=20)
    assert one.begin.call_one().get(timeout=20) == 1


def test_options_add_up_and_travel(mesh: Any, procs: ProcMesh) -> None:
    limited = mesh.rest.options(timeout=0.1).options(partial=True)
    again = pickle.loads(pickle.dumps(limited))
    for ep in (limited, again):
        values = ep.call(0.4).get(timeout=20).values()
        assert [type(value) for value in values] == [TimeoutError] * 4


def test_an_endpoint_travels_and_is_called_where_it_got_to(mesh: Any, procs: ProcMesh) -> None:
    asking = procs.slice(gpus=2).spawn("asking", Worker)
    got = asking.call_it.call_one(mesh.slice(gpus=slice(0, 2)).ranks).get(timeout=20)
    assert got.values() == [(0, 0), (1, 1)]


@pytest.mark.parametrize("bad", [[], [0], [1, 3], [0, 1, 2, 3]])
def test_a_partial_result_has_each_error_in_its_place(mesh: Any, bad: list[int]) -> None:
    values = mesh.fail_on.options(partial=True).call(bad).get(timeout=20)
    assert values.sizes == {"gpus": 4}
    for point, value in values:
        if point.rank in bad:
            assert isinstance(value, ValueError)
            assert isinstance(value, ActorError)
            assert value.rank == dict(point)
        else:
            assert value == point.rank


def test_a_partial_result_knows_who_was_too_late(mesh: Any) -> None:
    limited = mesh.rest_by_rank.options(partial=True, timeout=0.5)
    values = limited.call([0.0, 1.0, 0.0, 1.0]).get(timeout=20).values()
    assert [values[0], values[2]] == [0, 2]
    assert [type(values[rank]) for rank in (1, 3)] == [TimeoutError] * 2


def test_a_stream_brings_answers_in_the_order_in_which_they_are_ready(mesh: Any) -> None:
    stream = mesh.rest_by_rank.stream([0.6, 0.4, 0.2, 0.0])
    assert len(stream) == 4
    got = [(future.get(timeout=20), future.rank) for future in stream]
    assert [value for value, _ in got] == [3, 2, 1, 0]
    assert [rank for _, rank in got] == [Point(rank, mesh.extent) for rank in (3, 2, 1, 0)]
    assert list(stream) == []


def test_a_future_of_a_stream_knows_its_rank_before_it_is_looked_at(mesh: Any) -> None:
    futures = list(mesh.fail_on.stream([1]))
    eventually(lambda: all(future.done() for future in futures))
    assert sorted(future.rank["gpus"] for future in futures) == [0, 1, 2, 3]
    failed = [future for future in futures if future.exception(timeout=20) is not None]
    assert [future.rank["gpus"] for future in failed] == [1]


def test_a_future_of_a_stream_that_was_too_late_knows_its_rank(mesh: Any) -> None:
    futures = list(mesh.rest_by_rank.options(timeout=0.3).stream([0.0, 0.9, 0.0, 0.9]))
    late = [future for future in futures if isinstance(future.exception(), TimeoutError)]
    assert sorted(future.rank["gpus"] for future in late) == [1, 3]


def test_a_stream_is_read_in_a_loop(mesh: Any) -> None:
    async def run() -> list[tuple[int, int]]:
        return [(await future, future.rank.rank) async for future in mesh.rest.stream(0.0)]

    assert sorted(asyncio.run(run())) == [(rank, rank) for rank in range(4)]


def test_a_stream_may_be_left_before_its_end(mesh: Any) -> None:
    for future in mesh.rest.stream(0.1):
        future.get(timeout=20)
        break
    assert mesh.rest.call(0.0).get(timeout=20).values() == [0, 1, 2, 3]


def test_one_future_of_a_stream_that_is_cancelled_takes_no_other_with_it_unsaid(mesh: Any) -> None:
    busy = mesh.rest.call(0.3)
    futures = list(mesh.begin.stream())
    futures[0].cancel()
    busy.get(timeout=20)
    for future in futures[1:]:
        error = future.exception(timeout=20)
        assert error is None or isinstance(error, asyncio.CancelledError)


@pytest.mark.parametrize("how", ["choose", "send to one", "send to a chosen one"])
def test_who_was_chosen_knows_its_rank(mesh: Any, how: str) -> None:
    seen: collections.Counter[int] = collections.Counter()
    port, receiver = Channel[tuple[int, int]].open()
    for number in range(200):
        if how == "choose":
            own, told = mesh.ranks.choose().get(timeout=20)
        else:
            send(mesh.ranks, (), {}, port, selection=number % 4 if how == "send to one" else "choose")
            own, told = receiver.recv().get(timeout=20)
        assert own == told
        seen[own] += 1
    assert set(seen) == {0, 1, 2, 3}


def test_calls_are_spread_evenly_over_who_may_be_chosen(mesh: Any) -> None:
    under_way = [mesh.never.choose() for _ in range(400)]
    counts = mesh.waiting.call().get(timeout=20).values()
    assert sum(counts) == len(under_way)
    assert all(95 <= count <= 105 for count in counts)  # by chance alone they would be 100 give or take 9


def test_who_is_idle_is_chosen_as_often_as_the_others(mesh: Any) -> None:
    chosen = collections.Counter(mesh.ranks.choose().get(timeout=20)[0] for _ in range(400))
    assert all(60 <= chosen[rank] <= 140 for rank in range(4))  # 100 give or take 9


def test_who_is_busy_is_seldom_chosen(mesh: Any) -> None:
    under_way = [mesh.slice(gpus=1).never.call_one() for _ in range(5)]
    chosen = collections.Counter(mesh.ranks.choose().get(timeout=20)[0] for _ in range(200))
    assert chosen[1] < 200 / 4 / 2  # 1 in 16 is expected
    assert not any(future.done() for future in under_way)


@pytest.fixture
def dead(failures: list[MeshFailure]) -> Iterator[Any]:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = procs.spawn("mortals", Mortal)
    mesh.slice(gpus=1).die.call_one("kill").exception(timeout=20)
    eventually(lambda: failures)
    yield mesh
    procs.stop().get(timeout=20)


def test_a_port_hears_that_who_should_answer_is_dead(dead: Any) -> None:
    port, receiver = Channel[str].open()
    send(dead.ping, (), {}, port)
    outcomes = [receiver.recv() for _ in range(2)]
    errors = [future.exception(timeout=2) for future in outcomes]
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", "SupervisionError"]


def test_a_stream_and_a_partial_call_tell_of_the_dead_among_others(dead: Any) -> None:
    values = dead.ping.options(partial=True).call().get(timeout=20).values()
    assert values[0] == "pong"
    assert isinstance(values[1], SupervisionError)
    by_rank = {future.rank["gpus"]: future for future in dead.ping.stream() if future.exception(20) or True}
    assert by_rank[0].get(timeout=20) == "pong"
    assert isinstance(by_rank[1].exception(timeout=20), SupervisionError)


def test_a_dead_rank_is_not_chosen_over_a_living_one_for_ever(dead: Any) -> None:
    outcomes = [dead.ping.choose().exception(timeout=20) for _ in range(40)]
    assert None in outcomes


class Repeatable(Actor):
    @endpoint(idempotent=True)
    def work(self, text: str) -> str:
        if text == "bad":
            raise ValueError(text)
        return text


def test_retries_are_for_dead_actors_only(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("repeatable", Repeatable)
    again = mesh.work.options(retries=3)
    assert again.call_one("x").get(timeout=20) == "x"
    with pytest.raises(ValueError, match="bad"):
        again.call_one("bad").get(timeout=20)
    mesh.stop("for good").get(timeout=20)
    with pytest.raises(SupervisionError, match="for good"):
        again.call_one("x").get(timeout=20)


def test_retries_give_up_and_say_so(failures: list[MeshFailure]) -> None:
    procs = this_host().spawn_procs()
    mesh = procs.spawn("repeatable", Repeatable)
    procs.spawn("mortal", Mortal).die.call_one("kill").exception(timeout=20)
    with pytest.raises(SupervisionError) as caught:
        mesh.work.options(retries=2).call_one("x").get(timeout=20)
    assert any("3 times" in note for note in caught.value.__notes__)
    procs.stop().get(timeout=20)
