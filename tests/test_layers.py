"""Imports go down only, and nothing but arrays needs jax."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ckptmgr"

# Lower may be imported by higher, never the other way; equals only within the same room.
LAYERS = {
    "errors": 0,
    "format": 1,
    "units": 1,
    "future": 2,
    "callbacks": 2,
    "limiter": 3,
    "failures": 3,
    "events": 3,
    "cadence": 3,
    "notation": 4,
    "retention": 3,
    "tree": 4,
    "storage": 4,
    "distributed": 4,
    "options": 4,
    "preemption": 4,
    "pace": 5,
    "status": 5,
    "reporter": 6,
    "progress": 7,
    "pipeline": 5,
    "catalog": 6,
    "interop": 6,
    "jobs": 6,
    "books": 6,
    "config": 7,
    "saver": 7,
    "queue": 7,
    "service": 8,
    "steps": 9,
    "run": 10,
    "life": 11,
    "manager": 12,
    "functional": 13,
    "cli": 15,
    "conversion": 14,
    "__init__": 15,
    "colocated": 16,
}
WITHOUT_JAX = {
    "errors",
    "format",
    "units",
    "callbacks",
    "future",
    "failures",
    "events",
    "limiter",
    "cadence",
    "retention",
    "notation",
    "storage",
    "status",
    "reporter",
    "catalog",
}


def room(module: str) -> str:
    """The room of a module of the package: its first name."""
    return module.split(".")[1] if "." in module else "__init__"


def modules() -> list[Path]:
    """Every file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_lies_below_it(path: Path) -> None:
    """Or beside it in its own room."""
    mine = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module in imports(path):
        if module.startswith("ckptmgr."):
            theirs = room(module)
            assert theirs == mine or LAYERS[theirs] < LAYERS[mine], f"{path} imports {module}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_jax_is_imported_where_arrays_are_and_nowhere_else(path: Path) -> None:
    """What lists checkpoints must start without it."""
    mine = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if mine in WITHOUT_JAX:
        assert not any(module.split(".")[0] == "jax" for module in imports(path))


def test_every_room_has_a_place_in_the_order() -> None:
    """A new file must be given one."""
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert rooms == set(LAYERS)


def test_no_file_has_grown_past_what_one_idea_needs() -> None:
    """A file that wants to be two things is split."""
    for path in modules():
        assert len(path.read_text().splitlines()) <= 400, path
