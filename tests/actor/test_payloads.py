"""Big data arrives as it was sent, is shared with nobody, and its memory comes back."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import gc
import mmap
import os
import threading
import time
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roost.actor import Actor, ProcMesh, current_rank, endpoint
from roost.actor._runtime import runtime

from .conftest import eventually

MIB = 1 << 20


class Echo(Actor):
    def __init__(self) -> None:
        self.kept: Any = None

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def fill(self, array: Any) -> int:
        array[...] = current_rank().rank + 100
        return int(array.sum())

    @endpoint
    def keep(self, value: Any) -> None:
        self.kept = value

    @endpoint
    def give_kept(self) -> Any:
        return self.kept

    @endpoint
    def checksum(self, value: Any) -> int:
        return int(np.frombuffer(value, np.uint8).sum(dtype=np.uint64))

    @endpoint
    def kind(self, value: Any) -> tuple[str, bool]:
        return type(value).__name__, getattr(getattr(value, "flags", None), "writeable", True)

    @endpoint
    def memory_mib(self) -> float:
        gc.collect()
        runtime().node.trim()
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024

    @endpoint
    def trim(self) -> None:
        runtime().node.trim()

    @endpoint
    def pool(self) -> dict[str, int]:
        gc.collect()
        return runtime().node.stats()


@pytest.fixture(scope="module")
def echo(procs: ProcMesh) -> Any:
    return procs.slice(gpus=0).spawn("echo", Echo)


SIZES = [0, 1, 1000, 65_535, 65_536, 65_537, 3 * MIB + 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_of_all_sizes(echo: Any, kind: Any, size: int) -> None:
    value = kind(os.urandom(size))
    got = echo.echo.call_one(value).get()
    assert type(got) is kind
    assert got == value
    assert echo.echo.call_one({"nested": [value, (value,)]}).get() == {"nested": [value, (value,)]}


ARRAYS = {
    "matrix": np.arange(300_000, dtype="f8").reshape(500, 600),
    "fortran": np.asfortranarray(np.arange(200_000, dtype="i4").reshape(400, 500)),
    "strided": np.arange(400_000, dtype="i8")[::3],
    "transposed": np.arange(240_000, dtype="f4").reshape(2, 300, 400).transpose(2, 0, 1),
    "small": np.arange(10.0),
    "medium": np.arange(5000),
    "empty": np.empty((0, 5)),
    "scalar": np.array(3.5),
    "complex": np.ones(50_000, "c16") * 1j,
    "bool": np.arange(100_000) % 3 == 0,
    "structured": np.zeros(20_000, [("a", "i4"), ("b", "f8", (2,))]),
    "dates": np.arange("2020-01", "2025-01", dtype="datetime64[D]"),
    "text": np.array(["one", "three"] * 9000),
    "objects": np.array([{"a": 1}, None, "x"], dtype=object),
    "big endian": np.arange(50_000, dtype=">i8"),
    "masked": np.ma.masked_greater(np.arange(50_000), 10),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_all_kinds(echo: Any, name: str) -> None:
    array = ARRAYS[name]
    got = echo.echo.call_one(array).get()
    assert type(got) is type(array)
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    np.testing.assert_array_equal(got, array)
    if name != "masked":
        assert got.flags.writeable


def test_a_read_only_array_stays_one(echo: Any) -> None:
    array = np.arange(100_000)
    array.flags.writeable = False
    assert echo.kind.call_one(array).get() == ("ndarray", False)


@dataclasses.dataclass
class Record:
    name: str
    weights: np.ndarray
    when: datetime.datetime


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plain)
def test_plain_values_come_back_equal(echo: Any, value: Any) -> None:
    assert echo.echo.call_one(value).get() == value


def test_objects_with_buffers_inside(echo: Any) -> None:
    record = Record("r", np.arange(100_000), datetime.datetime(2026, 1, 2))
    got = echo.echo.call_one({"records": collections.deque([record])}).get()["records"][0]
    assert (got.name, got.when) == (record.name, record.when)
    np.testing.assert_array_equal(got.weights, record.weights)
    shared = np.arange(100_000)
    one, other = echo.echo.call_one((shared, shared)).get()
    assert one is other


def test_functions_and_classes_travel_by_value(echo: Any) -> None:
    factor = 3

    class Local:
        def value(self) -> int:
            return factor

    assert echo.echo.call_one(lambda x: x * factor).get()(2) == 6
    assert echo.echo.call_one(Local()).get().value() == 3


def test_what_others_do_with_it_never_shows(procs: ProcMesh, echo: Any) -> None:
    array = np.zeros(200_000, "i4")
    mesh = procs.spawn("fillers", Echo)
    sums = mesh.fill.call(array).get().values()
    assert sums == [200_000 * (100 + rank) for rank in range(4)]
    assert not array.any()
    echo.keep.call_one(array).get()
    array[:] = 7
    kept = echo.give_kept.call_one().get()
    assert not kept.any()
    kept[:] = 9
    assert not echo.give_kept.call_one().get().any()


def test_arguments_are_those_of_the_time_of_the_call(echo: Any) -> None:
    array = np.ones(500_000)
    items = [1, 2]
    futures = [echo.echo.call_one((array, items)) for _ in range(5)]
    array[:] = 0
    items.append(3)
    for future in futures:
        got, numbers = future.get()
        assert got.all()
        assert numbers == [1, 2]


def test_memory_views_and_maps(echo: Any, tmp_path: Any) -> None:
    data = os.urandom(300_000)
    path = tmp_path / "data"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        expected = int(np.frombuffer(data, np.uint8).sum(dtype=np.uint64))
        assert echo.checksum.call_one(np.frombuffer(mapped, np.uint8)).get() == expected


def test_many_buffers_in_one_message(echo: Any) -> None:
    state = {f"layer{number}": np.full(number % 300 + 1, number, "f4") for number in range(3000)}
    got = echo.echo.call_one(state).get()
    assert list(got) == list(state)
    assert all((got[name] == array).all() for name, array in state.items())


def test_a_quarter_of_a_gibibyte(echo: Any) -> None:
    array = np.arange(32 * MIB, dtype="i8")
    got = echo.echo.call_one(array).get()
    assert got[-1] == 32 * MIB - 1
    assert got[:: 1 << 16].sum() == array[:: 1 << 16].sum()


def test_received_arrays_outlive_their_sender_and_give_memory_back(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=1).spawn("mesh", Echo)
    node = runtime().node
    gc.collect()
    before = node.stats()["pool_blocks"]
    arrays = [mesh.echo.call_one(np.full(MIB, number, "i8")).get() for number in range(8)]
    assert [int(array[-1]) for array in arrays] == list(range(8))
    assert mesh.pool.call_one().get()["pool_blocks"] >= 8
    del arrays
    gc.collect()
    eventually(lambda: mesh.pool.call_one().get()["pool_blocks"] == 0, "blocks come back")
    eventually(lambda: node.stats()["pool_blocks"] <= before, "blocks come back here")
    mesh.trim.call_one().get()
    assert mesh.pool.call_one().get()["pool_bytes"] == 0


def test_memory_is_bounded_over_many_big_messages(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=2).spawn("mesh", Echo)
    before = mesh.memory_mib.call_one().get()
    array = np.ones(4 * MIB)
    for _ in range(30):
        mesh.echo.call_one(array).get()
    gc.collect()
    assert eventually(lambda: mesh.memory_mib.call_one().get() < before + 40, "given back")


def test_a_flood_waits_for_the_one_who_takes_it(procs: ProcMesh) -> None:
    class Slow(Actor):
        def __init__(self) -> None:
            self.count = 0

        @endpoint
        def pid(self) -> int:
            return os.getpid()

        @endpoint
        def rest(self, seconds: float) -> None:
            time.sleep(seconds)

        @endpoint
        def take(self, data: bytes) -> None:
            self.count += 1

        @endpoint
        def taken(self) -> int:
            return self.count

    slow = procs.slice(gpus=3).spawn("slow", Slow)
    process = psutil.Process(slow.pid.call_one().get(timeout=20))
    before = process.memory_info().rss
    highest = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.01):
            highest = max(highest, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    slow.rest.broadcast(1.5)
    for _ in range(5000):
        slow.take.broadcast(b"x" * 50_000)
    done.set()
    watcher.join()
    assert slow.taken.call_one().get(timeout=60) == 5000
    assert highest - before < 160 * MIB
