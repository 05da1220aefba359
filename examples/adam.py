"""The optimizer, for the weights of either model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
State = dict[str, Any]


class Adam:
    """Kingma and Ba, 2015, with their constants. Updates the weights in place."""

    def __init__(self, weights: Floats, rate: float = 3e-3) -> None:
        self.weights, self.rate, self.count = weights, rate, 0
        self.mean, self.square = np.zeros_like(weights), np.zeros_like(weights)

    def step(self, gradient: Floats) -> None:
        self.count += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean, square = self.mean / (1 - 0.9**self.count), self.square / (1 - 0.999**self.count)
        self.weights -= self.rate * mean / (np.sqrt(square) + 1e-8)

    def state(self) -> State:
        return {"weights": self.weights, "mean": self.mean, "square": self.square, "count": self.count}

    def restore(self, state: State) -> None:
        for name in ("weights", "mean", "square"):
            getattr(self, name)[...] = state[name]
        self.count = state["count"]
