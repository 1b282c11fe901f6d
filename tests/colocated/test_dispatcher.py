"""A save through the dispatcher is a direct one, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import ckptmgr
from ckptmgr import InvalidOption, StepExists, UnsupportedLeaf
from ckptmgr.colocated import Dispatcher
from ckptmgr.format.step import COMMIT_RECORD

MESH = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))


def tree() -> dict[str, Any]:
    """Arrays on all devices, on some, on one; leaves that are no arrays."""

    def put(array: jax.Array, *spec: object) -> jax.Array:
        placed: jax.Array = jax.device_put(array, NamedSharding(MESH, PartitionSpec(*spec)))
        return placed

    return {
        "both": put(jnp.arange(2.0 * (1 << 19)).reshape(1 << 10, -1), "x", "y"),
        "tuple": put(jnp.arange(64, dtype=jnp.bfloat16).reshape(2, 32), None, ("x", "y")),
        "copies": put(jnp.arange(7)),
        "one": jax.device_put(jnp.ones(3), jax.devices()[3]),
        "key": jax.random.key(1),
        "numpy": np.arange(4.0),
        "python": 2**70,
        "list": [None, "text"],
    }


def files(directory: Path) -> dict[str, bytes]:
    """What is in a checkpoint, but for the record, which has the time."""
    found = (path for path in directory.rglob("*") if path.is_file())
    inside = {str(path.relative_to(directory)): path.read_bytes() for path in found}
    return {name: data for name, data in inside.items() if name != COMMIT_RECORD}


def test_a_save_through_it_equals_a_direct_one(tmp_path: Path) -> None:
    """In every byte of every file; it says what the direct one says."""
    info = Dispatcher().save(tmp_path / "sent", tree(), metadata={"by": "me"})
    direct = ckptmgr.save(tmp_path / "direct", tree(), metadata={"by": "me"})
    assert files(tmp_path / "sent") == files(tmp_path / "direct")
    assert (info.nbytes, info.leaves, info.metadata) == (
        *(direct.nbytes, direct.leaves, direct.metadata),
    )


def test_it_loads_with_the_shardings_of_like(tmp_path: Path) -> None:
    """Of arrays, and of structs."""
    arrays = {name: leaf for name, leaf in tree().items() if name in ("both", "tuple", "copies")}
    dispatcher = Dispatcher()
    dispatcher.save(tmp_path / "a", arrays)
    other = NamedSharding(MESH, PartitionSpec("y"))
    like = {**arrays, "both": jax.ShapeDtypeStruct((1 << 10, 1 << 10), "float32", sharding=other)}
    for _ in range(2):
        found = dispatcher.load(tmp_path / "a", like)
        for name, array in arrays.items():
            assert np.asarray(found[name]).tobytes() == np.asarray(array).tobytes()
            assert found[name].sharding == like[name].sharding


def test_errors_come_back_as_they_are(tmp_path: Path) -> None:
    """With what they are about; the checkpoint that is there is left alone."""
    dispatcher = Dispatcher()
    dispatcher.save(tmp_path / "a", tree())
    before = files(tmp_path / "a")
    with pytest.raises(StepExists, match="overwrite=True"):
        dispatcher.save(tmp_path / "a", tree())
    with pytest.raises(UnsupportedLeaf) as caught:
        dispatcher.save(tmp_path / "b", {"a": jnp.ones(3), "f": [sorted]})
    assert caught.value.leaf == "f/0"
    assert files(tmp_path / "a") == before
    dispatcher.save(tmp_path / "a", {"a": jnp.ones(3)}, overwrite=True)
    assert ckptmgr.load(tmp_path / "a")["a"].tolist() == [1, 1, 1]


def test_what_it_cannot_send_is_refused(tmp_path: Path) -> None:
    """Leaves that nothing can pickle, trees without a device, leaves without a sharding."""
    dispatcher = Dispatcher()
    with pytest.raises(UnsupportedLeaf, match="cannot cross"):
        dispatcher.save(tmp_path / "a", {"a": jnp.ones(3), "lock": sys._getframe()})
    with pytest.raises(UnsupportedLeaf, match=r"use ckptmgr\.save"):
        dispatcher.save(tmp_path / "a", {"n": 3})
    dispatcher.save(tmp_path / "a", {"a": jnp.ones(3), "n": 3})
    with pytest.raises(UnsupportedLeaf, match="no sharding") as caught:
        dispatcher.load(tmp_path / "a", {"a": jnp.ones(3), "n": 3})
    assert caught.value.leaf == "n"


def test_without_cloudpickle_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself jax says only that a module is missing."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InvalidOption, match=r"pip install 'ckptmgr\[colocated\]'"):
        Dispatcher()


def test_many_saves_keep_one_callable(tmp_path: Path) -> None:
    """For jax keeps each for good, with all that it holds."""
    dispatcher = Dispatcher()
    for number in range(3):
        dispatcher.save(tmp_path / str(number), {"a": jnp.ones(3)})
    assert len(dispatcher._writers) == 1


def test_no_device_id_is_stored(tmp_path: Path) -> None:
    """An array of device 3 is one of a single device."""
    Dispatcher().save(tmp_path / "a", {"a": jax.device_put(jnp.ones(3), jax.devices()[3])})
    found = ckptmgr.load(tmp_path / "a")["a"]
    assert isinstance(found.sharding, SingleDeviceSharding)
    assert found.devices() == {jax.devices()[0]}
