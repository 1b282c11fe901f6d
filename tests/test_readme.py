"""The README's commands, typed as they stand there, print what stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ckptmgr import CheckpointManager, KeepBest, KeepLast, NoSpace
from ckptmgr.storage.local import LocalStorage
from tests.cli.conftest import Shell, shell

__all__ = ["shell"]  # a fixture
README = (Path(__file__).parents[1] / "README.md").read_text()


def commands(section: str) -> list[tuple[list[str], str]]:
    """The commands of the first console block after some words, each with what it prints."""
    block = README.partition(section)[2].partition("```console\n")[2].partition("```")[0]
    found = re.findall(r"^\$ ckptmgr (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert found, section
    return [(shlex.split(line), out) for line, out in found]


def check(shell: Shell, section: str) -> None:
    """Type them; `...` stands for anything on a line, alone on one for the rest."""
    for arguments, expected in commands(section):
        told = shell(*arguments)
        pattern = re.escape(expected).replace(re.escape("..."), ".*")
        flags = re.DOTALL if expected.endswith("\n...\n") else re.NOFLAG
        # A cell of a table may be wider or narrower than the one that was printed here.
        pattern = re.sub(r"(\\ ){2,}", r"\\ +", pattern)
        assert re.fullmatch(pattern, told.out + told.err, flags), (told, expected)


def tree(step: int) -> dict[str, object]:
    """What the README's run holds."""
    layer = {"kernel": jnp.full((300, 300), step, jnp.float32), "bias": jnp.zeros(100)}
    params = {"layer_0": layer, "layer_1": layer}
    return {"params": params, "key": jax.random.key(0), "step": step}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the README's run in it."""
    monkeypatch.chdir(tmp_path)
    with CheckpointManager("run", keep=KeepLast(2) | KeepBest("loss")) as manager:
        for step, loss in ((100, 1.0), (200, 0.5), (300, 0.25)):
            manager.save(step, tree(step), metrics={"loss": loss}).result()
            if step == 100:
                manager.pin(100)
    return tmp_path


def test_the_command_line(shell: Shell, here: Path) -> None:
    """`ls`, `show`, `diff` and `gc`."""
    check(shell, "### On the command line")


def test_a_damaged_step(shell: Shell, here: Path) -> None:
    """Found and removed; what is left of it can be read."""
    pack = here / "run" / "step-00000300" / "packs" / "0" / "c.0"
    data = bytearray(pack.read_bytes())
    data[1000] ^= 1
    pack.write_bytes(data)
    with CheckpointManager("run") as manager:
        assert manager.resume(tree(0))[0] == 200
        assert manager.restore(300, select="params/layer_1")["params"]["layer_1"] is not None
    check(shell, "**A step is damaged.**")


def test_a_full_disk(shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the manager says of it, and room made."""
    with CheckpointManager("run", keep=KeepLast(2) | KeepBest("loss")) as manager:
        manager.save(300, tree(300), overwrite=True).result()
        monkeypatch.setattr(LocalStorage, "free_bytes", lambda _: 0)
        with pytest.raises(NoSpace):
            manager.save(400, tree(400)).result()
    check(shell, "**The disk is full.**")


def test_a_locked_directory(shell: Shell, here: Path) -> None:
    """By whom, and what that one does."""
    with CheckpointManager("run", keep=KeepLast(5)) as manager:
        manager.save(400, tree(400)).result()
        manager.wait()
        check(shell, "**The directory is locked.**")


def test_a_lost_mesh(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was, and the lines that restore on a smaller one."""
    monkeypatch.chdir(tmp_path)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    w = np.arange(1024, dtype=np.float32).reshape(32, 32)
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    with CheckpointManager("run") as manager:
        manager.save(1, {"w": jax.device_put(w, sharding)}).result()
    check(shell, "**The mesh is lost.**")
    code = README.partition("**The mesh is lost.**")[2].partition("```python\n")[2]
    found: dict[str, jax.Array] = {}
    exec(code.partition("```")[0], {"jax": jax, "CheckpointManager": CheckpointManager}, found)
    assert len(found["w"].sharding.device_set) == 2
    assert np.array_equal(found["w"], w)


def test_every_file_that_is_named_is_there() -> None:
    """Links do not dangle, and each make target exists."""
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / link).exists(), link
    makefile = (root / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z][a-z-]+[a-z])[`,. ]", README))
    targets |= set(re.findall(r"^    make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test", "docs", "examples", "check"} <= targets
    for target in targets - {"example"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for example in re.findall(r"\(examples/(\w+)\.py\)", README):
        assert re.search(rf"\b{example}\b", makefile), example


def test_what_shows_a_row_of_the_comparison_is_there() -> None:
    """Each test that is named, and each make target."""
    root = Path(__file__).parents[1]
    rows = README.partition("### Compared")[2].partition("###")[0].splitlines()
    shown = [row.rsplit("|", 2)[1] for row in rows if row.startswith("| ")][1:]
    assert len(shown) > 10
    for cell in shown:
        for name in re.findall("`([^`]+)`", cell):
            path, _, test = name.partition("::")
            assert name.startswith("make ") or (root / path).exists(), name
            assert not test or f"def {test}(" in (root / path).read_text(), name
