"""What the source is held to: one-way imports, exports that resolve, stubs in step, short files."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "roost"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A layer imports only from itself and from those before it.
LAYERS = (
    "_core",
    "errors",
    "_shape",
    "config",
    "actor",
    "rdma",
    "tensor",
    "spmd",
    "job",
    "telemetry",
    "debug",
    "service",
    "notebook",
    "dashboard",
    "cli",
    "testing",
)
# The outermost layers: nothing reaches for them, not even when a function runs.
OUTERMOST = ("dashboard", "cli")

HEAVY = ("asyncio", "numpy", "torch", "cloudpickle", "inspect", "logging")
MAX_LINES = 500
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer_of(path: Path) -> str:
    """`actor` for python/roost/actor/_future.py; empty for the package itself."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def module_of(path: Path) -> list[str]:
    """The package that relative imports of a file start from."""
    return ["roost", *path.relative_to(PACKAGE).parts[:-1]]


def only_for_types(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If):
        return False
    names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
    attributes = {n.attr for n in ast.walk(node.test) if isinstance(n, ast.Attribute)}
    return "TYPE_CHECKING" in names | attributes


def statements(body: list[ast.stmt], *, lazy: bool) -> Iterator[ast.stmt]:
    """Statements that run on import; with `lazy`, also those that run when a function is called."""
    for node in body:
        if only_for_types(node):
            yield from statements(node.orelse, lazy=lazy)  # type: ignore[attr-defined]
            continue
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from statements([child], lazy=lazy)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from statements(child.body, lazy=lazy)


def imported_layers(path: Path, *, lazy: bool) -> Iterator[tuple[str, int]]:
    """The layers of roost that a file imports, with the line."""
    for node in statements(ast.parse(path.read_text()).body, lazy=lazy):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                package = module_of(path)
                base = package[: len(package) - node.level + 1] + base
            # `from roost import actor` names the layer only among its aliases.
            modules = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for module in modules:
            first, _, rest = module.partition(".")
            if first == "roost" and rest:
                yield rest.split(".")[0], node.lineno


def test_every_module_belongs_to_a_layer() -> None:
    unknown = {layer_of(path) for path in SOURCES} - {*LAYERS, ""}

    assert not unknown, f"add to LAYERS, in the place from which it may import: {sorted(unknown)}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_layer_imports_only_from_those_before_it(path: Path) -> None:
    own = layer_of(path)
    allowed = LAYERS[: LAYERS.index(own) + 1] if own in LAYERS else LAYERS
    above = [
        f"{name_of(path)}:{line} imports roost.{layer}"
        for layer, line in imported_layers(path, lazy=False)
        if layer in LAYERS and layer not in allowed
    ]

    assert not above, "\n".join(above)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_imports_the_outermost_layers(path: Path) -> None:
    own = layer_of(path)
    reached = [
        f"{name_of(path)}:{line} imports roost.{layer}"
        for layer, line in imported_layers(path, lazy=True)
        if layer in OUTERMOST and layer != own and not (own in OUTERMOST and layer == "dashboard")
    ]

    assert not reached, "\n".join(reached)


@pytest.mark.parametrize("module", ["roost.actor", "roost.errors"])
def test_every_exported_name_resolves(module: str) -> None:
    loaded = importlib.import_module(module)

    missing = [name for name in loaded.__all__ if not hasattr(loaded, name)]

    assert not missing
    assert len(set(loaded.__all__)) == len(loaded.__all__)
    assert loaded.__all__ == sorted(loaded.__all__)


def test_importing_actors_imports_nothing_heavy() -> None:
    # Compared with a bare interpreter, since site-packages may bring in modules by themselves.
    program = (
        "import json, sys; before = set(sys.modules); import roost.actor; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    loaded = json.loads(run.stdout)

    assert "roost.actor" in loaded
    assert not [module for module in HEAVY if module in loaded]


def public(names: Iterator[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def declared(body: list[ast.stmt]) -> Iterator[str]:
    """The names that a stub declares."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def stub() -> ast.Module:
    return ast.parse((PACKAGE / "_core.pyi").read_text())


def test_the_stub_has_the_names_of_the_compiled_module() -> None:
    core = importlib.import_module("roost._core")

    assert public(declared(stub().body)) == public(iter(vars(core)))


def test_the_classes_of_the_stub_have_the_members_of_the_compiled_ones() -> None:
    core = importlib.import_module("roost._core")
    differences = []
    for node in stub().body:
        compiled = getattr(core, node.name, None) if isinstance(node, ast.ClassDef) else None
        if isinstance(node, ast.ClassDef) and inspect.isclass(compiled):
            stubbed, real = public(declared(node.body)), public(iter(vars(compiled)))
            if stubbed != real:
                differences.append(
                    f"{node.name}: only in the stub {sorted(stubbed - real)}, "
                    f"only compiled {sorted(real - stubbed)}"
                )

    assert not differences, "\n".join(differences)


def source_files() -> list[Path]:
    folders = ("python", "crates", "tests", "examples", "benchmarks")
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".pyi", ".rs"}
    )


def test_no_file_is_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in source_files()}

    long = {name: length for name, length in lengths.items() if length > MAX_LINES}

    assert not long, f"split by concept, at most {MAX_LINES} lines a file: {long}"


def test_no_file_has_an_empty_name() -> None:
    named = [
        name_of(path)
        for path in source_files()
        if {part.removesuffix(path.suffix).strip("_") for part in path.relative_to(ROOT).parts} & EMPTY_NAMES
    ]

    assert not named, f"name what it is about: {named}"
