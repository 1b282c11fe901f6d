"""LeafOptions: each does what it says, or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr

import ckptmgr
from ckptmgr import (
    CheckpointError,
    CheckpointManager,
    DamagedStep,
    InvalidOption,
    LeafOptions,
    TreeMismatch,
    UnsupportedLeaf,
)
from ckptmgr.storage.local import LocalStorage
from tests.trees import Pair, assert_same

RANDOM = np.random.default_rng(0)


def save(path: Path, tree: object, *rules: tuple[str, LeafOptions]) -> Path:
    """Saved with these options; where the arrays lie."""
    ckptmgr.save(path / "tree", tree, leaf_options=rules, overwrite=True)
    return path / "tree" / "arrays"


def metadata(array: Path) -> dict[str, Any]:
    """The zarr.json of an array."""
    return dict(json.loads((array / "zarr.json").read_text()))


def chunk(array: Path) -> list[int]:
    """The shape of its chunks."""
    shape: list[int] = metadata(array)["chunk_grid"]["configuration"]["chunk_shape"]
    return shape


def read_by_others(array: Path) -> list[np.ndarray]:
    """As TensorStore and zarr-python read it."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{array}/"}}
    store = tensorstore.open(spec, read=True).result()
    return [np.asarray(store.read().result()), np.asarray(zarr.open_array(array, mode="r")[...])]


def test_f32_is_stored_as_bf16_and_comes_back_as_either(tmp_path: Path) -> None:
    """By itself as it is stored; what like asks for, through like."""
    tree = {
        "small": jnp.linspace(0, 1, 99),
        "large": RANDOM.standard_normal((600, 1000), np.float32),
    }
    arrays = save(tmp_path, tree, ("*", LeafOptions(dtype="bfloat16")))
    rounded = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), tree)
    assert_same(ckptmgr.load(tmp_path / "tree"), rounded)
    wide = jax.tree.map(lambda x: x.astype(np.float32), rounded)
    assert_same(ckptmgr.load(tmp_path / "tree", like=tree), wide)
    assert metadata(arrays / "large")["data_type"] == "bfloat16"


