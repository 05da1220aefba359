"""A small decoder-only transformer in PyTorch, whose parameters travel as one flat array."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from text import VOCABULARY


class Block(nn.Module):
    """Attention to what came before, then a perceptron; each adds to its input (Vaswani et al., 2017)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(self.before_perceptron(x))


class Network(nn.Module):
    """Scores for the next character at each place."""

    def __init__(self, context: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.final, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        for parameter in (self.characters.weight, self.places.weight):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.characters(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.final(self.blocks(x)))


class Transformer:
    """Predicts the next character from up to ``context`` ones before it."""

    context = 64

    def __init__(self, seed: int, width: int = 96, blocks: int = 2, heads: int = 4) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.network = Network(self.context, width, blocks, heads)
        self.weights = list(self.network.parameters())

    def parameters(self) -> np.ndarray:
        """All weights as one array."""
        return parameters_to_vector(self.weights).detach().numpy()

    def load(self, flat: np.ndarray) -> None:
        vector_to_parameters(torch.from_numpy(np.array(flat)), self.weights)

    def loss_and_gradient(self, batch: np.ndarray) -> tuple[float, np.ndarray]:
        tokens = torch.from_numpy(batch)
        logits = self.network(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        gradients = torch.autograd.grad(loss, self.weights)
        return float(loss.detach()), parameters_to_vector(gradients).numpy()

    @torch.no_grad()
    def sample(self, tokens: np.ndarray, length: int) -> np.ndarray:
        out = torch.from_numpy(tokens)
        for _ in range(length):
            odds = functional.softmax(self.network(out[None, -self.context :])[0, -1] / 0.8, dim=-1)
            out = torch.cat([out, torch.multinomial(odds, 1)])
        return out.numpy()
