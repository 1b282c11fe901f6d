"""Saved with any sharding, restored with any other."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import ckptmgr
from ckptmgr import CheckpointManager, InvalidOption, TreeMismatch
from ckptmgr.storage.local import LocalStorage
from tests.trees import assert_same

P = PartitionSpec


def mesh(x: int, y: int) -> Mesh:
    """A mesh of x times y devices."""
    return jax.make_mesh((x, y), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


MESHES = [mesh(2, 4), mesh(4, 2), mesh(8, 1)]
SPECS = [P("x", "y"), P("x"), P(None, "y"), P(("x", "y")), P(), P("y", "x")]
TWELVE = [
    *(NamedSharding(MESHES[0], spec) for spec in SPECS),
    *(NamedSharding(MESHES[1], spec) for spec in SPECS[:4]),
    NamedSharding(MESHES[2], P("x")),
    SingleDeviceSharding(jax.devices()[5]),
]
SHAPES = [(16, 64), (24, 40)]


def same(found: jax.Array, expected: np.ndarray, place: jax.sharding.Sharding) -> None:
    """Bits and sharding."""
    assert found.dtype == expected.dtype
    assert np.asarray(found).tobytes() == expected.tobytes()
    assert found.sharding.is_equivalent_to(place, expected.ndim)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "own"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_twelve_shardings_to_twelve_others(
    run: Path, dtype: str, *, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, B2: with chunks that split the shards unevenly."""
    monkeypatch.setattr(ckptmgr.format.chunks.default_chunk, "__defaults__", (700,))
    values = [np.arange(np.prod(s)).reshape(s).astype(jnp.dtype(dtype)) for s in SHAPES]
    tree = [jax.device_put(values, source) for source in TWELVE]
    with CheckpointManager(run, pack_below="1MiB" if packed else 0) as manager:
        manager.save(0, tree).result()
        for target in TWELVE:
            like = jax.tree.map(
                lambda a, t=target: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=t), tree
            )
            for found in (manager.restore(like=like), manager.restore(shardings=target)):
                for arrays in found:
                    for array, expected in zip(arrays, values, strict=True):
                        same(array, expected, target)
        for arrays, source in zip(manager.restore(), TWELVE[:11], strict=False):
            for array, expected in zip(arrays, values, strict=True):
                same(array, expected, source)
        for arrays in manager.restore(shardings="numpy"):
            assert_same(arrays, values)


def test_uneven_chunks_of_large_shards_come_back(run: Path) -> None:
    """Shards of several chunks, the last of another length."""
    array = np.random.default_rng(0).random((2 * 3001, 999), np.float32)
    source = NamedSharding(MESHES[0], P("x"))
    with CheckpointManager(run) as manager:
        manager.save(0, [jax.device_put(array, source)]).result()
        for target in (
            source,
            NamedSharding(MESHES[0], P()),
            SingleDeviceSharding(jax.devices()[1]),
        ):
            same(manager.restore(shardings=target)[0], array, target)


def test_an_empty_array_replicated_over_eight_comes_back_empty_on_eight(tmp_path: Path) -> None:
    """B3."""
    place = NamedSharding(MESHES[0], P())
    ckptmgr.save(tmp_path / "tree", [jax.device_put(jnp.zeros((0,)), place)])
    (found,) = ckptmgr.load(tmp_path / "tree")
    assert (found.shape, len(found.devices())) == ((0,), 8)


@pytest.mark.parametrize(
    ("saved", "target"),
    [((8, 2), (12, 2)), ((16,), (8,)), ((4, 6), (8, 2)), ((0,), (8,)), ((8,), (0,)), ((8,), (8,))],
)
def test_resize_pads_with_zeros_and_cuts_at_the_end(
    tmp_path: Path, saved: tuple[int, ...], target: tuple[int, ...]
) -> None:
    """B4: on a mesh, on the host, and cast as well; without it an error."""
    array = np.arange(1, 1 + np.prod(saved), dtype=np.float32).reshape(saved)
    ckptmgr.save(tmp_path / "tree", {"a": array})
    expected = np.zeros(target, np.float32)
    both = tuple(slice(min(n, m)) for n, m in zip(saved, target, strict=True))
    expected[both] = array[both]
    place = NamedSharding(MESHES[1], P("x"))
    likes: list[Any] = [
        np.zeros(target, np.float32),
        jax.ShapeDtypeStruct(target, jnp.float32, sharding=place),
        jax.ShapeDtypeStruct(target, jnp.bfloat16),
    ]
    for like in likes:
        found = ckptmgr.load(tmp_path / "tree", like={"a": like}, resize=True)["a"]
        assert (found.shape, found.dtype) == (like.shape, like.dtype)
        assert np.array_equal(np.asarray(found, np.float32), expected)
    if saved != target:
        with pytest.raises(TreeMismatch, match=r"'a': saved float32.*resize=False"):
            ckptmgr.load(tmp_path / "tree", like={"a": likes[0]})


