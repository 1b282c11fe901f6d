"""TensorStore and zarr-python read what we wrote, without us."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
import zarr
from jax.sharding import NamedSharding, PartitionSpec

from ckptmgr import CheckpointManager
from ckptmgr.format.chunks import default_chunk
from ckptmgr.format.zarr import DTYPES


def saved(run: Path, tree: object) -> Path:
    """The arrays of a step, each in a directory of its own."""
    with CheckpointManager(run, pack_below=0) as manager:
        manager.save(0, tree).result()
    return run / "step-00000000" / "arrays"


def opened(path: Path) -> np.ndarray:
    """An array as TensorStore reads it."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_reads_back_by_itself_or_as_bits(run: Path, name: str) -> None:
    """Bit for bit; what Zarr has no name for, as uint8."""
    dtype = DTYPES[name]
    bits = np.random.default_rng(0).integers(0, 2, 6 * dtype.itemsize, np.uint8)
    array = bits.view(dtype).reshape(2, 3)
    found = opened(saved(run, {"a": array}) / "a")
    assert found.tobytes() == array.tobytes()
    assert found.shape == (2, 3)
    assert found.dtype in {dtype, np.dtype(np.uint8)}
    assert found.dtype == dtype or dtype.itemsize == 1


def test_chunks_of_all_kinds_read_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded at the edge, cut on a second axis, one a shard, without dimensions."""
    monkeypatch.setattr(default_chunk, "__defaults__", (1000,))
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    tree = {
        "rows": jnp.arange(1001.0).reshape(77, 13),
        "wide": jnp.arange(2 * 3001.0).reshape(2, 3001),
        "cube": np.arange(7 * 11 * 13.0).reshape(7, 11, 13),
        "sharded": jax.device_put(
            jnp.arange(64 * 64.0).reshape(64, 64), NamedSharding(mesh, PartitionSpec("x", "y"))
        ),
        "scalar": jnp.float32(7),
    }
    arrays = saved(run, tree)
    group = zarr.open_group(arrays, mode="r")
    for name, array in tree.items():
        assert np.array_equal(opened(arrays / name), np.asarray(array)), name
        member = group[name]
        assert isinstance(member, zarr.Array)
        assert np.array_equal(np.asarray(member[...]), np.asarray(array)), name
    assert len(list((arrays / "sharded").glob("c.*"))) >= 8
    with CheckpointManager(run, read_only=True) as manager:
        back = manager.restore(0, shardings="numpy")
        for name, array in tree.items():
            assert np.array_equal(back[name], np.asarray(array)), name


def test_a_pack_is_one_array_of_bytes(run: Path) -> None:
    """Small leaves end to end, 64-byte aligned."""
    with CheckpointManager(run) as manager:
        manager.save(0, [np.arange(3, dtype=np.uint8), np.arange(4, dtype=np.uint8)]).result()
    pack = opened(run / "step-00000000" / "packs" / "0")
    assert list(pack[:3]) == [0, 1, 2]
    assert list(pack[64:68]) == [0, 1, 2, 3]


def test_a_foreign_reader_finds_a_flipped_bit_by_the_checksum(run: Path) -> None:
    """Crc32c, as Zarr's codec of that name."""
    arrays = saved(run, {"a": np.arange(100.0)})
    file = arrays / "a" / "c.0"
    data = bytearray(file.read_bytes())
    data[17] ^= 4
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"Digest mismatch"):
        opened(arrays / "a")
