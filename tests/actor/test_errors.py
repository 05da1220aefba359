"""What an endpoint raises reaches its caller as what a Python programmer expects."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from typing import Any

import pytest

from roost.actor import (
    Actor,
    ActorError,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    current_rank,
    endpoint,
    this_host,
)
from roost.errors import RemoteException, SerializationError

from .conftest import eventually


class Odd(Exception):
    """Its constructor does not take what it leaves in ``args``."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code, self.where = code, where


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Slotted(Exception):
    __slots__ = ("extra",)


class Raiser(Actor):
    @endpoint
    def throw(self, error: BaseException) -> None:
        raise error

    @endpoint
    def throw_made(self, name: str) -> None:
        if name == "unpicklable":
            raise Unpicklable
        if name == "local":

            class LocalError(LookupError):
                pass

            raise LocalError("of a local class")
        if name == "caused":
            try:
                int("x")
            except ValueError as error:
                raise KeyError("outer") from error
        if name == "noted":
            error = ValueError("noted")
            error.add_note("look here")
            raise error
        if name == "group":
            raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])

    @endpoint
    def some_fail(self, ranks: dict[int, type[Exception]]) -> int:
        rank = current_rank()["gpus"]
        if rank in ranks:
            raise ranks[rank](f"rank {rank}")
        return rank

    @endpoint
    def unpicklable(self) -> Any:
        return {"fine": 1, "lock": threading.Lock()}

    @endpoint
    def take(self, value: Any) -> str:
        return type(value).__name__

    @endpoint
    def ping(self) -> str:
        return "pong"


