"""Each misuse has an error that says what to do, before anything is sent where that can be."""

from __future__ import annotations

import abc
import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from roost.actor import (
    Accumulator,
    Actor,
    Channel,
    DeadlockError,
    Future,
    MeshFailure,
    ProcMesh,
    as_endpoint,
    concurrent_endpoint,
    context,
    endpoint,
    get_or_spawn_controller,
    send,
    this_host,
)

from .conftest import eventually


class Plain(Actor):
    def __init__(self) -> None:
        self.handled = 0

    @endpoint
    def take(self, value: int, *, scale: int = 1) -> int:
        self.handled += 1
        return value * scale

    @endpoint
    def count(self) -> int:
        return self.handled

    @endpoint(idempotent=True)
    def repeat(self) -> int:
        return 1

    def helper(self, value: int) -> int:
        return value

    async def async_helper(self) -> int:
        return 1


@pytest.fixture(scope="module")
def plain(procs: ProcMesh) -> Any:
    return procs.spawn("plain", Plain)


def listed(*names: str) -> str:
    return ".*".join(names)


MISUSES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "unknown dimension": (lambda m: m.slice(hosts=0), TypeError, "hosts.*gpus"),
    "index out of range": (lambda m: m.slice(gpus=4), IndexError, "4"),
    "negative index": (lambda m: m.slice(gpus=-1), IndexError, "-1"),
    "empty slice": (lambda m: m.slice(gpus=slice(2, 2)), ValueError, "gpus"),
    "negative step": (lambda m: m.slice(gpus=slice(3, 0, -1)), ValueError, "step"),
    "index of another type": (lambda m: m.slice(gpus="0"), TypeError, "gpus|int"),
    "unknown size": (lambda m: m.size("hosts"), KeyError, "hosts.*gpus"),
    "unknown rename": (lambda m: m.rename(hosts="h"), KeyError, "hosts.*gpus"),
    "sparse flatten": (lambda m: m.slice(gpus=slice(0, 4, 2)).flatten("x"), ValueError, "sparse"),
    "split that does not fit": (lambda m: m.split(gpus=("a", "b"), a=3), ValueError, "4"),
    "endpoint called as a function": (lambda m: m.take(1), TypeError, r"\.call\("),
    "endpoint called on the class": (lambda m: Plain.take(1), TypeError, r"spawn.*\.call"),
    "plain method called": (lambda m: m.helper(1), RuntimeError, "@endpoint.*as_endpoint"),
    "no such endpoint": (lambda m: m.tale, AttributeError, "'tale'.*count.*repeat.*take"),
    "no such endpoint by name": (lambda m: m.endpoint("tale"), AttributeError, "'tale'.*take"),
    "call_one on several": (lambda m: m.take.call_one(1), ValueError, "exactly 1.*4.*slice"),
    "rref": (lambda m: m.count.rref(), NotImplementedError, "tensor"),
    "as_endpoint of a function": (lambda m: as_endpoint(len), ValueError, "method of a spawned actor"),
    "send with an unknown selection": (
        lambda m: send(m.count, (), {}, selection="some"),
        ValueError,
        '"all".*"choose".*rank',
    ),
    "send to a rank that is not there": (lambda m: send(m.count, (), {}, selection=9), ValueError, "9.*4"),
    "send with arguments that do not fit": (lambda m: send(m.take, (), {}), TypeError, "value"),
    "accumulate with arguments that do not fit": (
        lambda m: Accumulator(m.take, 0, max).accumulate(),
        TypeError,
        "value",
    ),
    "spawn of no actor": (lambda m: this_host().spawn_procs().spawn("x", int), ValueError, "Actor.*int"),
    "spawn of an instance": (
        lambda m: this_host().spawn_procs().spawn("x", Plain()),
        ValueError,
        "only subclasses",
    ),
    "size of zero": (lambda m: this_host().spawn_procs({"gpus": 0}), ValueError, "gpus.*at least 1"),
    "size that is no number": (lambda m: this_host().spawn_procs({"gpus": 1.5}), ValueError, "gpus.*int"),
    "bootstrap that is no function": (lambda m: this_host().spawn_procs(bootstrap=3), TypeError, "function"),
    "binding of another length": (
        lambda m: this_host().spawn_procs({"gpus": 2}, proc_bind=[{}]),
        ValueError,
        "1.*2",
    ),
    "binding of an unknown kind": (
        lambda m: this_host().spawn_procs({"gpus": 1}, proc_bind=[{"core": "1"}]),
        ValueError,
        listed("core", "cpunodebind", "membind", "physcpubind", "cpus"),
    ),
    "a future made by hand": (lambda m: Future(), TypeError, "calls"),
    "a future as an argument": (
        lambda m: m.slice(gpus=0).take.call_one(m.count.call()),
        TypeError,
        "stays in its process",
    ),
    "a receiver as an argument": (
        lambda m: m.slice(gpus=0).take.call_one(Channel.open()[1]),
        TypeError,
        "Port",
    ),
    "a lock as an argument": (lambda m: m.take.call(threading.Lock()), TypeError, "lock"),
    "stopping a slice": (lambda m: m.slice(gpus=0).stop(), NotImplementedError, "owned"),
    "shutting a reference down": (lambda m: this_host().shutdown(), RuntimeError, "owned"),
    "stopping the client": (lambda m: context().actor_instance.stop("x"), RuntimeError, "client"),
    "a controller of no actor": (lambda m: get_or_spawn_controller("no", int).get(20), ValueError, "Actor"),
    "retries of what may not be repeated": (
        lambda m: m.take.options(retries=1),
        ValueError,
        "idempotent=True",
    ),
    "an option that is not there": (lambda m: m.take.options(time_out=1), TypeError, "time_out"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_says_what_to_do(plain: Any, name: str) -> None:
    misuse, kind, message = MISUSES[name]
    with pytest.raises(kind, match=message):
        misuse(plain)


@pytest.mark.parametrize("adverb", ["call", "choose", "stream", "broadcast"])
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing.*'value'"),
        ((1, 2), {}, "too many positional"),
        ((1,), {"skale": 2}, "unexpected keyword.*'skale'"),
        ((1,), {"value": 2}, "multiple values.*'value'"),
    ],
)
def test_wrong_arguments_are_refused_at_the_caller_and_not_sent(
    plain: Any, adverb: str, args: Any, kwargs: Any, message: str
) -> None:
    before = plain.count.call().get(timeout=20).values()
    with pytest.raises(TypeError, match=message + r".*take\(self, value.*scale"):
        getattr(plain.take, adverb)(*args, **kwargs)
    assert plain.count.call().get(timeout=20).values() == before


