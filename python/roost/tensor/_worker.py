"""The side of the workers: an actor on each process that runs the commands of the controller."""

from __future__ import annotations

import math
import pickle
from typing import Any

import torch

from roost.actor import Actor, current_rank, endpoint, this_proc

__all__ = ["Gap", "Given", "TensorWorker", "Value"]


class Gap:
    """In a template: where the command's next value goes, by its place among the command's values."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> Any:
        return Gap, (self.index,)


class Given(Gap):
    """In a template: where a number of the command goes."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return Given, (self.index,)


class Value:
    """In what is fetched: the number of a value of the worker."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return Value, (self.number,)


class Failed:
    """In the place of a value that could not be computed."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def operator(name: str) -> Any:
    """The torch operator of a qualified name such as ``aten::add.Tensor``."""
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


def fill(tree: Any, values: list[Any], given: tuple[Any, ...]) -> Any:
    """A template with its gaps filled."""
    kind = type(tree)
    if kind is Gap:
        return values[tree.index]
    if kind is Given:
        return given[tree.index]
    if kind is list or kind is tuple:
        return kind(fill(item, values, given) for item in tree)
    if kind is dict:
        return {name: fill(item, values, given) for name, item in tree.items()}
    return tree


class Template:
    """An operator with its constant arguments, made ready once."""

    __slots__ = ("_args", "_flat", "_function", "_kwargs", "fresh", "name", "writes")

    def __init__(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        writes: tuple[int, ...],
        fresh: tuple[int, ...] | None,
    ) -> None:
        self.name = name
        self.writes = writes  # the inputs that it changes
        self.fresh = fresh  # which of its results are new values; None for all
        self._function = operator(name)
        self._args = args
        self._kwargs = kwargs
        # Most operators take tensors and nothing else, in order.
        self._flat = not kwargs and all(type(arg) is Gap and arg.index == i for i, arg in enumerate(args))

    def __call__(self, values: list[Any], given: tuple[Any, ...]) -> Any:
        if self._flat:
            return self._function(*values)
        args = fill(self._args, values, given)
        return self._function(*args, **fill(self._kwargs, values, given))


class Special:
    """A command that is no torch operator: a method of the worker."""

    __slots__ = ("_function", "fresh", "name", "writes")

    def __init__(self, name: str, function: Any, writes: tuple[int, ...]) -> None:
        self.name = name
        self._function = function
        self.writes = writes
        self.fresh = None

    def __call__(self, values: list[Any], given: tuple[Any, ...]) -> Any:
        return self._function(values, given)


class TensorWorker(Actor):
    """Computes on this process's shards. Commands that fail leave their exception in place of the value."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self._templates: dict[int, Any] = {}
        self._sites: dict[int, str] = {}
        self._payload: list[Any] = []
        self._base = this_proc()._region.ranks()[0]
        torch.set_grad_enabled(False)

    @endpoint
    def run(self, batch: bytes, payload: Any = ()) -> None:
        """Runs a batch.

        Args:
            batch: what is defined for good, the commands, and the numbers of values to forget afterwards. A
                command is a template, its inputs, its numbers, its outputs, and the line that issued it.
            payload: values that the commands use.
        """
        definitions, commands, dead = pickle.loads(batch)
        for number, definition in definitions:
            self.define(number, definition)
        self._payload = payload
        for command in commands:
            self._execute(command)
        self._payload = ()  # type: ignore[assignment]
        values = self.values
        for number in dead:
            values.pop(number, None)

    def define(self, number: int, definition: Any) -> None:
        if isinstance(definition, str):
            self._sites[number] = definition
        elif definition[0] == "":
            _, name, writes = definition
            self._templates[number] = Special(name, getattr(self, "do_" + name), writes)
        else:
            self._templates[number] = Template(*definition)

    def _execute(self, command: tuple[Any, ...]) -> None:
        number, inputs, given, outputs, site = command
        values = self.values
        template = self._templates[number]
        try:
            found = [values[number] for number in inputs]
            for value in found:
                if type(value) is Failed:
                    self._poison(command, template, value)
                    return
            result = template(found, given)
            if not outputs:
                return
            if len(outputs) == 1 and isinstance(result, torch.Tensor):
                values[outputs[0]] = result
                return
            flat = tensors_in(result)
            if template.fresh is not None:
                flat = [flat[index] for index in template.fresh]
            for output, value in zip(outputs, flat, strict=True):
                values[output] = value
        except Exception as error:
            self._poison(command, template, self._failure(error, template, site))

    def _failure(self, error: Exception, template: Any, site: int) -> Failed:
        where = self._sites.get(site, "a line that is not known")
        rank = current_rank()
        point = ", ".join(f"{dim}={index}" for dim, index in rank.items())
        name = getattr(template, "name", "a command")
        error.add_note(f"{name} failed on rank {rank.rank} ({point}); the controller issued it at {where}")
        error.__traceback__ = None  # it would keep the operator's inputs in memory
        return Failed(error)

    def _poison(self, command: tuple[Any, ...], template: Any, failed: Failed) -> None:
        """What the command would have made or changed stands for its failure from now on."""
        _, inputs, _, outputs, _ = command
        for number in outputs:
            self.values[number] = failed
        for index in getattr(template, "writes", ()):
            self.values[inputs[index]] = failed

    # -- what is not an operator ------------------------------------------------------------------------

    def do_alias(self, found: list[Any], given: tuple[Any, ...]) -> Any:
        return torch.ops.aten.alias.default(found[0])

    def do_receive(self, found: list[Any], given: tuple[Any, ...]) -> Any:
        """A value of the controller that came with the batch."""
        return self._payload[given[0]]

    def do_seed(self, found: list[Any], given: tuple[Any, ...]) -> None:
        seed, differ = given
        torch.manual_seed(seed + (current_rank().rank if differ else 0))

    def do_coordinate(self, found: list[Any], given: tuple[Any, ...]) -> Any:
        """This rank's index along one dimension of a mesh."""
        ranks, sizes, dim = given
        place = ranks.index(self._base)
        return torch.tensor(place // math.prod(sizes[dim + 1 :]) % sizes[dim])

    @endpoint
    def fetch(self, tree: Any) -> Any:
        """What the controller asked for, with the values in it."""
        return self._look(tree)

    def _look(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is Value:
            value = self.values[tree.number]
            if isinstance(value, Failed):
                raise value.error.with_traceback(None)
            return value
        if kind is list or kind is tuple:
            return kind(self._look(item) for item in tree)
        if kind is dict:
            return {name: self._look(item) for name, item in tree.items()}
        return tree

    @endpoint
    def count(self) -> int:
        """How many values this process holds."""
        return len(self.values)


def tensors_in(result: Any) -> list[Any]:
    """The tensors that an operator has returned, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in tensors_in(item)]
    return []
