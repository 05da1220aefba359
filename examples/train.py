"""Trains a small language model, data-parallel, on a mesh of worker processes.

The controller is this one program. It starts the workers, hands each step's averaged gradient to all of them,
prints how the loss falls, kills a worker with SIGKILL half-way, and goes on through an ordinary try/except.
The text is the source of Python's standard library, which is on every machine that can run this.

    python examples/train.py              # a transformer in PyTorch
    python examples/train.py --no-torch   # the same job in NumPy
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Workers share the cores, so none of them takes all. Read when NumPy and torch are imported, hence here.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from progress import Progress, plot
from roost.actor import Actor, SupervisionError, current_rank, endpoint, this_host
from text import Text, standard_library

State = dict[str, np.ndarray]


class Trainer(Actor):
    """One replica: a model, its optimizer, and a stream of batches that depends on its rank only."""

    def __init__(self, kind: str, text: Text, batch: int, seed: int) -> None:
        self.model = build_model(kind, seed)
        self.optimizer = Adam(self.model.parameters().size)
        self.text = text
        self.batch = batch
        self.seed = seed

    @endpoint
    def step(self, number: int, gradient: np.ndarray | None) -> tuple[float, np.ndarray]:
        """Applies the last step's averaged gradient, then gives this one's loss and gradient."""
        if gradient is not None:
            self.model.load(self.optimizer.update(self.model.parameters(), gradient))
        random = np.random.default_rng([self.seed, number, current_rank().rank])
        return self.model.loss_and_gradient(self.text.batch(random, self.batch, self.model.context))

    @endpoint
    def state(self) -> State:
        return {"parameters": self.model.parameters(), **self.optimizer.state()}

    @endpoint
    def restore(self, state: State) -> None:
        self.model.load(state["parameters"])
        self.optimizer.restore(state)

    @endpoint
    def sample(self, prompt: str, length: int) -> str:
        return self.text.decode(self.model.sample(self.text.encode(prompt), length))

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Adam:
    """Kingma and Ba, 2015, with their constants; the learning rate warms up over the first steps."""

    def __init__(self, size: int, rate: float = 3e-3, warmup: int = 20) -> None:
        self.rate, self.warmup = rate, warmup
        self.restore(
            {"mean": np.zeros(size, "f4"), "square": np.zeros(size, "f4"), "count": np.zeros(1, "i8")}
        )

    def update(self, parameters: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        self.count += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        count = int(self.count[0])
        mean, square = self.mean / (1 - 0.9**count), self.square / (1 - 0.999**count)
        rate = self.rate * min(1.0, count / self.warmup)
        return (parameters - rate * mean / (np.sqrt(square) + 1e-8)).astype("f4")

    def state(self) -> State:
        return {"mean": self.mean, "square": self.square, "count": self.count}

    def restore(self, state: State) -> None:
        self.mean, self.square, self.count = (state[name].copy() for name in ("mean", "square", "count"))


def build_model(kind: str, seed: int) -> Any:
    if kind == "torch":
        from model_torch import Transformer

        return Transformer(seed)
    from model_numpy import Perceptron

    return Perceptron(seed)


@dataclass
class Run:
    """The controller: what it trains, and how far it has come."""

    kind: str
    text: Text
    workers: int
    batch: int
    seed: int
    losses: list[float] = field(default_factory=list)
    killed_at: list[int] = field(default_factory=list)
    gradient: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.spawn()

    def spawn(self) -> None:
        self.procs = this_host().spawn_procs({"workers": self.workers})
        self.trainers = self.procs.spawn("trainers", Trainer, self.kind, self.text, self.batch, self.seed)
        self.pids = self.trainers.pid.call().get()

    def step(self, victim: int | None = None) -> float:
        """One step on all workers; kills the ``victim`` while it computes."""
        answers = self.trainers.step.call(len(self.losses), self.gradient)
        if victim is not None:
            os.kill(self.pids.item(workers=victim), signal.SIGKILL)
        losses, gradients = zip(*answers.get().values(), strict=True)
        self.gradient = np.mean(gradients, axis=0)
        self.losses.append(float(np.mean(losses)))
        return self.losses[-1]

    def recover(self) -> None:
        """Starts fresh workers with the state of one that has survived."""
        answers = self.trainers.state.options(partial=True).call().get().values()
        state = next(answer for answer in answers if isinstance(answer, dict))
        self.procs.stop("a worker has died").get()
        self.spawn()
        self.trainers.restore.call(state).get()
        # The survivors had applied the last gradient before they were asked for their state.
        self.gradient = None
        self.killed_at.append(len(self.losses))


def train(run: Run, steps: int, kill_at: int | None) -> None:
    with Progress(steps, tokens_per_step=run.workers * run.batch * run.text.length) as progress:
        while len(run.losses) < steps:
            number = len(run.losses)
            kill = number == kill_at and not run.killed_at
            if kill:
                progress.say(f"step {number}: killing worker {run.workers // 2} with SIGKILL")
            started = time.perf_counter()
            try:
                loss = run.step(victim=run.workers // 2 if kill else None)
            except SupervisionError as error:
                progress.say(str(error).splitlines()[0])
                run.recover()
                progress.say(f"step {number}: {run.workers} fresh workers go on from a survivor's state")
                continue
            progress.advance(loss, time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default 4)")
    parser.add_argument("--batch", type=int, default=16, help="sequences per worker and step (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-torch", action="store_true", help="a model in NumPy, without torch")
    parser.add_argument("--no-kill", action="store_true", help="kill no worker in the middle")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the plot (default out)")
    options = parser.parse_args()
    if options.steps < 4 or options.workers < 2:
        parser.error("--steps is at least 4 and --workers at least 2")
    if not options.no_torch:
        try:
            import torch  # noqa: F401 - the workers are forked from a process that has imported it, too
        except ImportError:
            parser.error("torch is not installed: pip install 'roost[torch]', or run with --no-torch")

    text = standard_library(length=64)
    print(f"text: {len(text):,} characters of {text.files} files of Python's standard library", flush=True)
    kind = "numpy" if options.no_torch else "torch"
    run = Run(kind, text, options.workers, options.batch, options.seed)
    train(run, options.steps, kill_at=None if options.no_kill else options.steps // 2)

    print("sample:", repr(run.trainers.slice(workers=0).sample.call_one("def ", 120).get()))
    path = plot(run.losses, run.killed_at, options.out / f"train_{kind}.png")
    first, last = np.mean(run.losses[:2]), np.mean(run.losses[-2:])
    print(f"loss: {first:.3f} -> {last:.3f} over {len(run.losses)} steps, plot in {path}")
    run.procs.stop("trained").get()
    return 0 if last < first else 1


if __name__ == "__main__":
    sys.exit(main())
