"""The line of the user's program that issues an operator: found on every command, so it has to be cheap."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch

from roost.tensor._numbers import fresh_template

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["current_site", "text_of"]

_FOREIGN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)

# Codes are known by address, since to hash one is to hash all that it contains; the entry keeps it alive.
_codes: dict[int, tuple[CodeType, bool]] = {}
_sites: dict[tuple[int, int], int] = {}
_texts: dict[int, str] = {}


def current_site() -> int:
    """The number of the innermost line that belongs neither to torch nor to roost."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        known = _codes.get(id(code))
        if known is None:
            known = _codes[id(code)] = (code, code.co_filename.startswith(_FOREIGN))
        if not known[1]:
            key = (id(code), frame.f_lasti)
            found = _sites.get(key)
            if found is None:
                found = _sites[key] = fresh_template()
                _texts[found] = f"{code.co_filename}:{frame.f_lineno}, in {code.co_name}"
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return 0


def text_of(site: int) -> str:
    """File, line and function of a site."""
    return _texts.get(site, "a line that is not known (a thread of torch issued it)")
