"""Tensors in memory of the processor travel as arrays do, and keep what makes them tensors."""

from __future__ import annotations

import collections
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from roost.actor import Actor, ProcMesh, current_rank, endpoint, this_host, this_proc


class Model(Actor):
    def __init__(self) -> None:
        self.kept: Any = None

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def keep(self, value: Any) -> None:
        self.kept = value

    @endpoint
    def kept_sum(self) -> float:
        return float(self.kept.sum())

    @endpoint
    def add(self, value: Any) -> Any:
        value += current_rank().rank + 1
        return value

    @endpoint
    def share(self, pair: Any) -> bool:
        pair[0].view(-1)[0] = 42
        return bool(pair[1].view(-1)[0] == 42)

    @endpoint
    def storage_bytes(self, value: Any) -> int:
        return int(value.untyped_storage().nbytes())

    @endpoint
    def train(self, model: Any, batch: Any) -> Any:
        loss = model(batch).pow(2).mean()
        loss.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def procs(torch: Any) -> Iterator[ProcMesh]:
    """Processes that are forked with torch loaded, so that none of them has to import it."""
    mesh = this_host().spawn_procs({"gpus": 4})
    yield mesh
    mesh.stop().get(timeout=60)


@pytest.fixture(scope="module", params=["another process", "the same process"])
def model(request: pytest.FixtureRequest, procs: ProcMesh) -> Any:
    place = this_proc() if request.param == "the same process" else procs.slice(gpus=3)
    return place.spawn("model", Model)


MAKERS = {
    "empty": lambda t: t.empty(0, 3),
    "number": lambda t: t.tensor(3.5),
    "small": lambda t: t.arange(10),
    "big": lambda t: t.arange(200_000, dtype=t.float32).reshape(400, 500),
    "strided": lambda t: t.arange(200_000)[::7],
    "transposed": lambda t: t.arange(200_000).reshape(400, 500).t(),
    "expanded": lambda t: t.ones(1, 500).expand(400, 500),
    "bfloat16": lambda t: t.ones(70_000, dtype=t.bfloat16),
    "bool": lambda t: t.arange(100_000) % 3 == 0,
    "complex": lambda t: t.ones(50_000, dtype=t.complex64) * 1j,
    "conjugate": lambda t: (t.ones(50_000, dtype=t.complex64) * 1j).conj(),
    "channels last": lambda t: t.ones(2, 3, 40, 40).to(memory_format=t.channels_last),
    "gradient wanted": lambda t: t.ones(30_000, requires_grad=True),
    "parameter": lambda t: t.nn.Parameter(t.ones(30_000)),
    "sparse": lambda t: t.eye(300).to_sparse(),
    "meta": lambda t: t.empty(5, 5, device="meta"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_tensors_of_all_kinds(model: Any, torch: Any, name: str) -> None:
    value = MAKERS[name](torch)
    got = model.echo.call_one(value).get()
    assert type(got) is type(value)
    assert (got.dtype, got.shape, got.device, got.layout) == (
        value.dtype,
        value.shape,
        value.device,
        value.layout,
    )
    assert got.requires_grad == value.requires_grad
    if value.layout is torch.strided:
        assert got.is_conj() == value.is_conj()
        if name not in ("expanded", "strided"):
            assert got.stride() == value.stride()
    if value.device.type == "cpu":
        assert torch.equal(got.to_dense(), value.to_dense())


@pytest.mark.parametrize("count", [8, 5000, 300_000])
def test_a_tensor_is_shared_with_nobody(model: Any, procs: ProcMesh, torch: Any, count: int) -> None:
    value = torch.zeros(count)
    got = model.add.call_one(value).get()
    assert value.sum() == 0
    assert got.sum() == count
    model.keep.call_one(value).get()
    value += 5
    assert model.kept_sum.call_one().get() == 0
    mesh = procs.spawn("models", Model)
    assert [int(one[0]) for one in mesh.add.call(value).get().values()] == [6, 7, 8, 9]
    assert value[0] == 5


@pytest.mark.parametrize("count", [8, 300_000])
def test_views_of_one_storage_stay_so_within_a_message(model: Any, torch: Any, count: int) -> None:
    base = torch.zeros(count)
    assert model.share.call_one((base, base)).get()
    assert model.share.call_one((base, base.view(2, -1))).get()
    assert model.share.call_one([base[: count // 2], base[: count // 2].view(-1)]).get()
    first, second = model.echo.call_one((base, base.view(2, -1))).get()
    second[0, 0] = 3
    assert first[0] == 3
    assert base[0] == 0


def test_a_small_part_of_a_big_tensor_travels_alone(model: Any, torch: Any) -> None:
    base = torch.zeros(1_000_000)
    assert model.storage_bytes.call_one(base[:10]).get() < 100_000
    row = model.echo.call_one(base.view(1000, 1000)[3]).get()
    assert row.untyped_storage().nbytes() < 100_000


def test_state_dicts_keep_their_order_and_tied_weights(model: Any, torch: Any) -> None:
    class Tied(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(200, 200, bias=False)
            self.second = torch.nn.Linear(200, 200, bias=False)
            self.second.weight = self.first.weight

    state = Tied().state_dict()
    got = model.echo.call_one(state).get()
    assert isinstance(got, collections.OrderedDict)
    assert list(got) == list(state)
    assert all(torch.equal(got[name], tensor) for name, tensor in state.items())
    got["first.weight"][0, 0] = 77
    assert got["second.weight"][0, 0] == 77
    many = {f"layer{number}": torch.full((number % 50 + 1,), float(number)) for number in range(2000)}
    back = model.echo.call_one(many).get()
    assert all(torch.equal(back[name], tensor) for name, tensor in many.items())


def test_modules_and_optimisers_travel_and_train(model: Any, torch: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
    batch = torch.ones(8, 100)
    gradients = model.train.call_one(net, batch).get()
    assert {name: one.shape for name, one in gradients.items()} == {
        name: one.shape for name, one in net.named_parameters()
    }
    assert all(parameter.grad is None for parameter in net.parameters())
    net(batch).mean().backward()
    optimiser = torch.optim.Adam(net.parameters())
    optimiser.step()
    state = model.echo.call_one(optimiser.state_dict()).get()
    assert state["state"].keys() == optimiser.state_dict()["state"].keys()
    optimiser.load_state_dict(state)


def test_types_and_devices_of_tensors_are_values(model: Any, torch: Any) -> None:
    for value in (torch.float16, torch.device("cpu"), torch.Size([1, 2]), torch.strided):
        assert model.echo.call_one(value).get() == value


def test_received_tensors_outlive_their_message(model: Any, torch: Any) -> None:
    kept = [model.echo.call_one(torch.full((300_000,), float(number))).get() for number in range(6)]
    parts = [one[10:20] for one in kept]
    del kept
    gc.collect()
    for _ in range(6):
        model.echo.call_one(torch.zeros(300_000)).get()
    assert [float(part.sum()) for part in parts] == [10.0 * number for number in range(6)]
