"""Exceptions of every shape: each reaches its caller as its own type, with what it carried."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import subprocess
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from roost.actor import Actor, ActorError, MeshFailure, ProcMesh, current_rank, endpoint
from roost.errors import RemoteException


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class NoText(Exception):
    """Hands nothing to its base, so that ``args`` is all that there is."""

    def __init__(self, first: int, second: int) -> None:
        self.sum = first + second


class OwnMessage(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.message, self.code = message, code


class Fixed(Exception):
    """Has read-only properties named like the fields that roost adds."""

    @property
    def rank(self) -> str:
        return "my rank"

    @property
    def host(self) -> str:
        return "my host"


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


@dataclasses.dataclass
class Data(Exception):
    code: int
    parts: list[int] = dataclasses.field(default_factory=list)


class Picky(Exception):
    """Its ``__new__`` does not take ``args`` either."""

    def __new__(cls, first: int, second: int) -> Picky:
        return super().__new__(cls, first)

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Final(Exception):
    def __init_subclass__(cls, **kwargs: Any) -> NoReturn:
        raise TypeError("no subclasses")


class Strict(Exception):
    def __init_subclass__(cls, *, needed: int) -> None:
        super().__init_subclass__()


class Reduced(Exception):
    def __init__(self, first: str, second: list[int]) -> None:
        super().__init__(first)
        self.second = second

    def __reduce__(self) -> Any:
        return Reduced, (self.args[0], self.second)


class Slots(Exception):
    __slots__ = ("extra",)

    def __init__(self, extra: str) -> None:
        super().__init__(f"with {extra}")
        self.extra = extra


class Meta(type):
    pass


class OfMetaclass(ValueError, metaclass=Meta):
    pass


class Sad(Exception):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]


class Both(KeyError, AttributeError):
    pass


MADE: dict[str, Callable[[], Exception]] = {
    "keyword only": lambda: KeywordOnly(code=3),
    "no text": lambda: NoText(1, 2),
    "own message": lambda: OwnMessage("mine", 5),
    "fixed properties": lambda: Fixed("fixed"),
    "frozen dataclass": lambda: Frozen(4),
    "dataclass": lambda: Data(4, [1]),
    "picky new": lambda: Picky(1, 2),
    "own reduce": lambda: Reduced("r", [1, 2]),
    "slots": lambda: Slots("slot"),
    "metaclass": lambda: OfMetaclass("meta"),
    "not comparable": lambda: Sad("sad"),
    "two bases": lambda: Both("both"),
    "called process": lambda: subprocess.CalledProcessError(3, ["ls"], b"out", b"err"),
    "json": lambda: json.JSONDecodeError("bad", "doc", 1),
}
REFUSE_SUBCLASSES: dict[str, Callable[[], Exception]] = {
    "final": lambda: Final("final"),
    "strict subclasses": lambda: Strict("strict"),
}


class Raiser(Actor):
    @endpoint
    def raise_made(self, name: str) -> None:
        raise {**MADE, **REFUSE_SUBCLASSES}[name]()

    @endpoint
    def raise_for(self, kinds: dict[int, str]) -> int:
        rank = current_rank().rank
        if rank in kinds:
            raise {"value": ValueError, "key": KeyError, "os": OSError, "odd": Frozen}[kinds[rank]](rank)
        return rank

    @endpoint
    def read(self, path: str) -> None:
        with open(path) as file:
            file.read()

    @endpoint
    def import_module(self, name: str) -> None:
        __import__(name)

    @endpoint
    def chain(self, kind: str) -> None:
        try:
            {"builtin": lambda: int("x"), "own": lambda: self._own()}[kind]()
        except Exception as error:
            raise (LookupError("outer") if kind == "builtin" else KeywordOnly(code=9)) from error

    def _own(self) -> None:
        raise KeywordOnly(code=8)

    @endpoint
    def during(self) -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904

    @endpoint
    def raise_lock(self) -> None:
        error = OwnMessage("has a lock", 1)
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    @endpoint
    def relay(self, other: Any, name: str) -> None:
        other.raise_made.call_one(name).get()

    @endpoint
    def ping(self) -> str:
        return "pong"


@pytest.fixture(scope="module")
def mesh(procs: ProcMesh) -> Any:
    return procs.spawn("raisers", Raiser)


@pytest.fixture(scope="module")
def one(mesh: Any) -> Any:
    return mesh.slice(gpus=2)


odd = [name for name in MADE if name != "fixed properties"] + ["fixed properties"]


@pytest.mark.parametrize("name", odd)
def test_an_odd_exception_is_caught_as_its_own_type_with_its_attributes(one: Any, name: str) -> None:
    made = MADE[name]()
    with pytest.raises(type(made)) as caught:
        one.raise_made.call_one(name).get(timeout=20)
    error: Any = caught.value
    assert isinstance(error, ActorError)
    assert type(error.exception) is type(made)
    assert error.exception.args == made.args
    assert str(error.exception) == str(made)
    assert vars(error.exception) == vars(made)
    assert error.exception_formatted.rstrip() in str(error)
    assert one.ping.call_one().get(timeout=20) == "pong"


@pytest.mark.parametrize("name", REFUSE_SUBCLASSES)
def test_an_exception_whose_class_has_no_subclasses_is_inside_an_actor_error(one: Any, name: str) -> None:
    with pytest.raises(ActorError) as caught:
        one.raise_made.call_one(name).get(timeout=20)
    made = REFUSE_SUBCLASSES[name]()
    assert type(caught.value.exception) is type(made)
    assert caught.value.exception.args == made.args


@pytest.mark.parametrize(
    "name",
    [
        "keyword only",
        "dataclass",
        "own reduce",
        "called process",
        "slots",
    ],
)
def test_the_error_itself_has_the_attributes_of_what_was_raised(one: Any, name: str) -> None:
    error: Any = one.raise_made.call_one(name).exception(timeout=20)
    made = MADE[name]()
    for attribute in {"code", "parts", "extra", "second", "returncode", "stderr"} & set(dir(made)):
        assert getattr(error, attribute) == getattr(made, attribute)


@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", ["keyword only", "called process", "metaclass"])
def test_an_actor_error_is_copied_with_all_that_it_knows(
    one: Any, name: str, again: Callable[[Any], Any]
) -> None:
    error: Any = one.raise_made.call_one(name).exception(timeout=20)
    other = again(error)
    assert isinstance(other, type(MADE[name]()))
    assert isinstance(other, ActorError)
    assert (other.actor, other.rank, other.host, other.pid) == (
        error.actor,
        error.rank,
        error.host,
        error.pid,
    )
    assert str(other) == str(error)


def test_builtin_exceptions_keep_what_is_not_in_their_args(one: Any) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        one.read.call_one("/nowhere/at/all").get(timeout=20)
    assert (missing.value.errno, missing.value.filename) == (2, "/nowhere/at/all")
    with pytest.raises(ModuleNotFoundError) as unknown:
        one.import_module.call_one("no_such_module").get(timeout=20)
    assert unknown.value.name == "no_such_module"


@pytest.mark.parametrize(
    ("kind", "outer", "inner"),
    [
        pytest.param(
            "builtin",
            LookupError,
            ValueError,
        ),
        ("own", KeywordOnly, KeywordOnly),
    ],
)
def test_the_cause_of_an_exception_comes_with_it(one: Any, kind: str, outer: Any, inner: Any) -> None:
    error: Any = one.chain.call_one(kind).exception(timeout=20)
    assert isinstance(error, outer)
    assert type(error.exception.__cause__) is inner
    assert "direct cause" in str(error)


def test_the_text_tells_during_what_an_exception_was_raised(one: Any) -> None:
    text = str(one.during.call_one().exception(timeout=20))
    assert "KeyError: 'first'" in text
    assert "During handling of the above exception" in text
    assert text.rstrip().endswith("ValueError: second")


def test_what_cannot_be_pickled_is_named_and_its_text_is_kept(one: Any) -> None:
    error: Any = one.raise_lock.call_one().exception(timeout=20)
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, RemoteException)
    assert error.exception.type_name.endswith("OwnMessage")
    assert "has a lock" in str(error)
    assert "in raise_lock" in error.exception_formatted
    assert one.ping.call_one().get(timeout=20) == "pong"


def test_an_error_that_went_through_two_actors_is_still_of_its_type(mesh: Any, one: Any) -> None:
    with pytest.raises(KeywordOnly) as caught:
        mesh.slice(gpus=0).relay.call_one(one, "keyword only").get(timeout=20)
    error: Any = caught.value
    assert error.code == 3
    assert "in relay" in str(error)
    assert "in raise_made" in str(error)


@pytest.mark.parametrize(
    ("kinds", "common"),
    [
        ({0: "value", 3: "value"}, ValueError),
        ({0: "value", 1: "key", 3: "os"}, None),
        ({0: "key", 1: "key", 2: "key", 3: "key"}, KeyError),
    ],
)
def test_errors_of_several_ranks_are_one_group(mesh: Any, kinds: dict[int, str], common: Any) -> None:
    error: Any = mesh.raise_for.call(kinds).exception(timeout=20)
    assert isinstance(error, ActorError)
    assert isinstance(error, ExceptionGroup)
    assert [one.rank["gpus"] for one in error.exceptions] == sorted(kinds)
    assert [one.exception.args for one in error.exceptions] == [(rank,) for rank in sorted(kinds)]
    if common is not None:
        assert isinstance(error, common)
    for rank in kinds:
        assert str(rank) in error.message


def test_except_star_takes_each_kind_and_leaves_the_rest(mesh: Any) -> None:
    taken: dict[str, list[int]] = {}
    with pytest.raises(ExceptionGroup) as left:  # noqa: PT012
        try:
            mesh.raise_for.call({0: "value", 1: "key", 2: "os", 3: "value"}).get(timeout=20)
        except* ValueError as group:
            taken["value"] = [one.rank["gpus"] for one in group.exceptions]
        except* KeyError as group:
            taken["key"] = [one.rank["gpus"] for one in group.exceptions]
    assert taken == {"value": [0, 3], "key": [1]}
    assert [one.rank["gpus"] for one in left.value.exceptions] == [2]


def test_a_group_is_picked_apart_and_travels(mesh: Any) -> None:
    error: Any = mesh.raise_for.call({0: "value", 1: "key"}).exception(timeout=20)
    match, rest = error.split(ValueError)
    assert [one.rank["gpus"] for one in match.exceptions] == [0]
    assert [one.rank["gpus"] for one in rest.exceptions] == [1]
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ExceptionGroup)
    assert [one.rank for one in again.exceptions] == [{"gpus": 0}, {"gpus": 1}]


def test_one_failed_rank_of_a_stream_spoils_no_other(mesh: Any) -> None:
    futures = list(mesh.raise_for.stream({1: "value", 2: "os"}))
    outcomes = [(future.exception(timeout=20), future.rank["gpus"]) for future in futures]
    assert sorted(rank for _, rank in outcomes) == [0, 1, 2, 3]
    assert {rank: type(error.exception) for error, rank in outcomes if isinstance(error, ActorError)} == {
        1: ValueError,
        2: OSError,
    }


def test_exceptions_are_values_when_they_are_returned(procs: ProcMesh, failures: list[MeshFailure]) -> None:
    class Giver(Actor):
        @endpoint
        def give(self, error: BaseException) -> BaseException:
            return error

    giver = procs.slice(gpus=0).spawn("giver", Giver)
    for error in (KeywordOnly(code=1), ValueError("v"), SystemExit(3), ExceptionGroup("g", [OSError(1)])):
        got = giver.give.call_one(error).get(timeout=20)
        assert type(got) is type(error)
        assert str(got) == str(error)
    assert failures == []