@pytest.mark.parametrize("adverb", ["call", "call_one", "choose", "stream", "broadcast"])
def test_an_adverb_on_a_plain_method_says_what_to_do(plain: Any, adverb: str) -> None:
    with pytest.raises((AttributeError, RuntimeError), match=r"@endpoint|as_endpoint"):
        getattr(plain.helper, adverb)(1)


def test_an_async_method_as_an_endpoint_of_a_sync_actor_is_refused(plain: Any) -> None:
    with pytest.raises(TypeError, match="async def"):
        as_endpoint(plain.slice(gpus=0).async_helper).call_one().get(timeout=20)
    assert plain.slice(gpus=0).repeat.call_one().get(timeout=20) == 1


@pytest.mark.parametrize("timeout", [-1, math.inf, math.nan, "1", True])
def test_a_timeout_that_is_none_is_refused(plain: Any, timeout: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="timeout"):
        plain.repeat.options(timeout=timeout)


def test_a_negative_number_of_retries_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match="retries"):
        plain.repeat.options(retries=-1)


NAMES_OF_EVERY_MESH = [
    "stop",
    "initialized",
    "slice",
    "split",
    "flatten",
    "rename",
    "size",
    "sizes",
    "extent",
]


@pytest.mark.parametrize("name", NAMES_OF_EVERY_MESH)
def test_an_endpoint_named_like_something_of_every_mesh_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}.*endpoint\('{name}'\)"):
        type("Colliding", (Actor,), {name: endpoint(lambda self: None)})


