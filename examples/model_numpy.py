"""A perceptron over the last characters (Bengio et al., 2003) in NumPy, its gradient written by hand."""

from __future__ import annotations

import numpy as np

from adam import Floats
from text import ALPHABET, Tokens


class Perceptron:
    """Its weights are one flat array; the matrices of the network are views of it."""

    window = 8
    """How many characters it looks back. Each window of a training sequence is an example."""

    def __init__(self, seed: int, width: int = 24, hidden: int = 192) -> None:
        self.shapes = {
            "characters": (len(ALPHABET), width),
            "hidden": (self.window * width, hidden),
            "hidden_bias": (hidden,),
            "output": (hidden, len(ALPHABET)),
            "output_bias": (len(ALPHABET),),
        }
        self.weights = np.zeros(sum(int(np.prod(shape)) for shape in self.shapes.values()), np.float32)
        self.matrices = self._views_of(self.weights)
        random = np.random.default_rng(seed)
        for name, matrix in self.matrices.items():
            if not name.endswith("bias"):
                matrix[...] = random.normal(0, len(matrix) ** -0.5, matrix.shape)

    def gradient(self, batch: Tokens) -> tuple[float, Floats]:
        examples = np.lib.stride_tricks.sliding_window_view(batch, self.window + 1, axis=1)
        examples = examples.reshape(-1, self.window + 1)
        windows, targets = examples[:, :-1], examples[:, -1]
        seen, hidden, scores = self._forward(windows)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        rows = np.arange(len(targets))
        loss = -np.log(odds[rows, targets] + 1e-12).mean()

        # Backwards through the same lines. The gradient of the cross entropy by the scores is odds - truth.
        flat = np.zeros_like(self.weights)
        gradient = self._views_of(flat)
        by_scores = odds
        by_scores[rows, targets] -= 1
        by_scores /= len(rows)
        gradient["output"][...] = hidden.T @ by_scores
        gradient["output_bias"][...] = by_scores.sum(axis=0)
        by_hidden = (by_scores @ self.matrices["output"].T) * (1 - hidden**2)
        gradient["hidden"][...] = seen.T @ by_hidden
        gradient["hidden_bias"][...] = by_hidden.sum(axis=0)
        by_seen = by_hidden @ self.matrices["hidden"].T
        np.add.at(gradient["characters"], windows, by_seen.reshape(*windows.shape, -1))
        return float(loss), flat

    def scores(self, tokens: Tokens) -> Floats:
        """For each character, how well it would come next; a softmax makes odds of them."""
        padded = np.pad(tokens, (self.window, 0))  # with ends of lines
        _, _, scores = self._forward(padded[None, -self.window :])
        return scores.ravel()

    def _forward(self, windows: Tokens) -> tuple[Floats, Floats, Floats]:
        """What the network sees, its hidden layer and its scores, a row for each window."""
        seen = self.matrices["characters"][windows].reshape(len(windows), -1)
        hidden = np.tanh(seen @ self.matrices["hidden"] + self.matrices["hidden_bias"])
        return seen, hidden, hidden @ self.matrices["output"] + self.matrices["output_bias"]

    def _views_of(self, flat: Floats) -> dict[str, Floats]:
        """One flat array as the matrices that it consists of."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])
        parts = zip(self.shapes.items(), np.split(flat, ends[:-1]), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}
