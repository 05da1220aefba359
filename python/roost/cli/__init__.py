"""The command `roost`: one function a command, each with its own arguments."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="roost", description="hosts of distributed actor meshes")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    given = parser.parse_args(arguments)
    try:
        return int(given.run(given))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"roost {given.command}: {error}", file=sys.stderr)
        return 1


def _add_host(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("host", help="make this machine a host that programs can attach")
    parser.add_argument(
        "--address",
        default="tcp://127.0.0.1:26600",
        help="tcp://HOST:PORT (port 0: any), unix:///PATH, or ADVERTISED@BIND (default: %(default)s)",
    )
    parser.add_argument("--key", metavar="PATH", help="the cluster key; ROOST_KEY or this user's by default")
    parser.add_argument("--once", action="store_true", help="end when the first program has")
    parser.set_defaults(run=_host)


def _host(given: argparse.Namespace) -> int:
    from roost.actor._door import serve
    from roost.actor._workers import order

    serve(order(given.address, given.key, None, once=given.once), None)
    return 0


def _add_keygen(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("keygen", help="make a cluster key, which all hosts of a cluster share")
    parser.add_argument(
        "path", nargs="?", help="where to; ROOST_KEY or ~/.config/roost/cluster.key by default"
    )
    parser.set_defaults(run=_keygen)


def _keygen(given: argparse.Namespace) -> int:
    from roost.actor._keys import keygen

    print(keygen(given.path))
    return 0


COMMANDS = (_add_host, _add_keygen)
"""Each adds its parser, and says what runs it."""
