"""The text to learn from: the sources of Python's standard library, which every machine has."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]

SEQUENCE = 64
"""How many characters a training sequence has."""

# The end of a line is token 0, and the printable characters of ASCII follow.
ALPHABET = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
_TOKEN_OF = np.full(256, -1, np.int64)
_TOKEN_OF[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


def encode(text: str) -> Tokens:
    """Characters to tokens; what is not in the alphabet is left out."""
    tokens = _TOKEN_OF[np.frombuffer(text.encode(), np.uint8)]
    return tokens[tokens >= 0]


def decode(tokens: Tokens) -> str:
    return "".join(ALPHABET[token] for token in tokens)


@dataclass(frozen=True, slots=True)
class Text:
    """A long line of tokens, one byte each."""

    tokens: NDArray[np.uint8]

    @classmethod
    def of_standard_library(cls, most_files: int = 150) -> Self:
        """The first modules of the standard library, in the order of their names."""
        paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:most_files]
        text = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in paths)
        return cls(encode(text.expandtabs(4)).astype(np.uint8))

    def __len__(self) -> int:
        return len(self.tokens)

    def shard(self, index: int, count: int) -> Self:
        """One of ``count`` pieces of the same length."""
        return type(self)(np.array_split(self.tokens, count)[index])

    def batch(self, random: np.random.Generator, count: int) -> Tokens:
        """Random sequences. Each is one longer than `SEQUENCE`: the last token is not read, only guessed."""
        starts = random.integers(0, len(self) - SEQUENCE, count)
        batch: Tokens = self.tokens[starts[:, None] + np.arange(SEQUENCE + 1)].astype(np.int64)
        return batch
