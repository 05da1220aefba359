"""Numbers for what is told to the workers once: templates and lines."""

from __future__ import annotations

import itertools

_counter = itertools.count(1)


def fresh_template() -> int:
    """A number that has not been used in this program."""
    return next(_counter)