@pytest.mark.parametrize("name", NAMES_OF_EVERY_MESH)
def test_such_an_endpoint_of_a_mixin_is_refused_too(name: str) -> None:
    mixin = type("Mixin", (), {name: endpoint(lambda self: None)})
    with pytest.raises(ValueError, match=name):
        type("Colliding", (mixin, Actor), {})


@pytest.mark.parametrize("name", ["_name", "_class", "_target", "_region", "_endpoint"])
def test_an_endpoint_is_reached_or_refused_whatever_its_name(procs: ProcMesh, name: str) -> None:
    try:
        cls = type("Private", (Actor,), {name: endpoint(lambda self: "mine")})
    except ValueError:
        return
    mesh: Any = procs.slice(gpus=0).spawn("private", cls)
    assert getattr(mesh, name).call_one().get(timeout=20) == "mine"


@pytest.mark.parametrize("env", [{"A": 1}, {"A": None}, {"A=B": "1"}, {"": "1"}, {"A": "\0"}])
def test_variables_that_cannot_be_set_are_refused(env: Any, failures: list[MeshFailure]) -> None:
    def spawn() -> None:
        this_host().spawn_procs(env=env)
        eventually(lambda: failures)

    with pytest.raises((TypeError, ValueError)):
        spawn()


def test_sync_and_async_endpoints_do_not_mix_also_when_one_is_inherited(procs: ProcMesh) -> None:
    class Base(Actor):
        @endpoint
        def one(self) -> None: ...

    class Mixed(Base):
        @concurrent_endpoint
        async def two(self) -> None: ...

    with pytest.raises(ValueError, match=r"Mixed.*two.*async def, one are not"):
        procs.spawn("mixed", Mixed)


def test_a_supervise_that_is_async_is_refused_for_a_sync_actor(procs: ProcMesh) -> None:
    class Wrong(Actor):
        @endpoint
        def one(self) -> None: ...

        async def __supervise__(self, failure: Any) -> bool:
            return True

    with pytest.raises(ValueError, match="__supervise__ is async def"):
        procs.spawn("wrong", Wrong)


def test_an_abstract_endpoint_keeps_its_class_from_being_spawned(procs: ProcMesh) -> None:
    class Abstract(Actor, abc.ABC):
        @endpoint
        @abc.abstractmethod
        def work(self) -> int: ...

    with pytest.raises(TypeError, match=r"abstract.*work"):
        procs.slice(gpus=0).spawn("abstract", Abstract)


class Selfish(Actor):
    @concurrent_endpoint
    async def block_on_concurrent(self, me: Any) -> int:
        return me.other.call_one().get(timeout=1)  # type: ignore[no-any-return]

    @concurrent_endpoint
    async def other(self) -> int:
        return 1

    @endpoint
    async def await_own(self, me: Any) -> int:
        return await me.await_own.call_one(None)  # type: ignore[no-any-return]

    @concurrent_endpoint
    async def await_from_a_task(self, me: Any) -> int:
        return await me.sequential.call_one()  # type: ignore[no-any-return]

    @endpoint
    async def sequential(self) -> int:
        return 2


def test_a_wait_of_an_actor_for_itself_is_an_error(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("selfish", Selfish)
    with pytest.raises(DeadlockError, match=r"selfish\.await_own"):
        mesh.await_own.call_one(mesh).get(timeout=20)
    assert mesh.await_from_a_task.call_one(mesh).get(timeout=20) == 2


def test_blocking_a_loop_for_what_runs_in_it_is_an_error(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("selfish", Selfish)
    with pytest.raises(DeadlockError):
        mesh.block_on_concurrent.call_one(mesh).get(timeout=20)


def test_get_in_the_loop_of_a_program_warns_at_the_line_that_blocks(plain: Any) -> None:
    async def run() -> Any:
        with pytest.warns(UserWarning, match="await the future") as caught:
            value = plain.count.call().get(timeout=20)
        assert {warning.filename for warning in caught} <= {__file__}
        return value

    assert len(asyncio.run(run())) == 4
