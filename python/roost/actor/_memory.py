"""Whether the kernel has killed a process for lack of memory, and at which limit."""

from __future__ import annotations

import os
import re
from pathlib import Path

_RECORD = re.compile(
    r"oom-kill:constraint=(\w+),.*?(?:oom_memcg=([^,]*),)?(?:task_memcg=[^,]*,)?task=.*,pid=(\d+),"
)
_NO_LIMIT = 1 << 60


class MemoryWatch:
    """Tells deaths for lack of memory from other deaths by SIGKILL.

    The kernel counts such deaths for the whole machine, so that a count that has not risen rules one out. One
    that has risen may be another program's: the kernel's log names the process where it is readable (and
    where process numbers here are the machine's), else the count of the process's cgroup decides.

    Args:
        root: where ``proc``, ``sys`` and ``dev`` are.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root)
        self._machine = self._machine_kills()
        self._seen: dict[Path, int | None] = {}
        self._groups: dict[int, Path | None] = {}
        self.look(os.getpid())
        self._own = self._groups.pop(os.getpid())

    def look(self, pid: int) -> None:
        """Remembers the cgroup of a living process: the kernel forgets it when the process dies."""
        group = self._group_of(pid)
        top = self._root / "sys/fs/cgroup"
        if pid in self._groups and group in (None, top, top / "memory"):
            return  # what a process that has just died shows
        self._groups[pid] = group
        if group is not None and group not in self._seen:
            self._seen[group] = _kills_in(group)

    def forget(self, pid: int) -> None:
        """The process has ended in another way."""
        self._groups.pop(pid, None)

    def verdict(self, pid: int) -> str:
        """Why a process that SIGKILL has ended was killed, if for lack of memory; else nothing."""
        group = self._groups.pop(pid, self._own)
        before, self._machine = self._machine, self._machine_kills()
        known = self._seen.get(group) if group is not None else None
        kills = _kills_in(group) if group is not None else None
        if self._machine <= before:
            return ""
        named = self._named_in_log(pid)
        if named is None:
            if group is not None and kills is not None:
                if kills <= (known or 0):
                    self._machine = before  # ours may be among those that are not asked about yet
                    return ""
                self._seen[group] = (known or 0) + 1  # others of the group may be told of one by one
            limit = self._limit(group)
        else:
            if group is not None and kills is not None and kills > (known or 0):
                self._seen[group] = (known or 0) + 1
            limit = self._limit(self._folder(named)) if named else self._memory_of_machine()
        # several may have died at once: the next that is asked about must find a risen count too
        self._machine = min(self._machine, before + 1)
        return "killed by the kernel for lack of memory" + (f" (limit {limit >> 20} MiB)" if limit else "")

    def _machine_kills(self) -> int:
        for line in _read(self._root / "proc/vmstat").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0

    def _group_of(self, pid: int) -> Path | None:
        """The folder of a process's memory cgroup, of either version."""
        for line in _read(self._root / f"proc/{pid}/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(",") or not controllers:
                folder = self._folder(path, unified=not controllers)
                if _kills_in(folder) is not None:
                    return folder
        return None

    def _folder(self, path: str, unified: bool | None = None) -> Path:
        top = self._root / "sys/fs/cgroup"
        if unified is None:
            unified = (top / "cgroup.controllers").exists()
        return (top if unified else top / "memory") / path.lstrip("/")

    def _named_in_log(self, pid: int) -> str | None:
        """The cgroup whose limit the kernel's log names with this process; empty for the machine's."""
        found = None
        for line in _log(self._root / "dev/kmsg").splitlines():
            record = _RECORD.search(line)
            if record and int(record[3]) == pid:
                found = (record[2] or "") if "MEMCG" in record[1] else ""
        return found

    def _limit(self, group: Path | None) -> int:
        """The narrowest limit of a cgroup and those around it, else the machine's memory."""
        limits = [self._memory_of_machine()]
        top = self._root / "sys/fs/cgroup"
        while group is not None and group != top and top in group.parents:
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = _read(group / name).strip()
                if text.isdigit():
                    limits.append(int(text))
            group = group.parent
        return min((limit for limit in limits if 0 < limit < _NO_LIMIT), default=0)

    def _memory_of_machine(self) -> int:
        for line in _read(self._root / "proc/meminfo").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) << 10
        return 0


def _kills_in(group: Path) -> int | None:
    """How many processes of a cgroup the kernel has killed; None where it does not say."""
    for name in ("memory.events", "memory.oom_control"):
        for line in _read(group / name).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _log(path: Path) -> str:
    """What the kernel's log holds, as far as it may be read; never waits for more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    parts: list[bytes] = []
    try:
        while True:
            try:
                part = os.read(fd, 8192)
            except BrokenPipeError:  # the kernel has overwritten the record meanwhile
                continue
            except OSError:
                break
            if not part:
                break
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace")
