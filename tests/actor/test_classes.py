"""What classes of actors may look like."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from roost.actor import (
    Actor,
    Endpoint,
    EndpointProperty,
    ProcMesh,
    as_endpoint,
    concurrent_endpoint,
    endpoint,
)

T = TypeVar("T")


class Base(Actor):
    limit: ClassVar[int] = 3

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @endpoint
    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @endpoint
    def twice(self, amount: int) -> int:
        return self.add(amount) + self.add(amount)

    def plain(self) -> str:
        return "plain"

    @staticmethod
    def static(value: int) -> int:
        return value + 1

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    @property
    def doubled(self) -> int:
        return self.value * 2

    @endpoint
    def everything(self) -> tuple[str, int, str, int, int]:
        return self.plain(), self.static(1), self.kind(), self.doubled, self.limit


class Overriding(Base):
    limit = 9

    @endpoint
    def add(self, amount: int) -> int:
        return super().add(amount) + 100

    @endpoint
    def plain(self) -> str:  # type: ignore[override]
        return "an endpoint now"


class Left(Base):
    @endpoint
    def side(self) -> str:
        return "left"


class Right(Base):
    @endpoint
    def side(self) -> str:
        return "right"

    @endpoint
    def only_right(self) -> str:
        return f"{self.side()} through right"


class Diamond(Left, Right):
    pass


class Mixin:
    @endpoint
    def greet(self) -> str:
        return f"hello from {type(self).__name__}"


class Mixed(Mixin, Base):
    pass


class Box(Actor, Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value

    @endpoint
    def get(self) -> T:
        return self.value


@dataclasses.dataclass
class Record(Actor):
    name: str
    sizes: list[int] = dataclasses.field(default_factory=list)

    @endpoint
    def grow(self, size: int) -> tuple[str, list[int]]:
        self.sizes.append(size)
        return self.name, self.sizes


class Slotted(Actor):
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 5

    @endpoint
    def read(self) -> int:
        return self.value


class Registered(Actor):
    """Its subclasses register themselves when they are made, also on the worker."""

    known: ClassVar[list[str]] = []

    def __init_subclass__(cls, tag: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.known.append(tag)

    @endpoint
    def tags(self) -> list[str]:
        return self.known


class Tagged(Registered, tag="tagged"):
    pass


def doubled(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> int:
        return 2 * function(*args, **kwargs)

    return inner


class Decorated(Actor):
    @endpoint
    @doubled
    def work(self, value: int) -> int:
        return value

    by_lambda = endpoint(lambda self, value=4: value)


@pytest.fixture(scope="module")
def place(procs: ProcMesh) -> ProcMesh:
    return procs.slice(gpus=0)


def test_endpoints_call_each_other_and_plain_methods_as_methods(place: ProcMesh) -> None:
    mesh = place.spawn("base", Base, 1)
    assert mesh.twice.call_one(2).get() == 3 + 5
    assert mesh.everything.call_one().get() == ("plain", 2, "Base", 10, 3)


def test_endpoints_are_overridden_and_super_works(place: ProcMesh) -> None:
    mesh = place.spawn("overriding", Overriding)
    assert mesh.add.call_one(1).get() == 101
    assert mesh.twice.call_one(1).get() == 102 + 103
    assert mesh.everything.call_one().get() == ("an endpoint now", 2, "Overriding", 6, 9)
    assert mesh.plain.call_one().get() == "an endpoint now"


def test_the_order_of_bases_decides(place: ProcMesh) -> None:
    mesh = place.spawn("diamond", Diamond)
    assert mesh.side.call_one().get() == "left"
    assert mesh.only_right.call_one().get() == "left through right"


def test_a_mixin_that_is_no_actor_brings_endpoints(place: ProcMesh) -> None:
    assert place.spawn("mixed", Mixed).greet.call_one().get() == "hello from Mixed"


def test_an_endpoint_that_is_overridden_by_a_plain_method_is_none_any_more(place: ProcMesh) -> None:
    class Withdrawn(Base):
        def add(self, amount: int) -> int:  # type: ignore[override]
            return -amount

    mesh = place.spawn("withdrawn", Withdrawn)
    assert not isinstance(mesh.add, Endpoint)
    assert as_endpoint(mesh.add).call_one(3).get() == -3
    assert mesh.twice.call_one(3).get() == -6


@pytest.mark.parametrize("value", [3, "three", [1, 2]])
def test_a_generic_class(place: ProcMesh, value: Any) -> None:
    assert place.spawn("box", Box, value).get.call_one().get() == value


def test_a_dataclass(procs: ProcMesh) -> None:
    mesh = procs.spawn("record", Record, "r", sizes=[1])
    assert mesh.grow.call(2).get().values() == [("r", [1, 2])] * 4


def test_slots_and_hooks_of_subclasses(place: ProcMesh) -> None:
    assert place.spawn("slotted", Slotted).read.call_one().get() == 5
    assert "tagged" in place.spawn("tagged", Tagged).tags.call_one().get()


def test_decorated_methods_keep_their_signature(place: ProcMesh) -> None:
    mesh = place.spawn("decorated", Decorated)
    assert mesh.work.call_one(4).get() == 8
    with pytest.raises(TypeError, match=r"work\(self, value"):
        mesh.work.call_one(1, 2)
    assert mesh.by_lambda.call_one().get() == 4
    assert mesh.by_lambda.call_one(value=5).get() == 5


def test_static_methods_and_class_methods_are_called_when_asked(place: ProcMesh) -> None:
    mesh = place.spawn("base", Base)
    assert as_endpoint(mesh.static).call_one(3).get() == 4
    assert as_endpoint(mesh.kind).call_one().get() == "Base"


def made_by_type(factor: int) -> type[Any]:
    attributes = {
        "factor": factor,
        "scaled": endpoint(lambda self, value: value * self.factor),
        "__doc__": "made on the fly",
    }
    return type(f"Scaled{factor}", (Base,), attributes)


def test_classes_made_on_the_fly_are_told_apart(procs: ProcMesh) -> None:
    meshes = [procs.spawn("scaled", made_by_type(factor)) for factor in (2, 3)]
    assert [mesh.scaled.call(5).get().values() for mesh in meshes] == [[10] * 4, [15] * 4]
    assert [mesh.add.call(1).get().values() for mesh in meshes] == [[1] * 4, [1] * 4]
    assert {mesh.everything.call_one().get()[2] for mesh in (m.slice(gpus=0) for m in meshes)} == {
        "Scaled2",
        "Scaled3",
    }


def test_a_local_class_has_what_it_closes_over(procs: ProcMesh) -> None:
    table = {"a": 1}
    suffix = "!"

    def helper(text: str) -> str:
        return text + suffix

    class Local(Base):
        @endpoint
        def look(self, key: str) -> tuple[int, str]:
            return table[key], helper(key)

    mesh = procs.spawn("local", Local)
    table["a"] = 2
    assert mesh.look.call("a").get().values() == [(1, "a!")] * 4


def test_a_class_sent_as_an_argument_is_spawned_there(procs: ProcMesh) -> None:
    class Spawner(Actor):
        @endpoint
        def run(self, cls: Any) -> Any:
            from roost.actor import this_proc

            return this_proc().spawn("made", cls, 7).add.call_one(1).get()

    spawners = procs.spawn("spawners", Spawner)
    for cls in (Base, Overriding, made_by_type(2)):
        expected = 108 if cls is Overriding else 8
        assert spawners.run.call(cls).get().values() == [expected] * 4


def test_the_descriptor_tells_what_a_method_is(place: ProcMesh) -> None:
    found = {name for name, value in vars(Base).items() if isinstance(value, EndpointProperty)}
    assert found == {"add", "twice", "everything"}
    assert not Base.add.is_async
    assert Base.add.__name__ == "add"
    assert isinstance(place.spawn("base", Base).add, Endpoint)

    class Overlapping(Actor):
        @concurrent_endpoint(propagate="cached", instrument=False)
        async def work(self) -> None:
            """Works."""

    assert Overlapping.work.is_async
    assert Overlapping.work.__doc__ == "Works."


def test_an_instance_outside_a_process_is_an_ordinary_object() -> None:
    base = Base(4)
    assert base.add(1) == 5
    assert base.logger.name == "Base"
    assert isinstance(base, Actor)


def test_an_actor_without_endpoints_is_spawned_and_stopped(place: ProcMesh) -> None:
    class Silent(Actor):
        def method(self) -> str:
            return "here"

    mesh = place.spawn("silent", Silent)
    mesh.initialized.get(timeout=20)
    assert as_endpoint(mesh.method).call_one().get(timeout=20) == "here"
    mesh.stop().get(timeout=20)


def test_a_hundred_actors_share_a_process(place: ProcMesh) -> None:
    meshes = [place.spawn(f"base{number}", Base, number) for number in range(100)]
    assert [mesh.add.call_one(1).get(timeout=20) for mesh in meshes] == list(range(1, 101))
    for mesh in meshes:
        mesh.stop().get(timeout=20)
