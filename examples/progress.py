"""What the user sees of a training run: a bar in a terminal, lines in a log, a plot at the end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the training has brought, and how long it took."""

    loss: float
    took_s: float
    compute_s: float
    """Of that, what the slowest worker computed; the rest is the exchange with the workers."""


class Progress:
    """A bar in a terminal, and a line now and then, which is all that a log gets."""

    def __init__(self, steps: int, tokens_per_step: int) -> None:
        self.steps = steps
        self.tokens_per_step = tokens_per_step
        self.every = max(1, steps // 20)
        self.recent_s: deque[float] = deque(maxlen=10)
        self.console = Console(highlight=False, soft_wrap=True)
        columns = [TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()]
        self.bar = Bar(*columns, TextColumn("{task.description}"), console=self.console, transient=True)
        self.bar.disable = not self.console.is_terminal
        self.task = self.bar.add_task("", total=steps)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False)

    def advance(self, number: int, step: Step) -> None:
        self.recent_s.append(step.took_s)
        rate = self.tokens_per_step * len(self.recent_s) / sum(self.recent_s)
        described = f"loss {step.loss:.3f}, {rate:,.0f} tokens/s"
        self.bar.update(self.task, advance=1, description=described)
        if number % self.every == 0 or number == self.steps - 1:
            self.say(f"step {number:4}: {described}")


def plot(losses: list[float], recovered_at: list[int], path: Path) -> None:
    """Draws the loss over the steps, with a mark where a worker was lost."""
    import matplotlib

    matplotlib.use("Agg")  # needs no screen
    from matplotlib import pyplot

    width = max(1, len(losses) // 20)
    smooth = np.convolve(losses, np.full(width, 1 / width), mode="valid")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(losses, color="tab:blue", alpha=0.3, linewidth=1, label="loss, mean over the workers")
    axes.plot(np.arange(len(smooth)) + (width - 1) / 2, smooth, color="tab:blue", label=f"over {width} steps")
    for number, step in enumerate(recovered_at):
        label = "" if number else "a worker was killed"
        axes.axvline(step, color="tab:red", linestyle="--", linewidth=1, label=label)
    axes.set(xlabel="step", ylabel="cross entropy (nats per character)")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
