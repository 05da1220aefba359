"""Meshes of hosts, processes and actors: sliced, sent about, and used wherever they get to."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roost.actor import (
    Actor,
    ActorMesh,
    HostMesh,
    ProcMesh,
    ValueMesh,
    context,
    current_rank,
    endpoint,
    get_active_proc_meshes,
    register_proc_mesh_spawn_callback,
    this_host,
    this_proc,
    unregister_proc_mesh_spawn_callback,
)
from roost.errors import ActorError


class Ranked(Actor):
    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank

    @endpoint
    def point(self) -> dict[str, int]:
        return dict(current_rank())

    @endpoint
    def ask(self, other: Any) -> list[int]:
        return other.rank.call().get().values()  # type: ignore[no-any-return]

    @endpoint
    def same(self, value: Any) -> Any:
        return value

    @endpoint
    def instance(self) -> dict[str, Any]:
        me = context().actor_instance
        return {
            "name": me.name,
            "class_name": me.class_name,
            "actor_id": str(me.actor_id),
            "proc_id": me.proc_id,
            "proc": me.proc.sizes,
            "mesh": me.proc_mesh.sizes,
            "repr": repr(me),
        }


@pytest.fixture(scope="module")
def ranked(procs: ProcMesh) -> Any:
    mesh = procs.split(gpus=("a", "b"), a=2).spawn("ranked", Ranked)
    mesh.initialized.get(timeout=60)
    return mesh


picks = st.one_of(
    st.integers(0, 1),
    st.builds(slice, st.one_of(st.none(), st.integers(0, 1)), st.none(), st.sampled_from([None, 1, 2])),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(a=picks, b=picks)
def test_a_slice_reaches_the_ranks_that_numpy_would_take(ranked: Any, a: Any, b: Any) -> None:
    expected = np.arange(4).reshape(2, 2)[a, b]
    part = ranked.slice(a=a, b=b)
    assert part.rank.call().get().values() == list(expected.flat)
    assert tuple(part.sizes.values()) == expected.shape


def test_views_of_views_reach_the_same_ranks(ranked: Any) -> None:
    assert ranked.flatten("x").slice(x=3).rank.call_one().get() == 3
    assert ranked.rename(a="host").slice(host=1).rank.call().get().values() == [2, 3]
    point = next(iter(ranked.rank.call().get()))[0]
    assert ranked.slice(**point).rank.call_one().get() == 0


def test_every_kind_of_mesh_has_the_same_manners(ranked: Any, procs: ProcMesh) -> None:
    for mesh in (ranked, procs.split(gpus=("a", "b"), b=2), ranked.rank.call().get()):
        assert mesh.sizes == {"a": 2, "b": 2}
        assert (len(mesh), mesh.size(), mesh.size("a"), mesh.size(["a", "b"])) == (4, 4, 2, 4)
        assert mesh.extent.labels == ["a", "b"]
        assert "a=0" in mesh.to_table()
        with pytest.raises((KeyError, TypeError), match=r"'c'.*a, b|c.*\{a: 2, b: 2\}|no dimension"):
            mesh.slice(c=0)
        for wrong in (2, -1):
            with pytest.raises(IndexError):
                mesh.slice(a=wrong)
        with pytest.raises(ValueError, match=r"nothing|empty|no rank"):
            mesh.slice(a=slice(1, 1))
    host = this_host()
    assert (len(host), host.sizes, host.extent.labels) == (1, {}, [])
    assert isinstance(host, HostMesh)


def test_a_mesh_travels_and_is_called_from_where_it_got_to(ranked: Any) -> None:
    part = ranked.slice(a=1)
    first = ranked.slice(a=0, b=0)
    assert first.ask.call_one(part).get() == [2, 3]
    assert first.same.call_one(part).get() == part
    assert pickle.loads(pickle.dumps(part)).rank.call().get().values() == [2, 3]
    kept = first.same.call_one({"parts": [part, ranked.slice(b=0)]}).get()
    assert kept["parts"][1].rank.call().get().values() == [0, 2]
    assert len({part, pickle.loads(pickle.dumps(part)), ranked}) == 2


def test_meshes_still_starting_may_be_sent(procs: ProcMesh, ranked: Any) -> None:
    late = procs.spawn("late", Ranked)
    assert ranked.slice(a=0, b=0).ask.call_one(late).get() == [0, 1, 2, 3]


def test_users_may_set_attributes_on_handles(ranked: Any) -> None:
    ranked.note = "mine"
    assert ranked.note == "mine"
    del ranked.note
    with pytest.raises(AttributeError, match="no endpoint 'note'"):
        ranked.note  # noqa: B018


def test_handles_are_instances_of_public_classes(ranked: Any, procs: ProcMesh) -> None:
    assert isinstance(ranked, ActorMesh)
    assert isinstance(ranked.rank.call().get(), ValueMesh)
    assert "ranked" in repr(ranked)
    assert "Ranked" in repr(ranked)
    assert "shared" in repr(procs)


def test_an_actor_knows_itself(ranked: Any) -> None:
    told = ranked.slice(a=1, b=0).instance.call_one().get()
    assert told["name"] == "ranked"
    assert told["class_name"].endswith("Ranked")
    assert told["proc"] == {}
    assert told["mesh"] == {"a": 2, "b": 2}
    assert "ranked" in told["actor_id"]
    assert told["proc_id"] in told["actor_id"]
    assert "'a': 1/2" in told["repr"]


def test_the_client_is_an_actor_too() -> None:
    me = context().actor_instance
    assert me.name == "client"
    assert dict(current_rank()) == {}
    assert str(me.actor_id)
    with pytest.raises(RuntimeError, match="client"):
        me.stop("no")


def test_this_proc_spawns_in_the_callers_process() -> None:
    import os

    class Here(Actor):
        @endpoint
        def pid(self) -> int:
            return os.getpid()

    mesh = this_proc().spawn("here", Here)
    assert mesh.pid.call_one().get(timeout=20) == os.getpid()
    assert len(this_proc()) == 1
    mesh.stop().get(timeout=20)


def test_dimensions_of_hosts_and_processes() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        this_host().spawn_procs({"gpus": 0})
    with pytest.raises(TypeError, match="without arguments"):
        this_host().spawn_procs({"gpus": 1}, bootstrap=3)  # type: ignore[arg-type]
    single = this_host().spawn_procs(name="single")
    assert single.sizes == {}
    assert single.host_mesh == this_host()
    assert single.spawn("r", Ranked).rank.call_one().get(timeout=20) == 0
    grid = this_host().spawn_procs({"x": 2, "y": 2})
    assert grid.spawn("r", Ranked).point.call().get(timeout=20).item(x=1, y=0) == {"x": 1, "y": 0}
    single.stop().get(timeout=20)
    grid.stop().get(timeout=20)


def test_spawn_callbacks_hear_of_new_meshes() -> None:
    seen: list[ProcMesh] = []
    register_proc_mesh_spawn_callback(seen.append)
    mesh = this_host().spawn_procs({"gpus": 1})
    unregister_proc_mesh_spawn_callback(seen.append)
    other = this_host().spawn_procs({"gpus": 1})
    assert seen == [mesh]
    assert {mesh, other} <= set(get_active_proc_meshes())
    mesh.stop().get(timeout=20)
    other.stop().get(timeout=20)
    assert not {mesh, other} & set(get_active_proc_meshes())
    with pytest.raises(ValueError, match="not registered"):
        unregister_proc_mesh_spawn_callback(seen.append)


def test_values_are_rebuilt_when_they_are_looked_at(procs: ProcMesh) -> None:
    class Giver(Actor):
        @endpoint
        def give(self) -> Any:
            return Bomb() if current_rank()["gpus"] == 2 else 1

    values = procs.spawn("giver", Giver).give.call().get()
    assert values.item(gpus=0) == 1
    with pytest.raises(ArithmeticError):
        values.item(gpus=2)
    assert not issubclass(ArithmeticError, ActorError)


class Bomb:
    def __reduce__(self) -> Any:
        return _bomb, ()


def _bomb() -> None:
    raise ArithmeticError("only when looked at")
