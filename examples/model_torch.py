"""A small decoder-only transformer in PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from adam import Floats
from text import ALPHABET, SEQUENCE, Tokens


class Block(nn.Module):
    """Attention to what came before, then a perceptron; each adds to its input (Vaswani et al., 2017)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(batch, length, width))
        added: Tensor = self.perceptron(self.before_perceptron(x))
        return x + added


class Network(nn.Module):
    """Scores for the next character at each place."""

    def __init__(self, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(SEQUENCE, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.final, self.scores = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.characters(tokens) + self.places.weight[: tokens.shape[1]]
        scores: Tensor = self.scores(self.final(self.blocks(x)))
        return scores


class Transformer:
    """Its weights are one flat array; the parameters of the network are views of it."""

    def __init__(self, seed: int, width: int = 96, blocks: int = 2, heads: int = 4) -> None:
        torch.set_num_threads(1)  # the workers of a host share its cores
        torch.manual_seed(seed)
        self.network = Network(width, blocks, heads)
        self.parameters = list(self.network.parameters())
        flat = parameters_to_vector(self.parameters).detach()
        vector_to_parameters(flat, self.parameters)
        self.weights: Floats = flat.numpy()

    def gradient(self, batch: Tokens) -> tuple[float, Floats]:
        tokens = torch.from_numpy(batch)
        scores = self.network(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        gradients = torch.autograd.grad(loss, self.parameters)
        return loss.item(), parameters_to_vector(gradients).numpy()

    @torch.no_grad()
    def scores(self, tokens: Tokens) -> Floats:
        """For each character, how well it would come next; a softmax makes odds of them."""
        scores = self.network(torch.from_numpy(tokens[-SEQUENCE:])[None])[0, -1]
        return np.asarray(scores)
