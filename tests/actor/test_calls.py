"""How endpoints are called, and in which order they run."""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from typing import Any

import pytest

from roost.actor import (
    Actor,
    Channel,
    Port,
    ProcMesh,
    as_endpoint,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    send,
)

from .conftest import eventually


class Base(Actor):
    def __init__(self, start: int = 0) -> None:
        self.count = start
        self.log: list[Any] = []

    @endpoint
    def add(self, amount: int = 1, *, scale: int = 1) -> int:
        """Adds to the count."""
        self.count += amount * scale
        return self.count

    @endpoint
    def note(self, item: Any) -> None:
        self.log.append(item)

    @endpoint
    def notes(self) -> list[Any]:
        return self.log

    @endpoint
    def where(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        return dict(current_rank()), current_size(), dict(context().actor_instance.rank)

    @endpoint
    def everything(self, a: Any, /, b: Any, *rest: Any, c: Any = 3, **more: Any) -> Any:
        return a, b, rest, c, more

    def plain(self, word: str) -> str:
        return word.upper()

    @endpoint
    def slow(self, seconds: float) -> int:
        time.sleep(seconds)
        self.count += 1
        return self.count


class Derived(Base):
    @endpoint
    def add(self, amount: int = 1, *, scale: int = 1) -> int:
        self.count += 1000
        return self.count

    @endpoint
    def more(self) -> str:
        return "more"


class Mixin:
    @endpoint
    def mixed(self) -> str:
        return type(self).__name__

    @classmethod
    def kind(cls) -> str:
        return cls.__name__


class Many(Mixin, Derived):
    pass


def test_call_gives_a_value_for_each_rank(procs: ProcMesh) -> None:
    counters = procs.spawn("counters", Base, 10)
    values = counters.add.call(5).get()
    assert [(point["gpus"], value) for point, value in values] == [(rank, 15) for rank in range(4)]


def test_call_one_gives_the_value(procs: ProcMesh) -> None:
    counters = procs.spawn("counters", Base, start=1)
    assert counters.slice(gpus=2).add.call_one(1, scale=10).get() == 11


def test_call_one_on_several_says_what_to_do(procs: ProcMesh) -> None:
    counters = procs.spawn("counters", Base)
    with pytest.raises(ValueError, match=r"call_one requires exactly 1 actor, but mesh has 4.*slice"):
        counters.add.call_one()


def test_choose_reaches_all_ranks_in_time(procs: ProcMesh) -> None:
    counters = procs.spawn("counters", Base)
    for future in [counters.add.choose() for _ in range(200)]:
        future.get()
    counts = counters.add.call(0).get().values()
    assert sum(counts) == 200
    assert all(counts)


def test_choose_prefers_ranks_that_are_not_busy(procs: ProcMesh) -> None:
    counters = procs.slice(gpus=slice(0, 2)).spawn("counters", Base)
    busy = [counters.slice(gpus=0).slow.call_one(1.0)]
    chosen = [counters.slow.choose(0.0) for _ in range(20)]
    for future in [*busy, *chosen]:
        future.get()
    assert len(counters.add.call(0).get()) == 2


def test_stream_gives_futures_in_the_order_of_completion_that_know_their_rank(procs: ProcMesh) -> None:
    class Sleeper(Actor):
        @endpoint
        def rest(self) -> int:
            rank = current_rank()["gpus"]
            time.sleep((3 - rank) * 0.2)
            return rank

    answers = [(future.get(), future.rank["gpus"]) for future in procs.spawn("s", Sleeper).rest.stream()]
    assert answers == [(3, 3), (2, 2), (1, 1), (0, 0)]


def test_stream_goes_on_after_a_rank_that_failed(procs: ProcMesh) -> None:
    class Fragile(Actor):
        @endpoint
        def work(self) -> int:
            if current_rank()["gpus"] == 1:
                raise LookupError("nothing here")
            return 1

    good, bad = 0, []
    for future in procs.spawn("f", Fragile).work.stream():
        try:
            good += future.get()
        except LookupError:
            bad.append(future.rank["gpus"])
    assert (good, bad) == (3, [1])


def test_async_for_streams_too(procs: ProcMesh) -> None:
    counters = procs.spawn("counters", Base)

    async def run() -> list[int]:
        return [await future async for future in counters.add.stream(2)]

    assert asyncio.run(run()) == [2, 2, 2, 2]


@pytest.mark.parametrize("cls", [Derived, Many])
def test_endpoints_are_inherited_and_overridden(procs: ProcMesh, cls: type[Any]) -> None:
    mesh = procs.slice(gpus=0).spawn("derived", cls)
    assert mesh.add.call_one().get() == 1000
    assert mesh.more.call_one().get() == "more"


def test_mixins_and_classes_made_on_the_fly(procs: ProcMesh) -> None:
    made = type("Made", (Many,), {"extra": endpoint(lambda self: self.count), "word": "hello"})
    mesh = procs.slice(gpus=0).spawn("made", made, 7)
    assert mesh.mixed.call_one().get() == "Made"
    assert mesh.extra.call_one().get() == 7
    assert as_endpoint(mesh.kind).call_one().get() == "Made"


def test_arguments_of_all_kinds_arrive(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("m", Base)
    assert mesh.everything.call_one(1, 2, 3, 4, c=5, d=6).get() == (1, 2, (3, 4), 5, {"d": 6})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1, 2), {}), ((), {"amuont": 1}), ((1,), {"amount": 2}), ((), {"scale": 1, "x": 2})],
)
def test_arguments_are_checked_before_anything_is_sent(
    procs: ProcMesh, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    mesh = procs.spawn("m", Base)
    for adverb in ("call", "choose", "broadcast", "stream"):
        with pytest.raises(TypeError, match=r"m\.add.*add\(self"):
            getattr(mesh.add, adverb)(*args, **kwargs)
    assert mesh.add.call(0).get().values() == [0] * 4


def test_messages_of_one_sender_arrive_in_order_whatever_slice_they_go_to(procs: ProcMesh) -> None:
    mesh = procs.spawn("m", Base)
    expected: dict[int, list[int]] = collections.defaultdict(list)
    for number in range(300):
        part, ranks = [
            (mesh, range(4)),
            (mesh.slice(gpus=number % 4), [number % 4]),
            (mesh.slice(gpus=slice(0, 4, 2)), [0, 2]),
            (mesh.flatten("x").slice(x=slice(1, 3)), [1, 2]),
        ][number % 4]
        if number % 3:
            part.note.broadcast(number)
        else:
            part.note.call(number)
        for rank in ranks:
            expected[rank].append(number)
    assert mesh.notes.call().get().values() == [expected[rank] for rank in range(4)]


def test_message_rank_is_that_of_the_mesh_as_sent_to(procs: ProcMesh) -> None:
    mesh = procs.spawn("m", Base)
    part = mesh.slice(gpus=slice(2, 4))
    assert part.where.call().get().values() == [
        ({"gpus": 0}, {"gpus": 2}, {"gpus": 2}),
        ({"gpus": 1}, {"gpus": 2}, {"gpus": 3}),
    ]
    assert mesh.slice(gpus=3).where.call_one().get() == ({}, {}, {"gpus": 3})
    split = mesh.split(gpus=("a", "b"), a=2).where.call().get()
    assert split.item(a=1, b=0)[0] == {"a": 1, "b": 0}


def test_a_plain_method_is_called_as_an_endpoint_only_when_asked(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("m", Base)
    assert as_endpoint(mesh.plain).call_one("quiet").get() == "QUIET"
    with pytest.raises(RuntimeError, match="as_endpoint"):
        mesh.plain("quiet")
    with pytest.raises(ValueError, match="method of a spawned actor"):
        as_endpoint(len)


def test_a_name_that_meshes_have_is_refused_with_a_way_out(procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match=r"endpoint\('stop'\)"):

        class Wrong(Actor):
            @endpoint
            def stop(self) -> None: ...

    class Right(Actor):
        @endpoint(shadowed=True)
        def size(self) -> str:
            return "large"

    mesh = procs.slice(gpus=0).spawn("right", Right)
    assert mesh.size() == 1
    assert mesh.endpoint("size").call_one().get() == "large"


def test_mixing_sync_and_async_endpoints_is_refused_naming_them(procs: ProcMesh) -> None:
    class Mixed(Actor):
        @endpoint
        def one(self) -> None: ...

        @endpoint
        async def two(self) -> None: ...

    with pytest.raises(ValueError, match="two are async def, one are not"):
        procs.spawn("mixed", Mixed)
    with pytest.raises(ValueError, match="subclasses of"):
        procs.spawn("no actor", dict)
    with pytest.raises(ValueError, match="async def"):
        concurrent_endpoint(lambda self: None)
    with pytest.raises(ValueError, match="stacked"):
        concurrent_endpoint(endpoint(Overlapping.go))


class Overlapping(Actor):
    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.started: list[int] = []
        self.gate = asyncio.Event()
        self.cancelled = 0

    @concurrent_endpoint
    async def go(self, number: int) -> int:
        self.started.append(number)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1
        return number

    @endpoint
    async def open(self) -> tuple[int, list[int]]:
        self.gate.set()
        return self.most, self.started


def test_concurrent_endpoints_overlap_and_start_in_order(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("m", Overlapping)
    futures = [mesh.go.call_one(number) for number in range(50)]
    assert mesh.open.call_one().get() == (50, list(range(50)))
    assert [future.get() for future in futures] == list(range(50))


class Explicit(Actor):
    def __init__(self) -> None:
        self.ports: list[Port[Any]] = []

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[Any], value: int) -> None:
        threading.Timer(0.05, port.send, [value * 2]).start()

    @endpoint(explicit_response_port=True)
    def keep(self, port: Port[Any]) -> None:
        self.ports.append(port)

    @endpoint
    def release(self) -> int:
        for number, port in enumerate(self.ports):
            port.send(number)
        return len(self.ports)

    @endpoint(explicit_response_port=True)
    def fail(self, port: Port[Any]) -> None:
        port.exception(KeyError("sent on purpose"))


def test_an_explicit_port_is_answered_later_while_other_messages_go_on(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("m", Explicit)
    kept = [mesh.keep.call_one() for _ in range(3)]
    assert mesh.later.call_one(21).get(timeout=20) == 42
    assert not any(future.done() for future in kept)
    assert mesh.release.call_one().get() == 3
    assert [future.get(timeout=20) for future in kept] == [0, 1, 2]
    with pytest.raises(KeyError, match="sent on purpose"):
        mesh.fail.call_one().get(timeout=20)


def test_an_explicit_port_works_from_another_process(procs: ProcMesh) -> None:
    class Passing(Actor):
        def __init__(self, other: Any) -> None:
            self.other = other

        @endpoint(explicit_response_port=True)
        def ask(self, port: Port[str]) -> None:
            self.other.answer.broadcast(port)

    class Answering(Actor):
        @endpoint
        def answer(self, port: Port[str]) -> None:
            port.send("from afar")

    other = procs.slice(gpus=1).spawn("answering", Answering)
    mesh = procs.slice(gpus=0).spawn("passing", Passing, other)
    assert mesh.ask.call_one().get(timeout=20) == "from afar"


def test_send_brings_each_answer_to_the_port(procs: ProcMesh) -> None:
    mesh = procs.spawn("m", Base)
    port, receiver = Channel[int].open()
    send(mesh.add, (5,), {}, port)
    assert [receiver.recv().get(timeout=20) for _ in range(4)] == [5] * 4
    send(mesh.add, (), {"amount": 1}, port, selection=2)
    send(mesh.add, (1,), {}, port, selection="choose")
    assert receiver.recv().get(timeout=20) + receiver.recv().get(timeout=20) in (12, 13)
    send(mesh.add, (100,), {})
    eventually(lambda: min(mesh.add.call(0).get().values()) >= 105)
    for wrong in ("some", 4, -1, True):
        with pytest.raises(ValueError, match=r"selection|not in a mesh"):
            send(mesh.add, (1,), {}, port, selection=wrong)


def test_retries_need_an_endpoint_that_may_be_repeated(procs: ProcMesh) -> None:
    class Repeatable(Actor):
        @endpoint(idempotent=True)
        def value(self) -> int:
            return 3

    mesh = procs.slice(gpus=0).spawn("m", Repeatable)
    assert mesh.value.options(retries=2).call_one().get(timeout=20) == 3
    with pytest.raises(ValueError, match="idempotent=True"):
        procs.spawn("n", Base).add.options(retries=1)


def test_propagate_and_instrument_are_accepted(procs: ProcMesh) -> None:
    class Described(Actor):
        @endpoint(propagate="inspect", instrument=False)
        def value(self) -> int:
            return 1

        @endpoint(propagate=lambda x: x)
        def same(self, x: int) -> int:
            return x

    mesh = procs.slice(gpus=0).spawn("m", Described)
    assert mesh.value.call_one().get() + mesh.same.call_one(2).get() == 3
    with pytest.raises(NotImplementedError, match="tensor"):
        mesh.same.rref(1)
