"""No two actors share an object, however big it is and wherever they live."""

from __future__ import annotations

import array
import asyncio
import gc
import io
import mmap
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from roost.actor import Actor, Channel, Port, ProcMesh, concurrent_endpoint, endpoint, this_proc

MIB = 1 << 20
SIZES = [10, 8 << 10, 100 << 10, 4 * MIB]
"""Bytes on both sides of whatever bounds there are between ways to travel."""


class Holder(Actor):
    @endpoint
    def hold(self, value: Any) -> None:
        self.value = value

    @endpoint
    def held(self) -> Any:
        return self.value

    @endpoint
    def fill(self, byte: int) -> None:
        memoryview(self.value).cast("B")[:] = bytes([byte]) * memoryview(self.value).nbytes

    @endpoint
    def first_and_sum(self) -> tuple[int, int]:
        view = np.frombuffer(self.value, np.uint8)
        return int(view[0]), int(view.sum(dtype=np.uint64))

    @endpoint
    def through_port(self, port: Port[Any]) -> None:
        port.send(self.value)

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def same_object_twice(self, pair: Any) -> tuple[bool, Any]:
        one, other = pair
        return one is other, pair

    @endpoint
    def writes(self, value: Any) -> Any:
        value[...] = 7
        return value

    @endpoint
    def hand_on(self, other: Any) -> int:
        other.fill.call_one(9).get()
        return self.first_and_sum()[0]  # type: ignore[no-any-return]

    @endpoint
    def give_to(self, other: Any) -> None:
        other.hold.call_one(self.value).get()


class Kept(Actor):
    """Keeps what concurrent calls bring, and looks at it when all are there."""

    def __init__(self) -> None:
        self.all_there = asyncio.Event()
        self.waiting = 0

    @concurrent_endpoint
    async def total(self, value: Any, of: int) -> float:
        self.waiting += 1
        if self.waiting == of:
            self.all_there.set()
        await self.all_there.wait()
        return float(value.sum())


PLACES: dict[str, Callable[[ProcMesh], ProcMesh]] = {
    "another process": lambda procs: procs.slice(gpus=0),
    "the same process": lambda procs: this_proc(),
}


@pytest.fixture(scope="module", params=PLACES)
def holder(request: pytest.FixtureRequest, procs: ProcMesh) -> Any:
    return PLACES[request.param](procs).spawn("holder", Holder)


