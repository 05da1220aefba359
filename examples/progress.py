"""What the user sees of a training run: a bar in a terminal, lines in a log, a plot at the end."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """A bar in a terminal; elsewhere a line now and then."""

    def __init__(self, steps: int, tokens_per_step: int) -> None:
        self.steps = steps
        self.tokens_per_step = tokens_per_step
        self.done = 0
        self.console = Console(highlight=False, soft_wrap=True)
        self.every = max(1, steps // 20)
        columns = [TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()]
        self.bar = Bar(*columns, TextColumn("{task.description}"), console=self.console, transient=True)
        self.bar.disable = not self.console.is_terminal
        self.task = self.bar.add_task("", total=steps)
        self.started = time.perf_counter()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if error is None:
            took = time.perf_counter() - self.started
            self.say(f"{self.steps} steps in {took:.1f} s, {self.steps / took:.1f} a second")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def advance(self, loss: float, seconds: float) -> None:
        described = f"loss {loss:.3f}, {self.tokens_per_step / seconds:,.0f} tokens/s"
        self.bar.update(self.task, advance=1, description=described)
        if self.done % self.every == 0 or self.done == self.steps - 1:
            self.say(f"step {self.done:4d}: {described}")
        self.done += 1


def plot(losses: list[float], killed_at: list[int], path: Path) -> Path:
    """Draws the loss over the steps, with a mark where a worker was killed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(losses, label="loss, mean over the workers")
    for number, step in enumerate(killed_at):
        axes.axvline(step, color="tab:red", linestyle="--", label=None if number else "a worker was killed")
    axes.set(xlabel="step", ylabel="cross entropy (nats per character)", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
