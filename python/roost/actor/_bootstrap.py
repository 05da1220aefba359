"""The command that starts a process, where it is not forked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAIN = "from roost.actor._worker import main; main()"


class BootstrapCommand:
    """How a process is started.

    Attributes:
        program: path of the executable.
        arg0: name that it is given; None is the program's.
        args: its arguments.
        env: variables to set; None unsets one.
        inherit_env: start from the environment of the one who spawns.
    """

    __slots__ = ("arg0", "args", "env", "inherit_env", "program")

    def __init__(
        self,
        program: str,
        arg0: str | None = None,
        args: list[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        inherit_env: bool = True,
    ) -> None:
        self.program = program
        self.arg0 = arg0
        self.args = list(args or [])
        self.env = dict(env or {})
        self.inherit_env = inherit_env

    @classmethod
    def default(cls, python: str) -> BootstrapCommand:
        """Runs a roost process under an interpreter."""
        return cls(python, None, ["-c", _MAIN])

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """The same command with more variables."""
        merged = {**self.env, **env}
        return BootstrapCommand(self.program, self.arg0, self.args, merged, self.inherit_env)

    def as_tuple(self) -> tuple[Any, ...]:
        """What travels to the host agent."""
        return self.program, self.arg0, self.args, self.env, self.inherit_env

    def __repr__(self) -> str:
        return f"BootstrapCommand({self.program!r}, args={self.args!r}, env={sorted(self.env)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BootstrapCommand) and self.as_tuple() == other.as_tuple()

    __hash__ = None  # type: ignore[assignment]


def default_bootstrap_cmd() -> BootstrapCommand:
    """The command that starts a process with this interpreter, for ``spawn_procs(bootstrap_command=)``."""
    return BootstrapCommand.default(sys.executable)