@pytest.mark.parametrize("shape", [(), (4,), (4, 1, 1)])
def test_another_rank_is_always_an_error(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """B4."""
    ckptmgr.save(tmp_path / "tree", [np.ones((4, 4))])
    with pytest.raises(TreeMismatch, match="resize=True"):
        ckptmgr.load(tmp_path / "tree", like=[np.zeros(shape)], resize=True)


def test_resize_needs_shapes(tmp_path: Path) -> None:
    """Of like."""
    ckptmgr.save(tmp_path / "tree", [np.ones(4)])
    with pytest.raises(InvalidOption, match="like="):
        ckptmgr.load(tmp_path / "tree", resize=True)


def test_casting_is_said(tmp_path: Path) -> None:
    """B5, B8: f32 to bf16 is allowed, f32 to i32 is not; an int becomes a float of its value."""
    ckptmgr.save(tmp_path / "tree", {"w": jnp.full(4, 1.5), "n": 4})
    like = {"w": jnp.zeros(4, jnp.bfloat16), "n": jnp.float32(0)}
    found = ckptmgr.load(tmp_path / "tree", like=like)
    assert (found["w"].dtype, float(found["n"]), found["n"].dtype) == (jnp.bfloat16, 4, jnp.float32)
    with pytest.raises(TreeMismatch, match="'w': saved float32"):
        ckptmgr.load(tmp_path / "tree", like={"w": jnp.zeros(4, jnp.int32), "n": 0})


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fewer_devices_than_saved_are_enough_without_like(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B6: what does not fit goes to the default device."""
    array = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    wide, narrow = (
        NamedSharding(m, P("x", "y")) for m in (MESHES[0], jax.make_mesh((1, 2), ("x", "y")))
    )
    ckptmgr.save(tmp_path / "tree", [jax.device_put(array, wide), jax.device_put(array, narrow)])
    devices = jax.devices()[:count]
    monkeypatch.setattr(jax, "devices", lambda *_: devices)
    found = ckptmgr.load(tmp_path / "tree")
    assert [np.array_equal(one, array) for one in found] == [True, True]
    assert [len(one.devices()) for one in found] == [1, min(count, 2)]


class Counting(LocalStorage):
    """Counts the bytes of data files that are read."""

    read_bytes = 0

    def read_into(self, key: str, buffer: memoryview, **how: Any) -> None:
        """Counted."""
        self.read_bytes += len(buffer)
        super().read_into(key, buffer, **how)


def test_a_replicated_array_is_read_once(run: Path) -> None:
    """B7: 32 MiB over four devices, which share the memory that was read into."""
    array, place = np.random.default_rng(0).random(4 << 20), NamedSharding(mesh(2, 2), P())
    storage = Counting(str(run))
    with jax.enable_x64(True), CheckpointManager(run, storage=storage) as manager:
        manager.save(0, [jax.device_put(array, place)]).result()
        (found,) = manager.restore()
        assert storage.read_bytes == 32 << 20
        assert manager.statistics().peak_bytes <= 48 << 20
        views = {shard.data.unsafe_buffer_pointer() for shard in found.addressable_shards}
    assert len(views) == 1
    assert np.array_equal(found, array)


def test_shardings_are_given_in_many_ways(tmp_path: Path) -> None:
    """B9: a prefix tree, a dict by key path, rules; with PartitionSpecs on a mesh."""
    tree = {"layer": {"kernel": jnp.ones((8, 8)), "bias": jnp.ones(8)}, "step": 3}
    ckptmgr.save(tmp_path / "tree", tree)
    m = MESHES[0]
    kernel, bias = NamedSharding(m, P("x", "y")), NamedSharding(m, P("y"))
    ways: list[dict[str, Any]] = [
        {"shardings": {"layer": {"kernel": kernel, "bias": bias}, "step": None}},
        {"shardings": {"layer": {"kernel": P("x", "y"), "bias": P("y")}}, "mesh": m},
        {"shardings": {"layer/kernel": kernel, "layer/bias": bias}},
        {"shardings": [("bias$", bias), ("layer/.*", kernel)]},
        {"shardings": [("kernel", P("x", "y")), (".*", P("y"))], "mesh": m},
    ]
    for way in ways:
        for like in (None, tree):
            found = ckptmgr.load(tmp_path / "tree", like, **way)
            assert found["layer"]["kernel"].sharding.is_equivalent_to(kernel, 2)
            assert found["layer"]["bias"].sharding.is_equivalent_to(bias, 1)
            assert found["step"] == 3
    found = ckptmgr.load(tmp_path / "tree", shardings={"layer/bias": bias})
    assert len(found["layer"]["kernel"].devices()) == 1
    everywhere = ckptmgr.load(tmp_path / "tree", shardings=P(), mesh=m)
    assert len(everywhere["layer"]["bias"].devices()) == 8


def test_a_mesh_alone_takes_the_saved_specs(tmp_path: Path) -> None:
    """Of another size, with the same axis names."""
    array = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    ckptmgr.save(tmp_path / "tree", [jax.device_put(array, NamedSharding(MESHES[0], P("x", "y")))])
    for m in (MESHES[1], MESHES[2], mesh(2, 1)):
        same(ckptmgr.load(tmp_path / "tree", mesh=m)[0], array, NamedSharding(m, P("x", "y")))
    with pytest.raises(
        TreeMismatch, match=r"(?s)'0': saved float32.*mesh \{'x': 2, 'y': 4\}.*asked"
    ):
        ckptmgr.load(tmp_path / "tree", mesh=jax.make_mesh((8,), ("data",)))


@pytest.mark.parametrize(
    ("how", "error", "why"),
    [
        ({"shardings": [("w", P("x"))]}, InvalidOption, "give the mesh"),
        ({"shardings": [("w", P("z"))], "mesh": MESHES[0]}, InvalidOption, "does not fit the mesh"),
        ({"shardings": [("(", P("x"))], "mesh": MESHES[0]}, InvalidOption, "no regular expression"),
        ({"shardings": [("w", 3)]}, InvalidOption, "not 3"),
        ({"shardings": [("w", P("x")), 3], "mesh": MESHES[0]}, InvalidOption, "not 3 among rules"),
        ({"shardings": {"a/w": 3}}, InvalidOption, "not 3"),
        ({"mesh": "x"}, InvalidOption, "mesh is a"),
        ({"shardings": [("w", P("x"))], "mesh": MESHES[0]}, TreeMismatch, "'a/b': .*says nothing"),
        ({"shardings": [("w", None), ("b", None), ("z", None)]}, TreeMismatch, "'z'"),
        ({"shardings": {"a/z": P()}, "mesh": MESHES[0]}, TreeMismatch, "does not hold"),
        ({"shardings": P("x", "y", None), "mesh": MESHES[0]}, TreeMismatch, "'a/w': .*cannot be"),
        ({"shardings": P("x"), "mesh": MESHES[2]}, TreeMismatch, "'a/b': .*8 devices"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_had_is_one_error(
    tmp_path: Path, how: dict[str, Any], error: type[Exception], why: str
) -> None:
    """That says what was saved and what there is."""
    ckptmgr.save(tmp_path / "tree", {"a": {"w": jnp.ones((8, 8)), "b": jnp.ones(6)}, "n": 1})
    with pytest.raises(error, match=why):
        ckptmgr.load(tmp_path / "tree", **how)


def test_other_sharding_classes_are_saved_by_their_shards(tmp_path: Path) -> None:
    """And restored as the caller says, else on the default device."""
    array = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    private = pytest.importorskip("jax._src.sharding_impls")  # jax shows no other class any more
    source = private.GSPMDSharding(
        tuple(jax.devices()), NamedSharding(MESHES[2], P("x"))._to_xla_hlo_sharding(2)
    )
    ckptmgr.save(tmp_path / "tree", [jax.device_put(array, source)])
    (found,) = ckptmgr.load(tmp_path / "tree")
    assert (np.array_equal(found, array), len(found.devices())) == (True, 1)
    target = NamedSharding(MESHES[0], P("y"))
    same(ckptmgr.load(tmp_path / "tree", shardings=target)[0], array, target)


def test_every_pair_is_another() -> None:
    """The twelve are twelve."""
    assert len(TWELVE) == 12
    assert not any(a.is_equivalent_to(b, 2) for a, b in itertools.combinations(TWELVE[:4], 2))
