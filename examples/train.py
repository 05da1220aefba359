"""Trains a small language model, data-parallel, on a mesh of worker processes.

The controller is this one program. It starts the workers, hands the averaged gradient to all of them with
each step, and prints how the loss falls. Half-way it kills one with SIGKILL, and goes on through an ordinary
try/except. The text is the source of Python's standard library, which every machine with Python has.

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
from textwrap import indent
from typing import Protocol

# The workers share the cores of this machine. NumPy reads this when it is imported; workers inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from adam import Adam, Floats, State
from progress import Progress, Step, plot
from roost.actor import Actor, SupervisionError, current_rank, endpoint, this_host
from text import SEQUENCE, Text, Tokens, decode, encode


class Model(Protocol):
    """A network whose weights are one flat array, and so is their gradient: what travels in messages."""

    weights: Floats

    def gradient(self, batch: Tokens) -> tuple[float, Floats]: ...
    def scores(self, tokens: Tokens) -> Floats: ...


def build_model(kind: str, seed: int) -> Model:
    if kind == "torch":
        from model_torch import Transformer

        return Transformer(seed)
    from model_numpy import Perceptron

    return Perceptron(seed)


class Trainer(Actor):
    """One replica of the model, its optimizer, and its shard of the text."""

    def __init__(self, kind: str, text: Text, *, batch: int, seed: int) -> None:
        point = current_rank()
        self.rank = point.rank
        self.shard = text.shard(self.rank, point.extent.nelements)
        self.model = build_model(kind, seed)
        self.optimizer = Adam(self.model.weights)
        self.batch = batch
        self.seed = seed

    @endpoint
    def step(self, number: int, gradient: Floats | None) -> tuple[float, Floats, float]:
        """Applies the averaged gradient of the step before; gives loss, gradient and seconds of this one."""
        started = time.perf_counter()
        if gradient is not None:
            self.optimizer.step(gradient)
        # The batch depends on step and rank only: a replacement sees what the lost worker would have seen.
        random = np.random.default_rng([self.seed, number, self.rank])
        loss, own = self.model.gradient(self.shard.batch(random, self.batch))
        return loss, own, time.perf_counter() - started

    @endpoint
    def state(self) -> State:
        return self.optimizer.state()

    @endpoint
    def restore(self, state: State) -> None:
        self.optimizer.restore(state)

    @endpoint
    def write(self, prompt: str, length: int, temperature: float = 0.7) -> str:
        """Goes on from the ``prompt``, a character at a time."""
        random = np.random.default_rng(self.seed)
        tokens = encode(prompt)
        for _ in range(length):
            scores = self.model.scores(tokens).astype(np.float64) / temperature
            odds = np.exp(scores - scores.max())
            tokens = np.append(tokens, random.choice(len(odds), p=odds / odds.sum()))
        return decode(tokens)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@dataclass
class Run:
    """The controller's side: the workers, and how far they have come."""

    kind: str
    text: Text
    workers: int
    batch: int
    seed: int
    history: list[Step] = field(default_factory=list)
    recovered_at: list[int] = field(default_factory=list)
    gradient: Floats | None = None

    def __post_init__(self) -> None:
        self.spawn()

    def spawn(self) -> None:
        self.procs = this_host().spawn_procs({"workers": self.workers})
        self.trainers = self.procs.spawn(
            "trainers", Trainer, self.kind, self.text, batch=self.batch, seed=self.seed
        )
        self.pids = self.trainers.pid.call().get()

    def step(self, kill: int | None = None) -> Step:
        """One step on all workers; kills one of them while it computes, if so told."""
        started = time.perf_counter()
        answers = self.trainers.step.call(len(self.history), self.gradient)
        if kill is not None:
            os.kill(self.pids.item(workers=kill), signal.SIGKILL)
        losses, gradients, seconds = zip(*answers.get().values(), strict=True)
        self.gradient = sum(gradients) / np.float32(self.workers)
        step = Step(float(np.mean(losses)), time.perf_counter() - started, max(seconds))
        self.history.append(step)
        return step

    def recover(self) -> None:
        """Replaces the workers by fresh ones, with the state of one that has survived."""
        answers = self.trainers.state.options(partial=True).call().get().values()
        state = next((answer for answer in answers if not isinstance(answer, Exception)), None)
        if state is None:
            raise SystemExit("all workers are lost, and what they had learnt with them")
        self.procs.stop("a worker was lost").get()
        self.spawn()
        self.trainers.restore.call(state).get()
        if state["count"] == len(self.history):
            self.gradient = None  # the survivor has applied it already, in the step that failed
        self.recovered_at.append(len(self.history))


def train(run: Run, steps: int, kill_at: int | None, progress: Progress) -> None:
    """Goes on until all steps are done, whoever dies on the way."""
    victim = run.workers // 2
    while (number := len(run.history)) < steps:
        try:
            if number == kill_at:
                kill_at = None
                progress.say(f"step {number:4}: killing worker {victim} with SIGKILL", style="red")
                step = run.step(kill=victim)
            else:
                step = run.step()
        except SupervisionError as error:
            progress.say(str(error).splitlines()[0], style="red")
            run.recover()
            progress.say(f"{run.workers} fresh workers go on from a survivor's state", style="green")
        else:
            progress.advance(number, step)


def report(run: Run, path: Path, progress: Progress) -> bool:
    """Says what has come of the run; true when the loss has fallen."""
    losses = [step.loss for step in run.history]
    took_s = np.median([step.took_s for step in run.history])
    exchange_s = np.median([step.took_s - step.compute_s for step in run.history])
    sample = run.trainers.slice(workers=0).write.call_one("def ", 300).get()
    plot(losses, run.recovered_at, path)
    few = max(2, len(losses) // 20)
    first, last = np.mean(losses[:few]), np.mean(losses[-few:])
    progress.say(f"\na sample:\n{indent(sample, '    ')}\n")
    progress.say(
        f"a step took {took_s * 1e3:.0f} ms; {exchange_s * 1e3:.1f} ms of them "
        f"({exchange_s / took_s:.0%}) were the exchange, the rest the slowest worker's computation"
    )
    progress.say(f"loss {first:.3f} -> {last:.3f} in {len(losses)} steps, plot in {path}")
    return bool(last < first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default 4)")
    parser.add_argument("--batch", type=int, default=16, help="sequences per worker and step (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-torch", action="store_true", help="a model in NumPy, without torch")
    parser.add_argument("--no-kill", action="store_true", help="kill no worker in the middle")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the plot (default out)")
    options = parser.parse_args()
    if options.steps < 4 or options.workers < 2 or options.batch < 1:
        parser.error("--steps is at least 4, --workers at least 2 and --batch at least 1")
    if not options.no_torch:
        try:
            import torch  # noqa: F401 - what the program has imported, its workers are born with
        except ImportError:
            parser.error(
                "torch is not installed: pip install '.[torch]' here, or do without it by --no-torch"
            )

    text = Text.of_standard_library()
    kind = "numpy" if options.no_torch else "torch"
    with Progress(options.steps, options.workers * options.batch * SEQUENCE) as progress:
        progress.say(f"{len(text):,} characters of Python's standard library for {options.workers} workers")
        run = Run(kind, text, workers=options.workers, batch=options.batch, seed=options.seed)
        train(run, options.steps, None if options.no_kill else options.steps // 2, progress)
    fell = report(run, options.out / f"train_{kind}.png", progress)
    run.procs.stop("trained").get()
    return 0 if fell else 1


if __name__ == "__main__":
    sys.exit(main())
