"""What Orbax, jax, eformer, safetensors and flax have written comes back bit for bit."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import safetensors.flax
import safetensors.numpy
import tensorstore as ts
from jax.experimental.array_serialization import pytree_serialization
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ckptmgr
from ckptmgr import CheckpointError, DamagedStep, NoSuchStep, TreeMismatch, UnsupportedFormat
from ckptmgr.format.zarr import DTYPES
from ckptmgr.interop import eformer
from ckptmgr.interop.opening import open_foreign
from ckptmgr.interop.recognise import EFORMER_INDEX
from tests.trees import assert_same

COMMON = (
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
# All that TensorStore's zarr drivers, and so Orbax and jax, can store; and with jax_enable_x64.
NUMBERS = (
    *COMMON,
    *("complex64", "int4", "int2", "float4_e2m1fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "float8_e3m4", "float8_e8m0fnu"),
)
WIDE = ("int64", "uint64", "float64", "complex128")
ORBAX: dict[str, dict[str, bool]] = {
    "ocdbt": {},
    "zarr2": {"use_ocdbt": False},
    "ocdbt, zarr3": {"use_zarr3": True},
    "zarr3": {"use_ocdbt": False, "use_zarr3": True},
}


def mesh() -> Mesh:
    """Eight devices on two axes."""
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def sharded(array: Any, *spec: str | None) -> jax.Array:
    """An array on the mesh."""
    found: jax.Array = jax.device_put(array, NamedSharding(mesh(), PartitionSpec(*spec)))
    return found


def numbers(names: tuple[str, ...] = NUMBERS) -> dict[str, jax.Array]:
    """An array of each dtype, with all kinds of bits."""
    bits = np.random.default_rng(0).integers(0, 2, 64, np.uint8)
    found = {}
    for name in names:
        dtype = DTYPES[name]
        found[name] = jnp.asarray(np.resize(bits, 6 * dtype.itemsize).view(dtype).reshape(2, 3))
    return found


def tree() -> dict[str, Any]:
    """A state as trainers have it."""
    return {
        "params": {
            "w": sharded(jnp.arange(64.0).reshape(8, 8), "data", "model"),
            "v": sharded(jnp.arange(32.0).reshape(4, 8), None, "data"),
            "b": jnp.ones(3, jnp.bfloat16),
        },
        "numbers": numbers(),
        "zeros": jnp.zeros((5, 7)),
        "list": [jnp.ones(2), {"x": jnp.float32(3)}],
        "none": None,
        "empty": {},
        "host": np.arange(4),
    }


def scalars() -> dict[str, Any]:
    """What Orbax takes besides."""
    return {"step": 7, "rate": 0.5, "name": "gpt", "text": "é"}


@pytest.mark.parametrize("kind", ORBAX)
def test_trees_of_orbax(tmp_path: Path, kind: str) -> None:
    """In each of its layouts, with shardings, numbers and texts."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**ORBAX[kind])) as checkpointer:
        checkpointer.save(tmp_path / "theirs", {**tree(), **scalars()})
    found = ckptmgr.load(tmp_path / "theirs")
    assert_same(found, {**tree(), **scalars()})
    assert found["params"]["w"].sharding == tree()["params"]["w"].sharding
    structure = ckptmgr.load_structure(tmp_path / "theirs")
    assert structure["params"]["w"].shape == (8, 8)


@pytest.mark.parametrize("kind", [*ORBAX, "jax"])
def test_numbers_of_64_bits(tmp_path: Path, kind: str) -> None:
    """With jax_enable_x64; without it they are read onto the host."""
    with jax.enable_x64(True):
        saved = numbers(WIDE)
        if kind == "jax":
            pytree_serialization.save(saved, tmp_path / "theirs")
        else:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**ORBAX[kind])) as checkpointer:
                checkpointer.save(tmp_path / "theirs", saved)
        assert_same(ckptmgr.load(tmp_path / "theirs"), saved)
    host = ckptmgr.load(tmp_path / "theirs", shardings="numpy")
    assert {name: array.tobytes() for name, array in host.items()} == {
        name: np.asarray(array).tobytes() for name, array in saved.items()
    }


def test_runs_of_orbax(tmp_path: Path) -> None:
    """The newest step, or one of them; those that are not committed are none."""
    options = ocp.CheckpointManagerOptions(step_prefix="ckpt", best_fn=lambda m: m["loss"])
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        for step in (1, 2, 3):
            state = {"w": jnp.full(3, step), "step": step}
            manager.save(step, args=ocp.args.StandardSave(state), metrics={"loss": 1.0 / step})
    assert_same(ckptmgr.load(tmp_path / "run"), {"w": jnp.full(3, 3), "step": 3})
    opened = open_foreign(str(tmp_path / "run"), 2)
    assert (opened.step, opened.metrics) == (2, {"loss": 0.5})
    (tmp_path / "run" / "ckpt_4.orbax-checkpoint-tmp-1").mkdir()
    (tmp_path / "run" / "ckpt_5").mkdir()
    assert_same(ckptmgr.load(tmp_path / "run")["step"], 3)
    with pytest.raises(NoSuchStep, match=r"there are the steps \[1, 2, 3\]"):
        open_foreign(str(tmp_path / "run"), 5)