@pytest.mark.parametrize("borrow", [True, False])
def test_sharded_and_replicated_arrays_are_cast_box_by_box(run: Path, *, borrow: bool) -> None:
    """Large and small ones."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    specs = [jax.P("x", "y"), jax.P("x"), jax.P(), jax.P(None, "y")]
    tree = [
        jax.device_put(jnp.arange(8.0 * n).reshape(8, n), jax.NamedSharding(mesh, spec))
        for spec in specs
        for n in (4, 100_000)
    ]
    options = [("*", LeafOptions(dtype=np.float64))]
    with CheckpointManager(run, leaf_options=options, borrow=borrow) as manager:
        manager.save(0, tree).result()
        found = manager.restore(like=tree)
        assert_same(found, tree)
        assert all(a.sharding == b.sharding for a, b in zip(found, tree, strict=True))
        assert manager.restore(shardings="numpy")[0].dtype == np.float64


@pytest.mark.parametrize(
    ("tree", "dtype", "error", "why"),
    [
        ({"w": jnp.ones(3)}, "int32", InvalidOption, "float32, cannot be stored as int32"),
        ({"w": jnp.ones(3) * 1j}, "float32", InvalidOption, "complex64, cannot be stored"),
        ({"w": jax.random.key(0)}, "uint64", InvalidOption, "jax.random.key"),
        ({"w": b"bytes"}, "uint16", InvalidOption, "leaf of bytes"),
        ({"w": jnp.arange(1000)}, "int8", UnsupportedLeaf, "do not fit into int8"),
        ({"w": np.full((999, 999), 1e9)}, "float16", UnsupportedLeaf, "do not fit into float16"),
    ],
)
def test_what_cannot_be_cast_is_refused_with_its_path(
    tmp_path: Path, tree: object, dtype: str, error: type[CheckpointError], why: str
) -> None:
    """And nothing is left behind."""
    with pytest.raises(error, match=why) as caught:
        save(tmp_path, tree, ("w", LeafOptions(dtype=dtype)))
    assert caught.value.leaf == "w"
    assert list(tmp_path.iterdir()) == []


def test_chunks_are_of_the_shape_that_was_asked_for(tmp_path: Path) -> None:
    """Small as the array is; read chunks inside of them; any Zarr reader understands."""
    array = RANDOM.standard_normal((12, 8), np.float32)
    cases = {
        "w": LeafOptions(write_chunk=(4, 8)),
        "wr": LeafOptions(write_chunk=(6, 4), read_chunk=(3, 2)),
        "r": LeafOptions(read_chunk=(3, 2)),
        "z": LeafOptions(compression="zstd"),
        "wrz": LeafOptions(write_chunk=(6, 4), read_chunk=(3, 2), compression="zstd:9"),
    }
    tree = {name: array + n for n, name in enumerate(cases)}
    arrays = save(tmp_path, tree, *cases.items())
    assert {name: chunk(arrays / name) for name in cases} == {
        "w": [4, 8], "wr": [6, 4], "r": [12, 8], "z": [12, 8], "wrz": [6, 4],
    }  # fmt: skip
    inside = metadata(arrays / "wr")["codecs"][0]
    assert (inside["name"], inside["configuration"]["chunk_shape"]) == ("sharding_indexed", [3, 2])
    assert len(list((arrays / "w").glob("c.*"))) == 3
    assert_same(ckptmgr.load(tmp_path / "tree"), tree)
    assert_same(
        ckptmgr.load(tmp_path / "tree", like=jax.tree.map(jnp.asarray, tree)),
        jax.tree.map(jnp.asarray, tree),
    )
    for name, expected in tree.items():
        for found in read_by_others(arrays / name):
            assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "name", ["bool", "bfloat16", "int4", "float8_e4m3fn", "complex64", "uint64"]
)
def test_every_kind_of_dtype_goes_through_the_codecs(tmp_path: Path, name: str) -> None:
    """Zeros included: a chunk of them is there like any other."""
    array = (np.arange(64) % 2).reshape(8, 8).astype(ckptmgr.format.zarr.DTYPES[name])
    tree = [array, np.zeros_like(array)]
    arrays = save(tmp_path, tree, ("*", LeafOptions(read_chunk=(4, 2), compression="zstd")))
    assert len(list(arrays.glob("*/c.*"))) == 2
    assert_same(ckptmgr.load(tmp_path / "tree"), tree)


def test_compression_makes_what_repeats_small(tmp_path: Path) -> None:
    """And nothing else changes."""
    tree = {"w": np.zeros((1000, 1000))}
    sizes = []
    for compression in (None, "zstd", "zstd:22"):
        arrays = save(tmp_path, tree, ("w", LeafOptions(compression=compression)))
        sizes.append(sum(path.stat().st_size for path in (arrays / "w").glob("c.*")))
        assert_same(ckptmgr.load(tmp_path / "tree"), tree)
    assert sizes[0] > 8_000_000
    assert 10_000 > sizes[1] >= sizes[2]


def test_a_damaged_chunk_of_any_codec_is_an_error(tmp_path: Path) -> None:
    """Every byte of it changed, or cut."""
    options = LeafOptions(read_chunk=(2, 2), compression="zstd")
    arrays = save(tmp_path, {"w": RANDOM.standard_normal((4, 4))}, ("w", options))
    (file,) = (arrays / "w").glob("c.*")
    good = file.read_bytes()
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(DamagedStep) as caught:
            ckptmgr.load(tmp_path / "tree")
        assert (caught.value.leaf, caught.value.file) == ("w", str(file))
    for data in (b"", good[:-1], good * 999):
        file.write_bytes(data)
        with pytest.raises(DamagedStep):
            ckptmgr.load(tmp_path / "tree")


@pytest.mark.filterwarnings("ignore:chunk_bytes")
def test_chunk_bytes_gives_the_largest_chunk_under_it(tmp_path: Path) -> None:
    """That divides the shard; the longest axis that is sharded is cut first."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    sharded = jax.device_put(jnp.ones((16, 64)), jax.NamedSharding(mesh, jax.P("x", "y")))
    tree = {"a": jnp.ones((16, 16)), "b": jnp.ones((7, 3)), "c": sharded}
    arrays = save(tmp_path, tree, ("*", LeafOptions(chunk_bytes=128)))
    assert [chunk(arrays / name) for name in "abc"] == [[2, 16], [7, 3], [8, 4]]
    assert_same(ckptmgr.load(tmp_path / "tree"), tree)