@pytest.fixture
def raiser(procs: ProcMesh) -> Any:
    return procs.slice(gpus=1).spawn("raiser", Raiser)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad value"),
        KeyError("missing"),
        OSError(2, "No such file", "x.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        StopIteration(3),
        StopAsyncIteration(),
        TimeoutError("too late"),
        Odd(7, where="home"),
        AssertionError(),
        Slotted("slots"),
        ConnectionResetError(104, "reset"),
        RecursionError("deep"),
        ExceptionGroup("two", [ValueError("a"), OSError("b")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_type_and_the_text_are_kept(procs: ProcMesh, error: BaseException) -> None:
    raiser = procs.slice(gpus=1).spawn("raiser", Raiser)
    with pytest.raises(type(error)) as caught:
        raiser.throw.call_one(error).get()
    assert isinstance(caught.value, ActorError)
    assert type(caught.value.exception) is type(error)
    assert str(caught.value.exception) == str(error)
    assert repr(caught.value.exception.args) == repr(error.args)
    assert raiser.ping.call_one().get() == "pong"


def test_the_error_says_who_where_and_how(raiser: Any) -> None:
    with pytest.raises(ValueError, match="raiser") as caught:
        raiser.throw.call_one(ValueError("bad")).get()
    error: Any = caught.value
    assert (error.actor, error.rank) == ("raiser", {})
    assert error.host
    assert error.pid not in (0, os.getpid())
    for part in (
        "Actor call raiser.throw failed",
        "Traceback",
        "test_errors.py",
        "in throw",
        "ValueError: bad",
    ):
        assert part in str(error)
    assert error.exception_formatted.rstrip() in str(error)
    assert error.message.startswith("Actor call raiser.throw failed")
    assert "_runner" not in str(error)


def test_attributes_of_the_exception_are_kept(raiser: Any) -> None:
    with pytest.raises(Odd) as caught:
        raiser.throw.call_one(Odd(7, where="home")).get()
    assert (caught.value.code, caught.value.where) == (7, "home")
    with pytest.raises(OSError, match="No such file") as missing:
        raiser.throw.call_one(FileNotFoundError(2, "No such file", "x.txt")).get()
    assert (missing.value.errno, missing.value.filename) == (2, "x.txt")


def test_causes_and_notes_travel(raiser: Any) -> None:
    with pytest.raises(KeyError) as caught:
        raiser.throw_made.call_one("caused").get()
    assert "ValueError: invalid literal" in str(caught.value)
    with pytest.raises(ValueError, match="noted") as noted:
        raiser.throw_made.call_one("noted").get()
    assert "look here" in str(noted.value)
    with pytest.raises(ExceptionGroup) as group:
        raiser.throw_made.call_one("group").get()
    assert [type(one) for one in group.value.exception.exceptions] == [ValueError, TypeError]  # type: ignore[attr-defined]


def test_an_exception_that_cannot_travel_is_named_by_a_stand_in(raiser: Any) -> None:
    with pytest.raises(ActorError, match="holds a lock") as caught:
        raiser.throw_made.call_one("unpicklable").get()
    assert isinstance(caught.value.exception, RemoteException)
    assert caught.value.exception.type_name.endswith("Unpicklable")
    assert raiser.ping.call_one().get() == "pong"


def test_an_exception_of_a_local_class_travels_by_value(raiser: Any) -> None:
    with pytest.raises(LookupError, match="of a local class"):
        raiser.throw_made.call_one("local").get()


def test_an_exception_whose_text_fails_does_no_harm(raiser: Any) -> None:
    with pytest.raises(Silent):
        raiser.throw.call_one(Silent()).get()
    assert raiser.ping.call_one().get() == "pong"


def test_an_actor_error_pickles_and_keeps_what_it_knows(raiser: Any) -> None:
    error: Any = raiser.throw.call_one(Odd(1, where="x")).exception()
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, Odd)
    assert isinstance(again, ActorError)
    assert (again.actor, again.pid, str(again)) == (error.actor, error.pid, str(error))


def test_several_failed_ranks_are_a_group_whose_members_know_theirs(procs: ProcMesh) -> None:
    mesh = procs.spawn("mesh", Raiser)
    mesh.ping.call().get(timeout=20)  # a call ends soon after the first failure, so all have to be there
    with pytest.raises(ExceptionGroup) as caught:
        mesh.some_fail.call({1: ValueError, 3: ValueError}).get()
    assert isinstance(caught.value, ActorError)
    assert isinstance(caught.value, ValueError)
    assert [one.rank for one in caught.value.exceptions] == [{"gpus": 1}, {"gpus": 3}]
    found = []
    try:
        mesh.some_fail.call({0: ValueError, 2: OSError}).get()
    except* ValueError as group:
        found += [one.rank for one in group.exceptions]
    except* OSError as group:
        found += [one.rank for one in group.exceptions]
    assert found == [{"gpus": 0}, {"gpus": 2}]
    with pytest.raises(ValueError, match="rank 2") as one:
        mesh.some_fail.call({2: ValueError}).get()
    assert not isinstance(one.value, ExceptionGroup)


def test_a_result_that_cannot_be_pickled_is_named_and_the_actor_lives(raiser: Any) -> None:
    with pytest.raises(SerializationError, match="lock") as caught:
        raiser.unpicklable.call_one().get()
    assert "raiser.unpicklable" in str(caught.value)
    assert "'lock'" in str(caught.value)
    assert raiser.ping.call_one().get() == "pong"


def test_an_argument_that_cannot_be_pickled_is_named_and_nothing_is_sent(raiser: Any) -> None:
    with pytest.raises(SerializationError, match=r"lock.*deep"):
        raiser.take.call_one({"deep": [1, threading.Lock()]})
    with pytest.raises(TypeError):
        raiser.take.broadcast(threading.Lock())
    assert raiser.take.call_one(3).get() == "int"


class Explosive:
    """Pickles well, and cannot be loaded."""

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise ImportError("cannot be loaded here")


class Giver(Actor):
    @endpoint
    def give(self) -> Any:
        return Explosive()


def test_what_cannot_be_loaded_fails_that_message_only(procs: ProcMesh, raiser: Any) -> None:
    with pytest.raises(ImportError, match="cannot be loaded here"):
        raiser.take.call_one(Explosive()).get()
    assert raiser.ping.call_one().get() == "pong"
    giver = procs.slice(gpus=0).spawn("giver", Giver)
    with pytest.raises(ImportError, match="cannot be loaded here"):
        giver.give.call_one().get()


def test_an_init_that_raises_fails_the_first_call_with_that_error(
    procs: ProcMesh, failures: list[MeshFailure]
) -> None:
    class Unborn(Actor):
        def __init__(self, limit: int) -> None:
            raise OverflowError(f"more than {limit}")

        @endpoint
        def ping(self) -> None: ...

    mesh = procs.slice(gpus=0).spawn("unborn", Unborn, 3)
    with pytest.raises(OverflowError, match="more than 3"):
        mesh.ping.call_one().get(timeout=20)
    with pytest.raises(OverflowError, match="more than 3"):
        mesh.initialized.get(timeout=20)
    failure = eventually(lambda: failures, "the owner hears of it")[0]
    assert failure.mesh_name == "unborn"
    assert isinstance(failure.cause, OverflowError)
    assert procs.slice(gpus=0).spawn("born", Raiser).ping.call_one().get(timeout=20) == "pong"


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError("there")]
)
def test_a_base_exception_kills_the_actor_and_its_caller_is_told(
    procs: ProcMesh, failures: list[MeshFailure], error: BaseException
) -> None:
    mesh = procs.slice(gpus=0).spawn("doomed", Raiser)
    with pytest.raises(ActorError, match=type(error).__name__):
        mesh.throw.call_one(error).get(timeout=20)
    with pytest.raises(SupervisionError, match="doomed"):
        mesh.ping.call_one().get(timeout=20)
    assert eventually(lambda: failures)[0].mesh_name == "doomed"
    assert procs.slice(gpus=0).spawn("next", Raiser).ping.call_one().get(timeout=20) == "pong"