def test_items_of_orbax(tmp_path: Path) -> None:
    """Trees, JSON, arrays and keys under their names."""
    key = jax.random.key(3)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(
            5,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave({"w": jnp.ones(3)}),
                data=ocp.args.JsonSave({"epoch": 3, "files": ["a", None]}),
                alone=ocp.args.ArraySave(jnp.arange(4.0)),
                key=ocp.args.JaxRandomKeySave(key),
            ),
        )
    found = ckptmgr.load(tmp_path / "run")
    assert_same(
        found,
        {
            "state": {"w": jnp.ones(3)},
            "data": {"epoch": 3, "files": ["a", None]},
            "alone": jnp.arange(4.0),
            "key": key,
        },
    )
    assert_same(ckptmgr.load(tmp_path / "run", select="data")["data"]["epoch"], 3)


def test_into_what_is_asked_for(tmp_path: Path) -> None:
    """Dtypes, shardings, parts and other structures, as of checkpoints of our own."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", {"a": jnp.arange(8.0), "b": [jnp.ones(2)]})
    like = {"a": jax.ShapeDtypeStruct((8,), jnp.bfloat16), "b": (jnp.zeros(2),)}
    found = ckptmgr.load(tmp_path / "theirs", like=like)
    assert_same(found, {"a": jnp.arange(8.0, dtype=jnp.bfloat16), "b": (jnp.ones(2),)})
    place = NamedSharding(mesh(), PartitionSpec("data"))
    found = ckptmgr.load(tmp_path / "theirs", shardings=[("^a$", place), (".*", place)], select="a")
    assert found["a"].sharding == place
    with pytest.raises(TreeMismatch, match="'c': asked for"):
        ckptmgr.load(tmp_path / "theirs", like={**like, "c": 1})
    host = ckptmgr.load(tmp_path / "theirs", shardings="numpy", in_flight_bytes="1MiB")
    assert isinstance(host["a"], np.ndarray)


@pytest.mark.parametrize("kind", ORBAX)
def test_a_chunk_that_is_missing_is_no_zeros(tmp_path: Path, kind: str) -> None:
    """Theirs reads zeros for it."""
    path = tmp_path / "theirs"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**ORBAX[kind])) as checkpointer:
        checkpointer.save(path, {"w": sharded(jnp.arange(1, 65.0).reshape(8, 8), "data", "model")})
    if "ocdbt" in kind:
        base = {"driver": "file", "path": f"{path}/"}
        store = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
        key = next(key for key in store.list().result() if key.endswith((b"1.1", b"1/1")))
        store.delete_range(ts.KvStore.KeyRange(key, key + b"\0")).result()
    else:
        next(p for p in path.rglob("*") if str(p).endswith(("1.1", "1/1"))).unlink()
    with pytest.raises(DamagedStep, match="missing") as caught:
        ckptmgr.load(path)
    assert caught.value.leaf == "w"


def test_trees_of_jax(tmp_path: Path) -> None:
    """With lists, tuples, None and all zeros, which it leaves out."""
    saved = {**tree(), "tuple": (jnp.ones(1), [jnp.zeros(3)]), "i4": jnp.ones(4, jnp.int4)}
    del saved["host"]
    pytree_serialization.save(saved, tmp_path / "theirs")
    assert_same(ckptmgr.load(tmp_path / "theirs"), saved)


def written_by_eformer(path: Path, trees: dict[str, dict[str, Any]], *, prefixes: bool) -> None:
    """As eformer writes: Zarr 2 arrays at dotted paths, and an index."""
    index: dict[str, list[dict[str, Any]]] = {}
    for name, flat in trees.items():
        for key, array in flat.items():
            spec = {
                "driver": "zarr",
                "kvstore": {"driver": "file", "path": f"{path}/{key.replace('.', '/')}/"},
            }
            ts.open(spec, create=True, dtype=str(array.dtype), shape=array.shape).result().write(
                np.asarray(array)
            ).result()
            entry = {"path": key, "shape": list(array.shape), "dtype": str(array.dtype)}
            index.setdefault(name, []).append(entry)
    body: dict[str, Any] = {"format": "tensorstore", "version": 2, "prefixes": index}
    if not prefixes:
        body = {"format": "tensorstore", "version": 1, "arrays": index[""]}
    (path / EFORMER_INDEX).write_text(json.dumps(body))


def test_the_index_of_eformer(tmp_path: Path) -> None:
    """Of one tree, or of several of which one is loaded alone; pickles are not touched."""
    params = {"layer_0.kernel": jnp.arange(6.0).reshape(2, 3), "layer_0.bias": jnp.ones(3)}
    written_by_eformer(tmp_path / "one", {"": params}, prefixes=False)
    nested = {"layer_0": {"kernel": params["layer_0.kernel"], "bias": params["layer_0.bias"]}}
    assert_same(ckptmgr.load(tmp_path / "one"), nested)
    written_by_eformer(
        tmp_path / "two", {"model": params, "opt": {"m.x": jnp.ones(2)}}, prefixes=True
    )
    (tmp_path / "two" / "structure.pkl").write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    assert_same(ckptmgr.load(tmp_path / "two"), {"model": nested, "opt": {"m": {"x": jnp.ones(2)}}})
    only = ckptmgr.load(tmp_path / "two", select="opt")
    assert only["model"] == {"layer_0": {"kernel": None, "bias": None}}
    with pytest.raises(NoSuchStep, match=r"no tree is called 'ema'; there are \['model', 'opt'\]"):
        eformer.open_at(str(tmp_path / "two"), "ema")


def test_files_of_safetensors(tmp_path: Path) -> None:
    """Names with dots are paths; every dtype it has."""
    flat = {f"layers.{n}.{name}": x for n in range(2) for name, x in numbers(COMMON).items()}
    safetensors.flax.save_file(flat, tmp_path / "m.safetensors", metadata={"format": "pt"})
    found = ckptmgr.load(tmp_path / "m.safetensors")
    assert sorted(found) == ["layers"]
    assert isinstance(found["layers"], list)
    for name, array in numbers(COMMON).items():
        assert found["layers"][1][name].dtype == array.dtype
        assert found["layers"][1][name].tobytes() == np.asarray(array).tobytes()
    assert open_foreign(str(tmp_path / "m.safetensors")).metadata == {"format": "pt"}


def test_files_of_flax(tmp_path: Path) -> None:
    """Its wire format, in a file; and the trees of Orbax that are one."""
    state = {"a": np.arange(6.0).reshape(2, 3), "b": {"0": np.float32(2), "n": None}, "s": "x"}
    data = flax.serialization.msgpack_serialize(state)
    (tmp_path / "state.msgpack").write_bytes(data)
    assert_same(ckptmgr.load(tmp_path / "state.msgpack"), state)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "checkpoint").write_bytes(data)
    assert_same(ckptmgr.load(tmp_path / "old"), state)


def test_what_is_no_checkpoint_is_said_to_be_so(tmp_path: Path) -> None:
    """A file of something else, a directory of nothing, and one of several formats."""
    (tmp_path / "file").write_text("hello")
    with pytest.raises(CheckpointError, match="a file, not a directory"):
        ckptmgr.load(tmp_path / "file")
    with pytest.raises(NoSuchStep, match="nothing has been committed"):
        ckptmgr.load(tmp_path)
    with pytest.raises(NoSuchStep, match="no checkpoint of a format that is known here"):
        open_foreign(str(tmp_path))
    ckptmgr.save(tmp_path / "ours", {"a": jnp.ones(3)})
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", {"a": jnp.ones(3)})
    shutil.copy(tmp_path / "theirs" / "_METADATA", tmp_path / "ours" / "_METADATA")
    with pytest.raises(UnsupportedFormat, match="of several formats: ckptmgr, orbax"):
        ckptmgr.load(tmp_path / "ours")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"tree_metadata": 3}',
        b'{"tree_metadata": {"x": {"key_metadata": [], "value_metadata": {"value_type": "x"}}}}',
        (
            b'{"tree_metadata": {"x": {"key_metadata": [{"key": "../../etc"}], '
            b'"value_metadata": {"value_type": "jax.Array"}}}}'
        ),
        b"[" * 100_000,
    ],
)
def test_hostile_metadata_of_orbax_are_one_error(tmp_path: Path, text: bytes) -> None:
    """That names the file."""
    (tmp_path / "_METADATA").write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        ckptmgr.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        b"{}x",
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1000000], "data_offsets": [0, 4000000]}}',
        b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}',
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
            b'"a.b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
        ),
    ],
)
def test_hostile_headers_of_safetensors_are_one_error(tmp_path: Path, header: bytes) -> None:
    """That names the file."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(CheckpointError) as caught:
        ckptmgr.load(path)
    assert str(path) in str(caught.value)


