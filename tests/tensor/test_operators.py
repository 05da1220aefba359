"""Operators on distributed tensors give what they give on local ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import roost
from roost.actor import ProcMesh
from roost.errors import MixedTensorsError, NotOnControllerError
from roost.tensor import Tensor, fetch_all, fetch_shard, inspect, manual_seed, no_mesh, rank_tensors


def base() -> Any:
    return torch.arange(12, dtype=torch.float32).reshape(3, 4)


def in_place() -> Any:
    x = base()
    x[0] = 7
    x[:, 1].mul_(3)
    x.add_(1).clamp_(max=9.5)
    return x


def shape_in_place() -> Any:
    x = base()
    view = x.detach()
    view.t_()
    view.unsqueeze_(0)
    return view.squeeze_(0) @ x, x


def out_variant() -> Any:
    out, small = torch.empty(3, 4), torch.empty(0)
    torch.add(base(), base(), out=out)
    torch.mul(base(), 2.0, out=small)
    return out, small


def several_results() -> Any:
    values, indices = base().sort(descending=True)
    return values, indices, base().split(2, dim=1), torch.linalg.svd(base() @ base().T).S


def scalars() -> Any:
    x = base()
    return [
        x + 1,
        x + 1.5,
        x.int() + 1,
        x.int() + 1.5,
        x.int() * True,
        torch.full((2,), 1),
        torch.full((2,), 1.0),
    ]


def signed_zeros() -> Any:
    return [torch.full((1,), value).reciprocal() for value in (0.0, -0.0)] + [
        torch.heaviside(torch.zeros(1), torch.tensor([value])) for value in (0.5, 1.0)
    ]


def factories() -> Any:
    return (
        torch.zeros(2, 3),
        torch.arange(0, 1, 0.25),
        torch.linspace(0, 1, 5),
        torch.eye(3, dtype=torch.float64),
        torch.tensor([[1, 2], [3, 4]]),
        torch.ones_like(base(), dtype=torch.int32),
    )


def views() -> Any:
    x = base()
    flat = x.view(-1)
    flat[3] = -1
    return x, x.T.contiguous(), x[1:, ::2], x.unfold(1, 2, 1), x.expand(2, 3, 4), x.diagonal()


def indexing() -> Any:
    x = base()
    x[x > 5] = 0
    return x, x[torch.tensor([2, 0])], torch.where(x > 2, x, -x), x.gather(1, torch.tensor([[1], [2], [3]]))


def gradients() -> Any:
    x = base().requires_grad_()
    w = torch.linspace(-1, 1, 8).reshape(4, 2).requires_grad_()
    loss = torch.nn.functional.gelu(x @ w).pow(2).mean() + x.prod(dim=1).log1p().sum()
    loss.backward()
    second = torch.autograd.grad((x * x * w.sum()).sum(), [x, w])
    return loss.detach(), x.grad, w.grad, second


def attention() -> Any:
    q = torch.linspace(-1, 1, 2 * 4 * 8 * 16).reshape(2, 4, 8, 16).requires_grad_()
    made = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    made.sum().backward()
    return made.detach(), q.grad


def autocast() -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = base() @ base().T
    return made


def no_grad() -> Any:
    x = base().requires_grad_()
    with torch.no_grad():
        x.mul_(2)
        y = x + 1
    assert not y.requires_grad
    return y


def complex_numbers() -> Any:
    z = torch.view_as_complex(base().reshape(3, 2, 2))
    return z.conj() * 2, z.conj().imag + 1, torch.fft.fft(z).abs()


CASES: list[Callable[[], Any]] = [
    in_place,
    shape_in_place,
    out_variant,
    several_results,
    scalars,
    signed_zeros,
    factories,
    views,
    indexing,
    gradients,
    attention,
    autocast,
    no_grad,
    complex_numbers,
]


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("program", CASES, ids=lambda case: case.__name__)
def test_a_program_computes_on_a_mesh_what_it_computes_here(pair: ProcMesh, program: Any) -> None:
    expected = program()

    for _ in range(2):  # the second time, all is remembered
        with pair.activate():
            made = program()
        for _, found in fetch_all(made).get(timeout=60).items():
            assert_same(found, expected)


def train(optimiser: Any, options: dict[str, Any], seed: Callable[[], Any]) -> Any:
    seed()
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    steps = optimiser(model.parameters(), **options)
    schedule = torch.optim.lr_scheduler.StepLR(steps, step_size=2, gamma=0.5)
    data = torch.linspace(-1, 1, 48).reshape(8, 6)
    for _ in range(5):
        steps.zero_grad()
        loss = (model(data) - data.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        schedule.step()
    return [parameter.detach() for parameter in model.parameters()]


OPTIMISERS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "foreach": True}),
    ("Adam", {"lr": 0.1}),
    ("AdamW", {"lr": 0.1, "foreach": True, "amsgrad": True}),
    ("AdamW", {"lr": 0.1, "fused": True}),
    ("RMSprop", {"lr": 0.01}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMISERS)
def test_training_ends_with_the_same_bits(pair: ProcMesh, name: str, options: dict[str, Any]) -> None:
    optimiser = getattr(torch.optim, name)
    expected = train(optimiser, options, lambda: torch.manual_seed(5))

    with pair.activate():
        made = train(optimiser, options, lambda: manual_seed(5, differ=False))

    assert all(isinstance(one, Tensor) for one in made)
    for _, found in fetch_all(made).get(timeout=60).items():
        assert_same(found, expected)


def test_random_numbers_differ_by_rank_and_repeat_by_seed(pair: ProcMesh) -> None:
    def draw() -> Any:
        with pair.activate():
            manual_seed(3)
            return fetch_all((torch.randn(5), torch.rand(3).bernoulli_())).get(timeout=60).values()

    first, second = draw(), draw()

    assert_same(first, second)
    assert not torch.equal(first[0][0], first[1][0])
    torch.manual_seed(3 + 1)
    assert_same(first[1][0], torch.randn(5))


def test_fetches_name_their_rank(square: ProcMesh) -> None:
    ranks = rank_tensors(square)
    both = {"here": ranks["rows"] * 10 + ranks["cols"], "label": "kept"}

    assert inspect(both) == {"here": 0, "label": "kept"}
    assert inspect(both, rows=1)["here"] == 10
    assert fetch_shard(both, {"cols": 1}, rows=1).get()["here"] == 11
    assert fetch_shard(both, 2).get()["here"] == 10
    assert [int(one["here"]) for one in fetch_all(both).get().values()] == [0, 1, 10, 11]
    with pytest.raises(KeyError, match="depth"):
        fetch_shard(both, depth=1)
    with pytest.raises(IndexError):
        fetch_shard(both, rows=2)
    with pytest.raises(TypeError, match="no distributed tensor"):
        fetch_shard([1, 2])


def test_what_needs_values_refuses_and_says_what_to_do(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(3)
    asked: list[Callable[[], Any]] = [
        lambda: x.sum().item(),
        lambda: bool(x.sum() > 2),
        lambda: x.tolist(),
        lambda: x.numpy(),
        lambda: x.nonzero(),
        lambda: float(x[0]),
        lambda: f"{x[0]:.2f}",
        lambda: torch.equal(x, x),
    ]

    for ask in asked:
        with pytest.raises(NotOnControllerError, match="fetch_shard"):
            ask()
    for text in (repr(x), str(x), f"{x}"):
        assert "[3] float32 distributed on pair(gpus=2)" in text


def test_tensors_do_not_mix_with_those_of_elsewhere(pair: ProcMesh, square: ProcMesh) -> None:
    with pair.activate():
        here = torch.ones(3)
    with square.activate():
        there = torch.ones(3)

    with pytest.raises(MixedTensorsError, match="different meshes"):
        here + there
    with pytest.raises(MixedTensorsError, match="local tensor"):
        here + torch.ones(3)
    assert_same(inspect(here + torch.tensor(2.0)), torch.full((3,), 3.0))
    with pytest.raises(TypeError, match="Generator"):
        here.bernoulli_(generator=torch.Generator())


def test_meshes_nest_and_no_mesh_computes_here(pair: ProcMesh, square: ProcMesh) -> None:
    with pytest.raises(ValueError, match="no mesh is active"):
        roost.get_active_mesh()
    with pair.activate() as active:
        assert roost.get_active_mesh() is active
        with square.activate():
            assert torch.ones(1).mesh == square
        with no_mesh.activate():
            local = torch.ones(2) + 1
            assert type(local) is torch.Tensor
        assert torch.ones(1).mesh == pair
        assert local.sum().item() == 4.0
    assert type(torch.ones(1)) is torch.Tensor


def test_operators_go_on_outside_of_the_block(pair: ProcMesh) -> None:
    with pair.activate():
        x = torch.ones(2)

    y = x * 3 + torch.zeros_like(x)

    assert_same(inspect(y), torch.full((2,), 3.0))