class Doomed(Raiser):
    @endpoint
    def die(self, ranks: list[int]) -> str:
        if current_rank()["gpus"] in ranks:
            os._exit(5)
        raise LookupError("alive, and of no help")


def test_several_lost_ranks_are_a_group_whose_members_know_theirs(failures: list[MeshFailure]) -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    doomed = procs.spawn("doomed", Doomed)
    doomed.initialized.get(timeout=20)
    with pytest.raises(SupervisionError) as caught:
        doomed.die.options(timeout=20).call([0, 2]).get(timeout=30)
    if isinstance(caught.value, ExceptionGroup):  # the second may come too late to be waited for
        assert {type(one).__mro__[1] for one in caught.value.exceptions} <= {RuntimeError, ActorError}
        assert all(set(one.rank) == {"gpus"} for one in caught.value.exceptions)
    with pytest.raises(ExceptionGroup) as later:
        doomed.ping.call().get(timeout=20)
    assert isinstance(later.value, SupervisionError)
    assert [one.rank for one in later.value.exceptions] == [{"gpus": 0}, {"gpus": 2}]
    assert "code 5" in str(later.value)
    procs.stop().get(timeout=20)


def test_a_traceback_shows_the_line_also_of_a_class_that_travelled_by_value(procs: ProcMesh) -> None:
    class Local(Actor):
        @endpoint
        def fail(self) -> float:
            return 1 / 0  # this very line

    with pytest.raises(ZeroDivisionError, match="this very line"):
        procs.slice(gpus=0).spawn("local", Local).fail.call_one().get(timeout=20)


def test_an_actor_whose_arguments_cannot_be_loaded_is_a_failure(
    procs: ProcMesh, failures: list[MeshFailure]
) -> None:
    mesh = procs.slice(gpus=0).spawn("unloadable", Taker, Explosive())
    with pytest.raises(ImportError, match="cannot be loaded here"):
        mesh.ping.call_one().get(timeout=20)
    failure = eventually(lambda: failures)[0]
    assert failure.mesh_name == "unloadable"
    assert isinstance(failure.cause, ImportError)


class Taker(Actor):
    def __init__(self, value: Any) -> None: ...

    @endpoint
    def ping(self) -> None: ...