def test_the_order_of_keys_is_theirs(tmp_path: Path) -> None:
    """An OrderedDict of jax is numbered as it is ordered, a dict by its sorted keys."""
    saved = OrderedDict([("b", jnp.full(3, 2.0)), ("a", {"d": jnp.ones(1), "c": jnp.zeros(2)})])
    pytree_serialization.save(saved, tmp_path / "theirs")
    found = ckptmgr.load(tmp_path / "theirs")
    assert_same(found, saved)
    assert list(found) == ["b", "a"]


def test_keys_in_trees_of_orbax(tmp_path: Path) -> None:
    """A TrainState may hold one."""
    state = {"key": jax.random.key(3), "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", state)
    assert_same(ckptmgr.load(tmp_path / "theirs"), state)
    assert_same(ckptmgr.load(tmp_path / "theirs", like=state), state)


def test_no_item_of_orbax_is_dropped(tmp_path: Path) -> None:
    """Whatever its name begins with; one that is missing is said to be so."""
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        tree = ocp.args.StandardSave({"w": jnp.ones(2)})
        manager.save(1, args=ocp.args.Composite(_ema=tree, params=tree))
    assert sorted(ckptmgr.load(tmp_path / "run")) == ["_ema", "params"]
    shutil.rmtree(tmp_path / "run" / "1" / "_ema")
    with pytest.raises(DamagedStep, match="items of it are missing"):
        ckptmgr.load(tmp_path / "run")