MAKERS: dict[str, Callable[[int], Any]] = {
    "array": lambda size: np.zeros(size, np.uint8),
    "bytearray": bytearray,
    "array.array": lambda size: array.array("B", bytes(size)),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", MAKERS)
def test_what_was_received_can_be_changed_and_changes_nothing_elsewhere(
    holder: Any, kind: str, size: int
) -> None:
    value = MAKERS[kind](size)
    holder.hold.call_one(value).get()
    holder.fill.call_one(1).get()
    assert not any(memoryview(value)[: min(size, 1000)])
    memoryview(value)[:] = bytes([2]) * size
    assert holder.first_and_sum.call_one().get() == (1, size)
    copies = [holder.held.call_one().get() for _ in range(2)]
    memoryview(copies[0])[:] = bytes([3]) * size
    assert memoryview(copies[1])[0] == 1
    assert holder.first_and_sum.call_one().get() == (1, size)


@pytest.mark.parametrize("size", SIZES)
def test_what_a_port_brings_can_be_changed_and_changes_nothing_elsewhere(holder: Any, size: int) -> None:
    holder.hold.call_one(np.ones(size, np.uint8)).get()
    port, receiver = Channel[Any].open()
    for _ in range(2):
        holder.through_port.broadcast(port)
    first, second = (receiver.recv().get(timeout=20) for _ in range(2))
    first[:] = 5
    assert second[0] == 1
    assert holder.first_and_sum.call_one().get() == (1, size)


@pytest.mark.parametrize("size", SIZES)
def test_ranks_of_one_call_share_nothing(procs: ProcMesh, size: int) -> None:
    mesh = procs.spawn("holders", Holder)
    value = np.ones(size, np.uint8)
    mesh.hold.call(value).get()
    mesh.slice(gpus=1).fill.call_one(4).get()
    assert [first for first, _ in mesh.first_and_sum.call().get().values()] == [1, 4, 1, 1]
    assert value[0] == 1
    values = mesh.held.call().get()
    values.item(gpus=0)[:] = 8
    assert [int(one[0]) for one in values.values()] == [8, 4, 1, 1]


@pytest.mark.parametrize("size", SIZES)
def test_actors_of_one_process_share_nothing(procs: ProcMesh, size: int) -> None:
    one, other = (procs.slice(gpus=2).spawn("holder", Holder) for _ in range(2))
    one.hold.call_one(np.ones(size, np.uint8)).get()
    one.give_to.call_one(other).get()
    assert one.hand_on.call_one(other).get() == 1
    assert other.first_and_sum.call_one().get()[0] == 9


@pytest.mark.parametrize("size", SIZES)
def test_a_result_is_one_object_however_often_it_is_looked_at(holder: Any, size: int) -> None:
    future = holder.writes.call_one(np.zeros(size, np.uint8))
    got = future.get()
    assert got is future.get()
    got[0] = 1
    assert future.get()[0] == 1
    assert got[1] == 7


def test_a_broadcast_is_of_its_time_though_it_is_handled_later(procs: ProcMesh) -> None:
    kept = procs.spawn("kept", Kept)
    value = np.zeros(300_000)
    calls = []
    for number in range(4):
        value[:] = number
        calls.append(kept.total.call(value, 4))
    value[:] = 100
    for number, call in enumerate(calls):
        assert call.get(timeout=20).values() == [number * 300_000.0] * 4


@pytest.mark.parametrize(
    ("kind", "size"),
    [(kind, size) for kind in (*MAKERS, "bytes") for size in SIZES],
)
def test_one_object_twice_in_a_message_is_one_object_there(holder: Any, kind: str, size: int) -> None:
    value = MAKERS[kind](size) if kind != "bytes" else bytes(size)
    same, pair = holder.same_object_twice.call_one((value, value)).get()
    assert same
    assert pair[0] is pair[1]


@pytest.mark.parametrize("make", [list, lambda items: dict(enumerate(items))], ids=["list", "dict"])
def test_one_container_of_big_bytes_twice_is_one_container_there(holder: Any, make: Any) -> None:
    inner = make([bytes(200_000), bytearray(200_000)])
    first, second, part = holder.echo.call_one([inner, inner, inner[1]]).get()
    assert first is second
    assert first[1] is part


def test_a_container_of_big_bytes_that_holds_itself(holder: Any) -> None:
    inner: list[Any] = [bytes(200_000)]
    inner.append(inner)
    got = holder.echo.call_one(inner).get()
    assert got[1] is got


settings.register_profile("calls", max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
calls = settings.get_profile("calls")


@calls
@given(
    hnp.arrays(
        dtype=st.one_of(
            hnp.scalar_dtypes(),
            hnp.array_dtypes(),
            hnp.byte_string_dtypes(),
            hnp.unicode_string_dtypes(),
        ),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
    ),
    st.data(),
)
def test_any_view_of_any_array_comes_back_as_from_pickle(
    holder: Any, base: np.ndarray, data: st.DataObject
) -> None:
    view = base
    if base.ndim:
        view = base[data.draw(hnp.basic_indices(base.shape, allow_ellipsis=False))]
    if isinstance(view, np.ndarray) and view.ndim > 1 and data.draw(st.booleans()):
        view = view.T
    expected = pickle.loads(pickle.dumps(view, 5))
    got = holder.echo.call_one(view).get()
    assert type(got) is type(expected)
    assert (got.dtype, got.shape, got.flags.writeable) == (
        expected.dtype,
        expected.shape,
        expected.flags.writeable,
    )
    assert (got.flags.c_contiguous, got.flags.f_contiguous) == (
        expected.flags.c_contiguous,
        expected.flags.f_contiguous,
    )
    assert got.tobytes() == expected.tobytes()


@calls
@given(st.lists(st.binary(max_size=300_000), max_size=4), st.booleans())
def test_bytes_among_other_things_come_back_equal(holder: Any, parts: list[bytes], as_keys: bool) -> None:
    value = dict.fromkeys(parts, 1) if as_keys else (parts, [bytearray(part) for part in parts])
    assert holder.echo.call_one(value).get() == value


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_an_array_is_as_writeable_as_it_was(holder: Any, size: int, writeable: bool) -> None:
    value = np.zeros(size, np.uint8)
    value.flags.writeable = writeable
    assert holder.echo.call_one(value).get().flags.writeable == writeable


def test_subclasses_and_records_keep_their_class(holder: Any) -> None:
    class Tagged(np.ndarray):
        pass

    for value in (
        np.zeros(100_000).view(Tagged),
        np.rec.fromarrays([np.arange(50_000), np.ones(50_000)], names="a,b"),
        np.ma.masked_less(np.arange(100_000), 5),
        np.memmap,
        np.float32(3),
        np.datetime64("2026-01-01"),
    ):
        got = holder.echo.call_one(value).get()
        assert type(got).__name__ == type(value).__name__
        assert np.array_equal(got, value) if isinstance(value, np.ndarray) else got == value


def test_files_in_memory_and_mapped_ones(holder: Any, tmp_path: Path) -> None:
    path = tmp_path / "data"
    np.arange(100_000).tofile(path)
    mapped = np.memmap(path, np.int64, mode="r")
    got = holder.echo.call_one(mapped).get()
    assert np.array_equal(got, mapped)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as window:
        view = np.frombuffer(window, np.int64)
        future = holder.echo.call_one(view)
        del view
        gc.collect()
        window[:8] = b"\xff" * 8
        assert future.get()[0] == 0
        with pytest.raises(TypeError, match="mmap"):
            holder.echo.call_one(window)
    assert holder.echo.call_one(io.BytesIO(b"x" * 200_000)).get().getvalue() == b"x" * 200_000


class Exporter:
    """Hands its memory to pickle by itself, as many libraries do."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Exporter, (pickle.PickleBuffer(self.data),)


@pytest.mark.parametrize("size", [0, *SIZES])
@pytest.mark.parametrize("make", [bytes, bytearray])
def test_any_object_that_exports_buffers_travels(holder: Any, make: Any, size: int) -> None:
    got = holder.echo.call_one([Exporter(make(size)), Exporter(make(size))]).get()
    assert [bytes(one.data) for one in got] == [bytes(size)] * 2
    assert memoryview(got[0].data).readonly == (make is bytes)


def test_threads_send_the_same_array_at_once(holder: Any) -> None:
    value = np.arange(200_000)
    errors: list[Any] = []

    def work() -> None:
        for _ in range(20):
            got = holder.writes.call_one(value).get()
            if not (got == 7).all():
                errors.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (value == np.arange(200_000)).all()
