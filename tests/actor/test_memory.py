"""A death for lack of memory is recognised by the kernel's own records, and no other death taken for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roost.actor._memory import MemoryWatch


class Machine:
    """The files in which a kernel tells of its memory."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.version = version
        top = root / "sys/fs/cgroup"
        self.group = (top if version == 2 else top / "memory") / "job/worker"
        self.group.mkdir(parents=True)
        (root / "dev").mkdir()
        if version == 2:
            (top / "cgroup.controllers").write_text("memory\n")
        limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
        (self.group / limit).write_text("max" if version == 2 else str(2**63 - 4096))
        (self.group.parent / limit).write_text(f"{300 << 20}\n")
        self.write("proc/meminfo", f"MemTotal: {8 << 20} kB\n")
        for pid in (os.getpid(), 41, 42):
            line = "0::/job/worker\n" if version == 2 else "4:memory:/job/worker\n0::/\n"
            self.write(f"proc/{pid}/cgroup", line)
        self.count(machine=7, group=3)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def count(self, machine: int, group: int) -> None:
        self.write("proc/vmstat", f"nr_free_pages 1\noom_kill {machine}\n")
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        (self.group / name).write_text(f"oom 9\noom_kill {group}\n")

    def watch(self) -> MemoryWatch:
        made = MemoryWatch(str(self.root))
        made.look(41)
        made.look(42)
        return made


@pytest.fixture(params=[1, 2])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_the_count_of_the_cgroup_tells_and_the_limit_is_named(machine: Machine) -> None:
    watch = machine.watch()
    machine.count(machine=8, group=4)

    assert watch.verdict(42) == "killed by the kernel for lack of memory (limit 300 MiB)"
    assert watch.verdict(41) == ""  # one death, told once


def test_two_that_died_at_once_are_both_told(machine: Machine) -> None:
    watch = machine.watch()
    machine.count(machine=9, group=5)

    assert all("lack of memory" in watch.verdict(pid) for pid in (41, 42))


def test_a_death_elsewhere_on_the_machine_is_not_ours(machine: Machine) -> None:
    watch = machine.watch()
    machine.count(machine=9, group=3)

    assert watch.verdict(42) == ""


def test_a_kill_by_hand_is_not_for_memory(machine: Machine) -> None:
    assert machine.watch().verdict(42) == ""


@pytest.mark.parametrize(
    ("constraint", "limit"),
    [("CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,task_memcg=/job/x", 300),
     ("CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/job/x", 8192)],
)  # fmt: skip
def test_the_log_of_the_kernel_names_the_process(machine: Machine, constraint: str, limit: int) -> None:
    watch = machine.watch()
    machine.count(machine=8, group=3)
    machine.write("dev/kmsg", f"6,1,2,-;oom-kill:constraint={constraint},task=python,pid=42,uid=0\n")

    assert watch.verdict(42) == f"killed by the kernel for lack of memory (limit {limit} MiB)"


def test_a_machine_that_says_nothing_is_believed_nothing(tmp_path: Path) -> None:
    assert MemoryWatch(str(tmp_path)).verdict(42) == ""