def test_chunks_must_divide_the_shard_not_the_array(tmp_path: Path) -> None:
    """As no chunk may have two writers."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    array = jax.device_put(jnp.ones((12, 8)), jax.NamedSharding(mesh, jax.P("x", "y")))
    arrays = save(tmp_path, [array], ("0", LeafOptions(write_chunk=(3, 1), read_chunk=(1, 1))))
    assert chunk(arrays / "0") == [3, 1]
    assert_same(ckptmgr.load(tmp_path / "tree"), [array])
    with pytest.raises(InvalidOption, match=r"the shard \(6, 2\).*divisors are \[1, 2, 3, 6\]"):
        save(tmp_path, [array], ("0", LeafOptions(write_chunk=(4, 2))))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"write_chunk": (5, 8)}, r"must divide the shard \(12, 8\).*\[1, 2, 3, 4, 6, 12\]"),
        ({"write_chunk": (12,)}, "has 1 axes"),
        ({"read_chunk": (5, 8)}, "must divide the shard"),
        ({"write_chunk": (6, 8), "read_chunk": (4, 8)}, r"must divide write_chunk \(6, 8\)"),
        ({"chunk_bytes": 3}, "less than an item of 4 bytes"),
    ],
)
@pytest.mark.filterwarnings("ignore:chunk_bytes")
def test_chunks_that_do_not_fit_the_array_name_its_path(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    """And the divisors there are."""
    with pytest.raises(InvalidOption, match=why) as caught:
        save(tmp_path, {"a": {"w": jnp.ones((12, 8))}}, ("a", LeafOptions(**options)))
    assert caught.value.leaf == "a/w"


@pytest.mark.parametrize(
    "options",
    [
        {"chunk_bytes": 2_000_000, "write_chunk": (1,)},
        {"chunk_bytes": 2_000_000, "read_chunk": (1,)},
        {"chunk_bytes": 0},
        {"chunk_bytes": "much"},
        {"write_chunk": (0, 1)},
        {"write_chunk": 3},
        {"read_chunk": (1.5,)},
        {"compression": "gzip"},
        {"compression": "zstd:99"},
        {"compression": "zstd:fast"},
        {"dtype": "float33"},
        {"dtype": "S3"},
        {"dtype": ">f4"},
        {"own_array": "yes"},
        {"own_array": False, "compression": "zstd"},
        {"own_array": False, "write_chunk": (1,)},
    ],
    ids=str,
)
def test_impossible_options_are_refused_at_once(options: dict[str, Any]) -> None:
    """Before there is a tree."""
    with pytest.raises(InvalidOption):
        LeafOptions(**options)


def test_tiny_chunks_are_warned_of() -> None:
    """Under 1 MB."""
    with pytest.warns(UserWarning, match="1 MB"):
        LeafOptions(chunk_bytes=999_999)
    LeafOptions(chunk_bytes=1_000_000)


def test_an_array_of_its_own_or_in_the_pack_as_told(tmp_path: Path) -> None:
    """Whatever its size, up to what a pack takes."""
    tree = {"small": jnp.ones(3), "large": jnp.ones((1000, 1000))}
    own, packed = LeafOptions(own_array=True), LeafOptions(own_array=False)
    arrays = save(tmp_path, tree, ("small", own), ("large", packed))
    assert [path.name for path in arrays.iterdir() if path.is_dir()] == ["small"]
    assert_same(ckptmgr.load(tmp_path / "tree"), tree)
    with pytest.raises(InvalidOption, match="16 MiB") as caught:
        save(tmp_path, {"x": jnp.ones((5000, 1000))}, ("x", packed))
    assert caught.value.leaf == "x"


def test_the_first_glob_wins_and_one_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    """Leaves without arrays have nothing to choose."""
    tree = {"params": {"a": jnp.ones(3), "b": jnp.ones(3)}, "n": 1, "s": "text"}
    half, single = LeafOptions(dtype="float16"), LeafOptions(dtype="float32")
    save(tmp_path, tree, ("params/a", single), ("*", half))
    found = ckptmgr.load(tmp_path / "tree")
    assert (found["params"]["a"].dtype, found["params"]["b"].dtype) == (jnp.float32, jnp.float16)
    with pytest.raises(TreeMismatch, match=r"'param/\*' matches no leaf.*'params/a'"):
        save(tmp_path, tree, ("param/*", half))


def test_options_are_given_as_a_prefix_tree_too(tmp_path: Path) -> None:
    """What it does not name takes the default."""
    half = LeafOptions(dtype="float16")
    tree = Pair({"a": jnp.ones(3), "b": jnp.ones(3)}, jnp.ones(3))
    ckptmgr.save(tmp_path / "tree", tree, leaf_options={"left": {"a": half}, "right": None})
    found = ckptmgr.load(tmp_path / "tree")
    assert [leaf.dtype.name for leaf in jax.tree.leaves(found)] == ["float16", "float32", "float32"]
    with pytest.raises(TreeMismatch, match="names what the tree does not hold") as caught:
        ckptmgr.save(tmp_path / "other", tree, leaf_options={"left": {"z": half}})
    assert caught.value.leaf == "left/z"
    for wrong in ([("a", 1)], {"left": 3}, "zstd"):
        with pytest.raises(InvalidOption, match="leaf_options is"):
            CheckpointManager(tmp_path / "run", leaf_options=wrong)


def test_memory_stays_under_the_limit_while_chunks_are_encoded(run: Path) -> None:
    """A chunk, the codec's copy, and what comes out of it all count."""
    tree = {"w": RANDOM.standard_normal((40, 100_000))}
    options = [("w", LeafOptions(write_chunk=(1, 100_000), compression="zstd:1"))]
    with CheckpointManager(run, leaf_options=options, in_flight_bytes="4MiB") as manager:
        manager.save(0, tree).result()
        seen = manager.statistics()
        assert (seen.peak_bytes <= 4 << 20, seen.used_bytes) == (True, 0)
        assert_same(manager.restore(), tree)
    with CheckpointManager(run.parent / "one", leaf_options=options) as manager:
        manager.save(0, {"w": tree["w"][:1]}).result()
        assert manager.statistics().peak_bytes == 3 * 800_000


