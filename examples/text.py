"""The text to learn from: the sources of Python's standard library, as bytes of ASCII."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VOCABULARY = 128


@dataclass(frozen=True)
class Text:
    """Characters as numbers below `VOCABULARY`, and how long a training sequence is."""

    tokens: np.ndarray
    files: int
    length: int

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, random: np.random.Generator, count: int, length: int) -> np.ndarray:
        """``count`` random pieces of ``length + 1`` tokens: inputs and, one further on, targets."""
        starts = random.integers(0, len(self.tokens) - length - 1, count)
        return self.tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int64)

    def decode(self, tokens: np.ndarray) -> str:
        return bytes(tokens.astype(np.uint8)).decode("ascii")


def standard_library(length: int, most_bytes: int = 4 << 20) -> Text:
    """The first modules of the standard library, in the order of their names."""
    parts, size = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        data = path.read_bytes()
        if data.isascii():
            parts.append(np.frombuffer(data, np.uint8))
            size += len(data)
        if size >= most_bytes:
            break
    return Text(np.concatenate(parts), len(parts), length)
