"""Mutated files of other formats: each loads, or is one error of ours."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from jax.experimental.array_serialization import pytree_serialization

import ckptmgr
from ckptmgr import CheckpointError, convert

MUTATIONS = max(40, int(os.environ.get("CKPTMGR_FUZZ", "0")) // 100)
TREE = {"a": jnp.arange(6.0).reshape(2, 3), "l": [jnp.ones(2)], "s": jnp.int32(3)}
WORDS = (b"null", b"-1", b"[]", b"{}", b'""', b"1e999", b"99999999999999")
KINDS = (
    *("ocdbt", "zarr2", "zarr3", "step", "jax"),
    *("eformer", "x.safetensors", "x.msgpack", "x.zip"),
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each."""
    path = tmp_path_factory.mktemp("written")
    extra = {**TREE, "text": "x", "number": 1.5}
    for kind, options in {
        "ocdbt": {},
        "zarr2": {"use_ocdbt": False},
        "zarr3": {"use_ocdbt": False, "use_zarr3": True},
    }.items():
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            checkpointer.save(path / kind, extra)
    with ocp.CheckpointManager(path / "step") as manager:
        items = {"state": ocp.args.StandardSave(TREE), "json": ocp.args.JsonSave({"a": [1]})}
        manager.save(3, args=ocp.args.Composite(**items))
    pytree_serialization.save(TREE, path / "jax")
    ckptmgr.save(path / "own", {"a": jnp.ones((2, 3)), "b": {"c": jnp.ones(3)}})
    convert(path / "own", path / "eformer", to="eformer")
    for kind in ("x.safetensors", "x.msgpack", "x.zip"):
        convert(path / "own", path / kind)
    return path


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them changed, cut off, put in or replaced by something odd."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found)) if found else 0
        match chance.randint(0, 3):
            case 0 if found:
                found[at] ^= 1 << chance.randrange(8)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = chance.randbytes(chance.randint(1, 6))
            case _:
                found[at : at + chance.randint(1, 8)] = chance.choice(WORDS)
    return bytes(found)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_mutated_loads_or_is_an_error(written: Path, tmp_path: Path, kind: str) -> None:
    """Of ours, and no other that it would be the cause of unseen."""
    chance, target = random.Random(kind), tmp_path / kind
    for _ in range(MUTATIONS):
        source = written / kind
        if source.is_dir():
            shutil.copytree(source, target)
            files = sorted(path for path in target.rglob("*") if path.is_file())
        else:
            shutil.copy(source, target)
            files = [target]
        file = chance.choice(files)
        file.write_bytes(mutated(file.read_bytes(), chance))
        told = ""
        try:
            ckptmgr.load(target, in_flight_bytes="64MiB")
        except CheckpointError as error:
            told = str(error)
        assert "the load failed" not in told
        if source.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()