def test_what_is_compressed_needs_no_room_for_all_its_bytes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much it will need is not known."""
    options = [("z", LeafOptions(compression="zstd"))]
    with CheckpointManager(run, leaf_options=options) as manager:
        monkeypatch.setattr(LocalStorage, "free_bytes", lambda _: 1 << 20)
        manager.save(0, {"z": np.zeros((2000, 1000))}).result()
        with pytest.raises(ckptmgr.NoSpace):
            manager.save(1, {"z": np.zeros(3), "w": np.zeros((2000, 1000))}).result()


def test_a_load_counts_what_it_decodes_at_a_time_and_no_more(run: Path) -> None:
    """One chunk has one decoder, however many threads read."""
    options = [("w", LeafOptions(compression="zstd"))]
    with CheckpointManager(run, leaf_options=options) as manager:
        manager.save(0, {"w": np.zeros((1000, 1000))}).result()
    with CheckpointManager(run, read_only=True) as manager:
        manager.restore()
        assert manager.statistics().peak_bytes < 4.2 * 8_000_000


def test_chunks_that_come_out_tiny_are_refused(tmp_path: Path) -> None:
    """A prime edge would fall into single items, a file each."""
    with pytest.raises(InvalidOption, match="has 4 bytes, a file each"):
        save(tmp_path, [jnp.ones(1_000_003)], ("*", LeafOptions(chunk_bytes="1MiB")))
