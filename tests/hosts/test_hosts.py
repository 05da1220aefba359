"""Programs on several hosts: everything works there as it does here."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from roost.actor import (
    Actor,
    ActorError,
    Channel,
    HostMesh,
    MeshFailure,
    SpawnError,
    SupervisionError,
    attach_to_workers,
    context,
    default_bootstrap_cmd,
    endpoint,
    this_host,
)

from .conftest import alive, eventually
from .members import Member


def test_a_mesh_spans_hosts_and_the_processes_of_each(members: Any) -> None:
    ranks = members.rank.call().get(timeout=30)

    assert dict(ranks.extent.items()) == {"hosts": 2, "gpus": 2}
    assert [rank for rank, _ in ranks.values()] == [0, 1, 2, 3]
    assert ranks.item(hosts=1, gpus=0)[1] == {"hosts": 1, "gpus": 0}


def test_each_host_has_an_agent_of_its_own(members: Any) -> None:
    parents = list(members.parent.call().get(timeout=30).values())

    assert parents[0] == parents[1] != parents[2] == parents[3]
    assert os.getpid() not in parents


def test_slices_over_hosts_and_within_one(members: Any) -> None:
    pids = list(members.pid.call().get(timeout=30).values())

    assert list(members.slice(hosts=1).pid.call().get(timeout=30).values()) == pids[2:]
    assert list(members.slice(gpus=1).pid.call().get(timeout=30).values()) == pids[1::2]
    assert members.slice(hosts=0, gpus=1).pid.call_one().get(timeout=30) == pids[1]
    assert members.flatten("all").slice(all=3).pid.call_one().get(timeout=30) == pids[3]


def test_a_slice_of_hosts_starts_processes_on_that_host(hosts: HostMesh, members: Any) -> None:
    parents = list(members.parent.call().get(timeout=30).values())
    procs = hosts.slice(hosts=1).spawn_procs({"gpus": 1})
    one = procs.spawn("one", Member)

    assert one.parent.call_one().get(timeout=30) == parents[2]
    procs.stop().get(timeout=30)


def test_an_exception_has_its_type_and_its_host(members: Any) -> None:
    with pytest.raises(KeyError, match="over there") as caught:
        members.slice(hosts=1, gpus=0).raises.call_one().get(timeout=30)

    assert isinstance(caught.value, ActorError)


def test_actors_on_different_hosts_call_each_other(members: Any) -> None:
    pids = list(members.pid.call().get(timeout=30).values())

    assert members.slice(hosts=0, gpus=0).ask.call_one(members.slice(hosts=1)).get(timeout=30) == pids[2:]
    assert members.slice(hosts=1, gpus=1).ask.call_one(members.slice(hosts=0)).get(timeout=30) == pids[:2]


def test_actors_here_and_there_call_each_other(members: Any) -> None:
    procs = this_host().spawn_procs({"here": 1})
    local = procs.spawn("local", Member)
    own = local.pid.call_one().get(timeout=30)

    assert set(members.ask.call(local).get(timeout=30).values().__iter__().__next__()) == {own}
    assert len(local.ask.call_one(members).get(timeout=30)) == 4
    procs.stop().get(timeout=30)


def test_ports_lead_back_from_everywhere(members: Any) -> None:
    port, receiver = Channel.open()
    members.send.broadcast(port, [1, 2, 3])
    came: dict[int, list[int]] = {}
    for _ in range(12):
        rank, value = receiver.ranked().recv().get(timeout=30)
        came.setdefault(rank, []).append(value)

    assert came == {rank: [1, 2, 3] for rank in range(4)}
    across = members.slice(hosts=0, gpus=0).collect.call_one(members.slice(hosts=1), 4).get(timeout=30)
    assert sorted(across) == ["a", "a", "b", "b"]


def test_a_port_that_a_third_host_holds_leads_to_its_own(members: Any) -> None:
    port = members.slice(hosts=0, gpus=1).open_port.call_one().get(timeout=30)
    members.slice(hosts=1, gpus=1).send.call_one(port, ["x", "y"]).get(timeout=30)

    assert members.slice(hosts=0, gpus=1).received.call_one(2).get(timeout=30) == ["x", "y"]


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1_000_001, 50_000_000])
def test_arrays_of_any_size_cross_both_ways(members: Any, size: int) -> None:
    one = members.slice(hosts=1, gpus=0)

    assert one.total.call_one(np.full(size, 2, np.uint8)).get(timeout=60) == 2 * size
    answer = one.fill.call_one(size).get(timeout=60)
    assert answer.shape == (size,)
    assert int(answer.sum(dtype=np.int64)) == 3 * size


def test_messages_to_one_actor_keep_their_order_whatever_their_size(members: Any) -> None:
    one = members.slice(hosts=1, gpus=1)
    port, receiver = Channel.open()
    values = [np.full(1_000_000 if number % 5 == 0 else 10, number) for number in range(20)]
    one.send.call_one(port, values).get(timeout=60)

    assert [int(receiver.recv().get(timeout=30)[0]) for _ in range(20)] == list(range(20))
    before = len(one.noted.call_one().get(timeout=30))
    for number in range(500):
        one.note.broadcast(number)
    assert one.noted.call_one().get(timeout=30)[before:] == list(range(500))


def test_a_class_that_no_file_has_travels_by_value(hosts: HostMesh) -> None:
    class Local(Actor):
        @endpoint
        def where(self) -> str:
            return context().actor_instance.class_name

    procs = hosts.spawn_procs()
    found = procs.spawn("local", Local).where.call().get(timeout=30)

    assert all("Local" in name for name in found.values())
    procs.stop().get(timeout=30)


def test_environment_bootstrap_and_commands(hosts: HostMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_THE_PROGRAM", "seen")

    def set_up() -> None:
        os.environ["FROM_BOOTSTRAP"] = str(os.getpid())

    procs = hosts.spawn_procs({"gpus": 1}, bootstrap=set_up, env=lambda point: {"PLACE": f"{point.rank}"})
    actors = procs.spawn("actors", Member)

    assert list(actors.variable.call("PLACE").get(timeout=30).values()) == ["0", "1"]
    assert list(actors.variable.call("FROM_THE_PROGRAM").get(timeout=30).values()) == ["seen", "seen"]
    pids = [str(pid) for pid in actors.pid.call().get(timeout=30).values()]
    assert list(actors.variable.call("FROM_BOOTSTRAP").get(timeout=30).values()) == pids
    procs.stop().get(timeout=30)

    command = default_bootstrap_cmd().with_env({"BY_COMMAND": "yes"})
    procs = hosts.spawn_procs({"gpus": 1}, bootstrap_command=command)
    assert set(procs.spawn("a", Member).variable.call("BY_COMMAND").get(timeout=60).values()) == {"yes"}
    procs.stop().get(timeout=30)


def test_a_bootstrap_that_raises_fails_the_mesh(hosts: HostMesh, failures: list[MeshFailure]) -> None:
    def wrong() -> None:
        raise LookupError("no device")

    procs = hosts.spawn_procs({"gpus": 1}, bootstrap=wrong)

    with pytest.raises(LookupError, match="no device"):
        procs.initialized.get(timeout=30)
    procs.stop().get(timeout=30)


def test_processes_are_bound(hosts: HostMesh) -> None:
    cpu = min(os.sched_getaffinity(0))
    procs = hosts.spawn_procs({"gpus": 1}, proc_bind=[{"cpus": str(cpu)}])

    class Bound(Actor):
        @endpoint
        def cpus(self) -> set[int]:
            return os.sched_getaffinity(0)

    assert all(cpus == {cpu} for cpus in procs.spawn("b", Bound).cpus.call().get(timeout=30).values())
    procs.stop().get(timeout=30)


def test_a_dead_rank_is_told_with_its_code_and_last_words(
    hosts: HostMesh, failures: list[MeshFailure]
) -> None:
    procs = hosts.spawn_procs({"gpus": 2})
    actors = procs.spawn("mortals", Member)
    actors.pid.call().get(timeout=30)

    with pytest.raises(SupervisionError, match="exited with code 7"):
        actors.slice(hosts=1, gpus=0).die.call_one(7).get(timeout=30)

    failure = eventually(lambda: failures and failures[0], "the owner hears of it")
    assert failure.exit_code == 7
    assert dict(failure.point) == {"hosts": 1, "gpus": 0}
    assert "last words" in failure.stderr_tail
    assert len(actors.slice(gpus=1).pid.call().get(timeout=30)) == 2
    procs.stop().get(timeout=30)


def test_a_third_host_hears_of_a_death(hosts: HostMesh, failures: list[MeshFailure]) -> None:
    procs = hosts.spawn_procs({"gpus": 2})
    actors = procs.spawn("mortals", Member)
    victim = actors.slice(hosts=1, gpus=0)
    waiting = actors.slice(hosts=0, gpus=0).ask.call_one(actors.slice(hosts=1))
    waiting.get(timeout=30)
    victim.kill.broadcast()

    with pytest.raises(SupervisionError, match="SIGKILL"):
        actors.slice(hosts=0, gpus=0).ask.call_one(victim).get(timeout=30)
    procs.stop().get(timeout=30)


def test_what_an_actor_has_started_on_its_host_ends_with_it(
    hosts: HostMesh, failures: list[MeshFailure]
) -> None:
    procs = hosts.slice(hosts=1).spawn_procs({"gpus": 1})
    parent = procs.spawn("parent", Member)
    kids = parent.breed.call_one().get(timeout=30)
    mesh = parent.offspring.call_one().get(timeout=30)
    assert list(mesh.pid.call().get(timeout=30).values()) == kids
    parent.kill.broadcast()

    eventually(lambda: not alive(kids), "the children are gone")
    procs.stop().get(timeout=30)


def test_a_controller_is_one_for_all_hosts(members: Any) -> None:
    counts = sorted(members.controller.call().get(timeout=30).values())

    assert counts == list(range(counts[0], counts[0] + 4))


def test_processes_that_are_handed_on_can_be_spawned_on(members: Any) -> None:
    proc = members.slice(hosts=1, gpus=1).me.call_one().get(timeout=30)
    made = proc.spawn("guest", Member)

    assert made.pid.call_one().get(timeout=30) == members.slice(hosts=1, gpus=1).pid.call_one().get(
        timeout=30
    )
    made.stop().get(timeout=30)


def test_what_is_printed_there_is_shown_here(members: Any, capsys: pytest.CaptureFixture[str]) -> None:
    members.slice(gpus=0).say.call("printed far away").get(timeout=30)

    shown = ""

    def has_come() -> bool:
        nonlocal shown
        shown += capsys.readouterr().out
        return "printed far away" in shown

    eventually(has_come)


def test_a_command_that_is_not_there_fails_the_spawn(hosts: HostMesh, failures: list[MeshFailure]) -> None:
    procs = hosts.with_python_executable("/no/such/python").spawn_procs({"gpus": 1})

    with pytest.raises(SpawnError, match="could not be started"):
        procs.initialized.get(timeout=30)
    eventually(lambda: {failure.rank for failure in failures} == {0, 1})
    procs.stop().get(timeout=30)


def test_a_reference_cannot_shut_hosts_down(hosts: HostMesh) -> None:
    with pytest.raises(RuntimeError, match="reference instead of owned"):
        hosts.slice(hosts=0).shutdown()


def test_attaching_twice_gives_the_same_hosts(hosts: HostMesh, members: Any) -> None:
    again = attach_to_workers(workers=list(hosts._addresses or []))

    assert again._agents == hosts._agents
    procs = again.spawn_procs()
    assert len(procs.spawn("m", Member).pid.call().get(timeout=30)) == 2
    procs.stop().get(timeout=30)
    assert len(members.pid.call().get(timeout=30)) == 4