def test_steps_of_orbax_that_are_trees(tmp_path: Path) -> None:
    """As flax leaves them; and nodes of optax without leaves."""
    state = {"w": jnp.ones(2), "opt": optax.adam(1e-3).init({"w": jnp.ones(2)})}
    for step in (2, 10):
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(tmp_path / "run" / f"checkpoint_{step}", state)
    assert open_foreign(str(tmp_path / "run")).step == 10
    found = ckptmgr.load(tmp_path / "run", like=state)
    assert_same(jax.tree.leaves(found), jax.tree.leaves(state))


def test_a_step_that_is_named_is_the_one_that_is_read(tmp_path: Path) -> None:
    """And the directory of one says which it is."""
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1000, args=ocp.args.StandardSave({"w": jnp.ones(2)}))
    alone = str(tmp_path / "run" / "1000")
    assert (open_foreign(alone).step, open_foreign(alone, 1000).step) == (1000, 1000)
    with pytest.raises(NoSuchStep, match="not of this step"):
        open_foreign(alone, 7)
    safetensors.numpy.save_file({"a": np.ones(1)}, tmp_path / "m.safetensors")
    with pytest.raises(NoSuchStep, match="it has no steps"):
        open_foreign(str(tmp_path / "m.safetensors"), 7)


def test_a_shape_that_no_memory_holds_is_an_error(tmp_path: Path) -> None:
    """TensorStore would end the process."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(tmp_path / "theirs", {"w": jnp.ones(4)})
    file = tmp_path / "theirs" / "w" / ".zarray"
    metadata = json.loads(file.read_text())
    for shape, chunks in (([1 << 50], [1 << 20]), ([4], [1 << 50])):
        file.write_text(json.dumps({**metadata, "shape": shape, "chunks": chunks}))
        with pytest.raises(CheckpointError, match=r"more than there is memory|cannot be"):
            ckptmgr.load(tmp_path / "theirs")


def test_bytes_and_odd_names_of_files(tmp_path: Path) -> None:
    """Bytes are bytes; what only looks like a number is a name."""
    (tmp_path / "m.msgpack").write_bytes(ckptmgr.msgpack.serialize({"b": b"abc", "n": 3}))
    assert_same(ckptmgr.load(tmp_path / "m.msgpack"), {"b": b"abc", "n": 3})
    names = {"a.00": np.ones(1), "a.01": np.ones(2), "b.\u00b2": np.ones(3), "c.0": np.ones(4)}
    safetensors.numpy.save_file(names, tmp_path / "m.safetensors")
    found = ckptmgr.load(tmp_path / "m.safetensors")
    assert [sorted(found["a"]), sorted(found["b"]), len(found["c"])] == [
        ["00", "01"],
        ["\u00b2"],
        1,
    ]


def test_a_run_of_ours_is_ours_whatever_lies_beside_its_steps(tmp_path: Path) -> None:
    """Such as what TensorFlow, or an old run, has left there."""
    run = tmp_path / "run"
    (run / "eval_5").mkdir(parents=True)
    (run / "eval_5" / "checkpoint").write_text('model_checkpoint_path: "x"')
    with ckptmgr.CheckpointManager(run) as manager:
        manager.save(1, {"a": 1}).result()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(run / "7", {"w": jnp.ones(1)})
    assert ckptmgr.load(run) == {"a": 1}
    with ckptmgr.CheckpointManager(run) as manager:
        assert manager.all_steps() == [1]
