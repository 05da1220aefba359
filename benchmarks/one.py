"""One group of workloads of one peer, in this process: prints the numbers as JSON, and ends at once."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys

from benchmarks.workloads import GROUPS


def main() -> None:
    peer, group = sys.argv[1:]
    module = importlib.import_module(f"benchmarks.peers.{peer}")
    own = getattr(module, "GROUPS", None)
    if own is not None:
        found = own[group]()
        if inspect.isawaitable(found):

            async def wait() -> dict[str, float]:
                return await found  # type: ignore[no-any-return]

            found = asyncio.run(wait())
    else:
        found = GROUPS[group](module.Peer())
    print("\nRESULT " + json.dumps(found), flush=True)
    os._exit(0)  # some take seconds to tidy up; the processes of all go with their group


if __name__ == "__main__":
    main()
