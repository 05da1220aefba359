"""Response ports that leave their process: a thread hands on what comes for them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from roost.actor._channel import Port

if TYPE_CHECKING:
    from roost.actor._channel import ResponsePort


def relay_port(port: ResponsePort[Any]) -> Port[Any]:
    """A port that can travel; what is sent to it becomes the answer of ``port``."""
    from roost.actor._runtime import runtime

    here = runtime()
    mailbox = here.node.open_fresh_box()

    def hand_on() -> None:
        mailbox.read_by_thread()
        while messages := mailbox.take(1, None, False):
            for _, meta, body, buffers, _, _ in messages:
                if meta[:1] == b"e":
                    from roost.actor._serialize import load
                    from roost.errors import unpack_exception

                    port.exception(unpack_exception(load(body, buffers)))
                else:
                    port._post(0, bytes(body), buffers)
            mailbox.close(4, b"")
            return

    threading.Thread(target=hand_on, name="roost-relay", daemon=True).start()
    return Port((*here.me, mailbox.id), rank=port._rank)
