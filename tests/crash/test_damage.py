"""Whatever happens to the files of a step, what is restored is what was saved, or an error."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ckptmgr
from ckptmgr import CheckpointError, DamagedStep, LeafOptions
from tests.golden.make import golden
from tests.trees import assert_same


def everything() -> dict[str, Any]:
    """Every kind of leaf, large and small, chunked, sharded, encoded."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    sharded = jnp.arange(512.0).reshape(16, 32)
    return {
        **golden(),
        "jax": jnp.arange(7, dtype=jnp.bfloat16),
        "key": jax.random.key(3),
        "sharded": jax.device_put(sharded, NamedSharding(mesh, PartitionSpec("x", "y"))),
        "chunks": np.arange(4096, dtype=np.int32).reshape(64, 64),
        "zipped": np.arange(1024, dtype=np.float32),
        "inner": np.arange(256, dtype=np.float64).reshape(16, 16),
    }


OPTIONS = [
    ("chunks", LeafOptions(write_chunk=(16, 16))),
    ("sharded", LeafOptions(own_array=True)),
    ("zipped", LeafOptions(compression="zstd:3")),
    ("inner", LeafOptions(write_chunk=(8, 8), read_chunk=(4, 4))),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of everything."""
    path = tmp_path_factory.mktemp("damage") / "step"
    ckptmgr.save(path, everything(), leaf_options=OPTIONS)
    return path


@pytest.fixture
def step(template: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return shutil.copytree(template, tmp_path / "step")


def files(step: Path) -> list[Path]:
    """All of them."""
    return sorted(path for path in step.rglob("*") if path.is_file())


def refused(step: Path) -> CheckpointError | None:
    """The error of a restore; None where it gives back what was saved."""
    try:
        found = ckptmgr.load(step)
    except CheckpointError as error:
        return error
    assert_same(found, everything())
    return None


def test_it_is_whole(step: Path) -> None:
    """Before anything is done to it."""
    assert refused(step) is None
    assert ckptmgr.verify(step).ok


def test_a_flipped_bit_is_found_or_changes_nothing(step: Path, flips: int) -> None:
    """In any file; verification finds each."""
    chance = random.Random(5)
    sizes = {path: path.stat().st_size for path in files(step)}
    found = 0
    for number in range(flips):
        path = chance.choices(list(sizes), weights=[max(n, 200) for n in sizes.values()])[0]
        data = path.read_bytes()
        at = chance.randrange(len(data) * 8)
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        path.write_bytes(changed)
        error = refused(step)
        found += error is not None
        if number % 10 == 0:
            assert not ckptmgr.verify(step).ok, (path, at)
        path.write_bytes(data)
    print(f"{flips} flips: {found} found by restoring, the others changed nothing")
    assert found > flips // 2


@pytest.mark.parametrize("cut", ["empty", "one byte", "half", "all but one"])
def test_a_file_that_was_cut_is_found(step: Path, cut: str) -> None:
    """Whichever it is."""
    for path in files(step):
        data = path.read_bytes()
        length = {"empty": 0, "one byte": 1, "half": len(data) // 2, "all but one": -1}[cut]
        path.write_bytes(data[:length])
        assert isinstance(refused(step), DamagedStep), path
        path.write_bytes(data)


def test_a_page_or_a_file_of_zeros_is_found(step: Path) -> None:
    """Where it did not hold zeros before."""
    for path in files(step):
        data = path.read_bytes()
        for part in (slice(0, 4096), slice(None)):
            changed = bytearray(data)
            changed[part] = bytes(len(changed[part]))
            if changed != data:
                path.write_bytes(changed)
                assert refused(step) is not None, path
        path.write_bytes(data)


def test_a_missing_file_is_found(step: Path) -> None:
    """Whichever it is; it is named, and so is its leaf where it has one."""
    for path in files(step):
        data = path.read_bytes()
        path.unlink()
        error = refused(step)
        assert error is not None, path
        assert str(path) in str(error) or path.name == "checkpoint.json"
        path.write_bytes(data)


def test_two_files_that_were_swapped_are_found(step: Path) -> None:
    """Every two of equal size whose bytes differ."""
    by_size: dict[int, list[Path]] = {}
    for path in files(step):
        by_size.setdefault(path.stat().st_size, []).append(path)
    swapped = 0
    for group in by_size.values():
        for one, other in itertools.combinations(group, 2):
            first, second = one.read_bytes(), other.read_bytes()
            if first == second:
                continue
            one.write_bytes(second)
            other.write_bytes(first)
            assert isinstance(refused(step), DamagedStep), (one, other)
            one.write_bytes(first)
            other.write_bytes(second)
            swapped += 1
    assert swapped > 100


def test_a_file_from_another_step_is_found(step: Path, tmp_path: Path) -> None:
    """Of the same tree with other values."""
    other = {
        name: leaf + 1 if isinstance(leaf, np.ndarray | jax.Array) and name != "key" else leaf
        for name, leaf in everything().items()
    }
    ckptmgr.save(tmp_path / "other", other, leaf_options=OPTIONS)
    for path in files(step):
        stranger = tmp_path / "other" / path.relative_to(step)
        data = path.read_bytes()
        if stranger.read_bytes() == data:
            continue
        path.write_bytes(stranger.read_bytes())
        assert refused(step) is not None, path
        path.write_bytes(data)


def test_partial_and_resharding_reads_find_it_too(step: Path) -> None:
    """Where they read what is damaged, and not where they do not."""
    path = next((step / "arrays" / "chunks").glob("c.*"))
    data = bytearray(path.read_bytes())
    data[3] ^= 4
    path.write_bytes(data)
    place = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d"))
    like = {"chunks": jax.ShapeDtypeStruct((64, 64), "int32", sharding=place)}
    for options in ({"select": "chunks"}, {"like": like, "select": "chunks"}):
        with pytest.raises(DamagedStep) as caught:
            ckptmgr.load(step, **options)
        assert (caught.value.leaf, caught.value.file) == ("chunks", str(path))
    assert ckptmgr.load(step, select="jax")["jax"].shape == (7,)
