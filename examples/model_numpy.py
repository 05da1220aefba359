"""A perceptron over the last characters (Bengio et al., 2003) in NumPy, its gradient written by hand."""

from __future__ import annotations

import numpy as np

from text import VOCABULARY


class Perceptron:
    """Predicts the next character from the ``context`` ones before it."""

    context = 64
    """Length of a training sequence; of each, every window of `window` characters is an example."""

    window = 8

    def __init__(self, seed: int, width: int = 24, hidden: int = 192) -> None:
        random = np.random.default_rng(seed)
        shapes = {
            "characters": (VOCABULARY, width),
            "hidden": (self.window * width, hidden),
            "hidden_bias": (hidden,),
            "output": (hidden, VOCABULARY),
            "output_bias": (VOCABULARY,),
        }
        self.flat = np.zeros(sum(int(np.prod(shape)) for shape in shapes.values()), "f4")
        self.weights = self._split(self.flat, shapes)
        self.shapes = shapes
        for name, weight in self.weights.items():
            if not name.endswith("bias"):
                weight[...] = random.normal(0, shapes[name][0] ** -0.5, weight.shape)

    @staticmethod
    def _split(flat: np.ndarray, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Views of one array, one for each weight."""
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
        parts = np.split(flat, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def parameters(self) -> np.ndarray:
        return self.flat

    def load(self, flat: np.ndarray) -> None:
        self.flat[...] = flat

    def _forward(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        w = self.weights
        seen = w["characters"][windows].reshape(len(windows), -1)
        hidden = np.tanh(seen @ w["hidden"] + w["hidden_bias"])
        logits = hidden @ w["output"] + w["output_bias"]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return seen, hidden, odds / odds.sum(axis=1, keepdims=True)

    def loss_and_gradient(self, batch: np.ndarray) -> tuple[float, np.ndarray]:
        pieces = np.lib.stride_tricks.sliding_window_view(batch, self.window + 1, axis=1)
        pieces = pieces.reshape(-1, self.window + 1)
        windows, target = pieces[:, :-1], pieces[:, -1]
        rows = np.arange(len(target))
        seen, hidden, odds = self._forward(windows)
        loss = -np.log(odds[rows, target] + 1e-12).mean()

        gradient = np.zeros_like(self.flat)
        d = self._split(gradient, self.shapes)
        d_logits = odds
        d_logits[rows, target] -= 1
        d_logits /= len(rows)
        d["output"][...] = hidden.T @ d_logits
        d["output_bias"][...] = d_logits.sum(axis=0)
        d_hidden = (d_logits @ self.weights["output"].T) * (1 - hidden**2)
        d["hidden"][...] = seen.T @ d_hidden
        d["hidden_bias"][...] = d_hidden.sum(axis=0)
        d_seen = (d_hidden @ self.weights["hidden"].T).reshape(*windows.shape, -1)
        np.add.at(d["characters"], windows, d_seen)
        return float(loss), gradient

    def sample(self, tokens: np.ndarray, length: int) -> np.ndarray:
        random = np.random.default_rng(0)
        out = np.concatenate([np.full(self.window, ord("\n")), tokens])
        for _ in range(length):
            odds = self._forward(out[None, -self.window :])[2][0].astype("f8")
            out = np.append(out, random.choice(VOCABULARY, p=odds / odds.sum()))
        return out[self.window :]
