"""An actor's view of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roost._shape import Point
    from roost.actor._proc_mesh import ProcMesh


class Uid:
    """Identity of something, opaque but for its text.

    Attributes:
        label: for people; two identities with one label are still two.
    """

    __slots__ = ("_value", "label")

    def __init__(self, value: int, label: str = "") -> None:
        self._value, self.label = value, label

    @classmethod
    def anonymous(cls) -> Uid:
        """A fresh identity without a label."""
        return cls.instance()

    @classmethod
    def instance(cls, label: str | None = None) -> Uid:
        """A fresh identity."""
        import secrets

        return cls(secrets.randbits(64), label or "")

    @classmethod
    def from_string(cls, text: str) -> Uid:
        """The identity that `str` has given as this text.

        Raises:
            ValueError: it has given no such text.
        """
        label, bracket, value = text.removesuffix(">").rpartition("<")
        if not bracket or not text.endswith(">"):
            raise ValueError(f"{text!r} is no identity; one looks like name<00000000000000ff>")
        return cls(int(value, 16), label)

    def __str__(self) -> str:
        return f"{self.label}<{self._value:016x}>"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uid) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class ProcId:
    """Identity of a process, opaque but for its text."""

    __slots__ = ("label", "mesh", "rank")

    def __init__(self, mesh: int, rank: int, label: str = "") -> None:
        self.mesh, self.rank, self.label = mesh, rank, label

    @property
    def uid(self) -> Uid:
        """Identity of the mesh of processes that it is one of."""
        return Uid(self.mesh, self.label)

    def __str__(self) -> str:
        return f"{self.label or 'proc'}<{self.mesh:016x}>[{self.rank}]"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcId) and (self.mesh, self.rank) == (other.mesh, other.rank)

    def __hash__(self) -> int:
        return hash((self.mesh, self.rank))


class ActorId:
    """Identity of an actor, opaque but for its text."""

    __slots__ = ("actor_name", "box", "proc")

    def __init__(self, proc: ProcId, box: int, actor_name: str) -> None:
        self.proc, self.box, self.actor_name = proc, box, actor_name

    @property
    def proc_id(self) -> ProcId:
        """The process that the actor lives in."""
        return self.proc

    def __str__(self) -> str:
        return f"{self.actor_name}<{self.box:016x}>@{self.proc}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorId) and (self.proc, self.box) == (other.proc, other.box)

    def __hash__(self) -> int:
        return hash((self.proc, self.box))


class Instance:
    """The running actor, as ``context().actor_instance``.

    Attributes:
        name: name of its mesh.
        class_name: qualified name of its class.
        actor_id: its identity.
        proc_id: identity of its process, as text.
        rank: its point in the mesh that was spawned.
    """

    def __init__(
        self, *, name: str, class_name: str, actor_id: ActorId, rank: Point, runner: Any, creator: Any
    ) -> None:
        self.name = name
        self.class_name = class_name
        self.actor_id = actor_id
        self.proc_id = str(actor_id.proc)
        self.rank = rank
        self.creator = creator
        self._runner = runner

    @property
    def proc(self) -> ProcMesh:
        """This process, as a mesh of one."""
        from roost.actor._proc_mesh import this_proc

        return this_proc()

    @property
    def proc_mesh(self) -> ProcMesh:
        """The process mesh that this actor was spawned on."""
        mesh = None if self._runner is None else self._runner.proc_mesh
        return self.proc if mesh is None else mesh

    def stop(self, reason: str = "the actor stopped itself") -> None:
        """Ends the actor when it has finished the message that it handles."""
        self._need_runner("stop").stop_self(reason)

    def abort(self, reason: str = "aborted") -> None:
        """Fails the actor when it has finished the message that it handles; its owner hears of it."""
        self._need_runner("abort").abort(reason)

    kill = abort

    def _need_runner(self, what: str) -> Any:
        if self._runner is None:
            raise RuntimeError(f"the client is not an actor that could {what}; end the program instead")
        return self._runner

    def __repr__(self) -> str:
        point = ", ".join(f"'{d}': {i}/{self.rank.size(d)}" for d, i in self.rank.items())
        return f"<{self.class_name} {self.name}{{{point}}}>" if point else f"<{self.class_name} {self.name}>"
