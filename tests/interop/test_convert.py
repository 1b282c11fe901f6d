"""Checkpoints from one format into another, by the function and by the command."""

from __future__ import annotations

import itertools
import re
import threading
import zipfile
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy

import ckptmgr
from ckptmgr import (
    ByteLimiter,
    CheckpointError,
    CheckpointManager,
    DamagedStep,
    Encoded,
    Handler,
    InvalidOption,
    KeepLast,
    MemoryStorage,
    NoSuchStep,
    StepExists,
    StorageError,
    TreeMismatch,
    UnsupportedFormat,
    convert,
)
from ckptmgr.interop.own import OwnArray
from ckptmgr.interop.tensorstores import TensorStoreArray
from tests.cli.conftest import Shell, shell
from tests.interop.test_read import scalars, sharded, tree
from tests.trees import assert_same

__all__ = ["shell"]  # a fixture


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A run of Orbax with two steps."""
    with ocp.CheckpointManager(tmp_path / "theirs") as manager:
        for step in (1, 2):
            state = {**tree(), **scalars(), "step": step}
            manager.save(step, args=ocp.args.PyTreeSave(state))
    return tmp_path / "theirs"


def test_a_run_of_orbax_becomes_a_checkpoint_of_ours(theirs: Path, tmp_path: Path) -> None:
    """Bit for bit, class for class, with its shardings; verified like any other."""
    convert(theirs, tmp_path / "ours")
    want = {**tree(), **scalars(), "step": 2}
    found = ckptmgr.load(tmp_path / "ours")
    assert_same(found, want)
    assert found["params"]["w"].sharding == tree()["params"]["w"].sharding
    assert ckptmgr.verify(tmp_path / "ours").ok
    convert(theirs, tmp_path / "first", step=1)
    assert ckptmgr.load(tmp_path / "first")["step"] == 1


def test_parts_and_dtypes(theirs: Path, tmp_path: Path) -> None:
    """What is not selected is left out; floating arrays are cast, others are not."""
    convert(theirs, tmp_path / "ours", select=["params", "host"], dtype="bfloat16")
    found = ckptmgr.load(tmp_path / "ours")
    assert found["params"]["w"].dtype == jnp.bfloat16
    assert_same(found["host"], tree()["host"])
    assert found["zeros"] is None
    with pytest.raises(TreeMismatch, match="matches no leaf"):
        convert(theirs, tmp_path / "other", select="parms")
    with pytest.raises(InvalidOption, match="a floating one"):
        convert(theirs, tmp_path / "other", dtype="int8")
    with pytest.raises(InvalidOption, match="the formats that can be written"):
        convert(theirs, tmp_path / "other", to="pickle")
    assert not (tmp_path / "other").exists()


def test_into_safetensors_and_back(theirs: Path, tmp_path: Path) -> None:
    """Which its own library reads; and so do we."""
    path = tmp_path / "model.safetensors"
    convert(theirs, path, select="params", dtype="float32")
    found = safetensors.numpy.load_file(path)
    assert sorted(found) == ["params.b", "params.v", "params.w"]
    assert np.array_equal(found["params.w"], np.arange(64.0).reshape(8, 8))
    back = ckptmgr.load(path)
    assert_same(back["params"]["w"], np.asarray(tree()["params"]["w"]))
    convert(path, tmp_path / "ours")
    assert_same(ckptmgr.load(tmp_path / "ours"), back)


def test_into_npz_and_msgpack(tmp_path: Path) -> None:
    """Which numpy and flax read, without pickles."""
    state: dict[str, Any] = {"a": jnp.arange(6.0), "b": {"c": [np.int16(3), 0.5]}, "s": "text"}
    ckptmgr.save(tmp_path / "ours", state)
    convert(tmp_path / "ours", tmp_path / "state.npz")
    with np.load(tmp_path / "state.npz", allow_pickle=False) as found:
        assert sorted(found) == ["a", "b/c/0", "b/c/1", "s"]
        assert np.array_equal(found["a"], np.arange(6.0))
    convert(tmp_path / "ours", tmp_path / "state.msgpack")
    found = ckptmgr.msgpack.restore((tmp_path / "state.msgpack").read_bytes())
    assert found["b"]["c"]["1"] == 0.5
    assert_same(ckptmgr.load(tmp_path / "state.msgpack")["s"], "text")


def test_what_cannot_be_expressed_is_told_before_anything_is_written(tmp_path: Path) -> None:
    """All of it, by its paths."""
    ckptmgr.save(
        tmp_path / "ours",
        {
            "text": "x",
            "key": jax.random.key(0),
            "a.b": jnp.ones(1),
            "half": jnp.ones(2, "bfloat16"),
        },
    )
    with pytest.raises(UnsupportedFormat) as caught:
        convert(tmp_path / "ours", tmp_path / "m.safetensors")
    for words in ("'text': it is a str", "'key': it is a jax.random.key", "'a.b': its name"):
        assert words in str(caught.value)
    with pytest.raises(UnsupportedFormat, match="'half': numpy has no dtype bfloat16"):
        convert(tmp_path / "ours", tmp_path / "m.npz", select="half")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]
    convert(tmp_path / "ours", tmp_path / "m.npz", select="half", dtype="float32")


def test_nothing_is_left_where_it_fails(tmp_path: Path) -> None:
    """A chunk of the source that is not whole; a target that is there."""
    ckptmgr.save(tmp_path / "ours", {"a": jnp.arange(400_000.0), "b": jnp.ones(3)})
    chunk = next((tmp_path / "ours" / "arrays").rglob("c.*"))
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(data)
    for target in ("m.safetensors", "m.npz", "m.msgpack", "copy"):
        with pytest.raises(DamagedStep):
            convert(tmp_path / "ours", tmp_path / target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]
    (tmp_path / "m.npz").write_text("mine")
    with pytest.raises(StepExists, match="remove it first"):
        convert(tmp_path / "ours", tmp_path / "m.npz")
    with pytest.raises(NoSuchStep):
        convert(tmp_path / "absent", tmp_path / "other")


def test_it_goes_through_a_limit_that_is_smaller_than_the_tree(tmp_path: Path) -> None:
    """One array after the other, written while the next is read."""
    arrays = {f"a{n}": jnp.full(500_000, n, jnp.float32) for n in range(12)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", arrays)
    limit = ByteLimiter(10 << 20)
    convert(tmp_path / "theirs", tmp_path / "ours", in_flight_bytes=limit)
    assert_same(ckptmgr.load(tmp_path / "ours"), arrays)
    assert limit.statistics().used_bytes == 0
    assert 0 < limit.statistics().peak_bytes <= 10 << 20


def test_a_trainer_goes_on_from_a_run_of_orbax(tmp_path: Path) -> None:
    """Once; then from its own. What it wrote itself it never touches."""
    state = {"w": sharded(jnp.arange(8.0), "data"), "n": jnp.int32(3)}
    with ocp.CheckpointManager(tmp_path / "old") as manager:
        manager.save(40, args=ocp.args.StandardSave(state))
    before = sorted(path for path in (tmp_path / "old").rglob("*"))
    fresh = jax.tree.map(jnp.zeros_like, state)
    with CheckpointManager(tmp_path / "new", keep=KeepLast(1)) as trainer:
        step, found = trainer.resume(fresh, import_from=tmp_path / "old")
        assert step == 40
        assert_same(found, state)
        trainer.save(50, jax.tree.map(lambda x: x + 1, found)).result()
        step, found = trainer.resume(fresh, import_from=tmp_path / "old")
        assert (step, int(found["n"])) == (50, 4)
        with pytest.raises(NoSuchStep, match="no checkpoint of a format that is known"):
            CheckpointManager("memory", storage=MemoryStorage()).resume(
                fresh, import_from=tmp_path / "absent"
            )
    assert sorted(path for path in (tmp_path / "old").rglob("*")) == before
    with pytest.raises(StorageError, match="holds what orbax has written"):
        CheckpointManager(tmp_path / "old")


def test_the_command_converts_and_looks(theirs: Path, tmp_path: Path, shell: Shell) -> None:
    """`convert`, and `ls` and `show` of what others have written."""
    assert [row["step"] for row in shell("ls", theirs, "--json").json["steps"]] == [2, 1]
    assert "of orbax" in shell("ls", theirs).out
    told = shell("show", theirs, 1)
    assert re.search(r"float32\[8, 8\] +256 B +\(data, model\) of data=4 model=2", told.out)
    assert shell("show", theirs, 7).code == 1
    assert shell("show", theirs, "--json").json["writer"] == {"orbax": ""}
    target = tmp_path / "ours"
    told = shell("convert", theirs, target, "--select", "params", "--dtype", "bfloat16")
    assert (told.code, told.out) == (0, f"{target} is written\n")
    assert ckptmgr.load(target)["params"]["w"].dtype == jnp.bfloat16
    assert shell("convert", theirs, target).code == 1
    assert shell("convert", theirs, tmp_path / "x", "--to", "pickle").code == 2


def test_into_one_file_that_is_read_in_place(theirs: Path, tmp_path: Path, shell: Shell) -> None:
    """A zip of a checkpoint: loaded in parts, verified, shown; and never written to."""
    path = tmp_path / "state.zip"
    convert(theirs, path)
    want = {**tree(), **scalars(), "step": 2}
    assert_same(ckptmgr.load(path), want)
    assert_same(ckptmgr.load(path, select="params/b")["params"]["b"], want["params"]["b"])
    assert ckptmgr.load_structure(path)["params"]["w"].shape == (8, 8)
    assert ckptmgr.verify(path).ok
    assert shell("verify", path).out.startswith("state.zip: ok")
    assert "float32[8, 8]" in shell("show", path).out
    convert(path, tmp_path / "again")
    assert_same(ckptmgr.load(tmp_path / "again"), want)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "state.zip", "theirs"]
    with pytest.raises(CheckpointError):
        ckptmgr.save(path, {"a": 1}, overwrite=True)


def test_a_zip_that_is_not_ours_or_not_whole_is_an_error(theirs: Path, tmp_path: Path) -> None:
    """Compressed, cut, flipped, or of something else."""
    good = tmp_path / "good.zip"
    convert(theirs, good)
    data = good.read_bytes()
    with (
        zipfile.ZipFile(good) as source,
        zipfile.ZipFile(tmp_path / "small.zip", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    (tmp_path / "cut.zip").write_bytes(data[: len(data) // 2])
    flipped = bytearray(data)
    flipped[data.index(np.arange(64.0, dtype=np.float32).tobytes()[64:128])] ^= 1
    (tmp_path / "flipped.zip").write_bytes(flipped)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as target:
        target.writestr("readme", "x")
    for name, words in {
        "small": "compressed",
        "cut": "cannot be read",
        "flipped": "not the bytes saved|cannot be read",
        "other": "holds no checkpoint",
    }.items():
        with pytest.raises(CheckpointError, match=words):
            ckptmgr.load(tmp_path / f"{name}.zip")


def test_into_the_format_of_eformer_and_back(theirs: Path, tmp_path: Path) -> None:
    """An index and Zarr 2 arrays."""
    convert(theirs, tmp_path / "e", to="eformer", select=["params", "host"])
    found = ckptmgr.load(tmp_path / "e")
    assert_same(found["params"]["b"], tree()["params"]["b"])
    assert np.array_equal(found["params"]["w"], tree()["params"]["w"])
    with pytest.raises(UnsupportedFormat, match="'name': it is a str"):
        convert(theirs, tmp_path / "f", to="eformer")
    assert not (tmp_path / "f").exists()


class Pair:
    """A leaf that is two arrays."""


class Pairs(Handler):
    """Stores both."""

    name = "pair"
    types = (Pair,)

    def handles(self, leaf: object) -> bool:
        """Pairs."""
        return isinstance(leaf, Pair)

    def encode(self, leaf: object) -> Encoded:
        """Two arrays."""
        return Encoded(None, {"one": np.ones(2), "two": np.ones(3)})

    def decode(self, value: object, arrays: object) -> object:
        """One of them."""
        return Pair()


def test_what_cannot_be_carried_over_is_refused(tmp_path: Path) -> None:
    """Leaves of several arrays, and what each process had for itself; nothing is lost unseen."""
    ckptmgr.save(tmp_path / "ours", {"p": Pair(), "a": jnp.ones(2)}, handlers=[Pairs()])
    for target in ("copy", "copy.zip"):
        with pytest.raises(UnsupportedFormat, match="store several arrays"):
            convert(tmp_path / "ours", tmp_path / target)
    convert(tmp_path / "ours", tmp_path / "copy", select="a")
    golden = Path(__file__).parents[1] / "golden" / "format-1-processes"
    with pytest.raises(UnsupportedFormat, match="each process had for itself"):
        convert(golden, tmp_path / "other")


def test_flax_reads_the_state_of_an_optimizer(tmp_path: Path) -> None:
    """With its None and empty nodes."""
    params = {"w": jnp.ones(3), "b": None}
    state = {"params": params, "opt": optax.adam(1e-3).init({"w": jnp.ones(3)})}
    ckptmgr.save(tmp_path / "ours", flax.serialization.to_state_dict(state))
    convert(tmp_path / "ours", tmp_path / "state.msgpack")
    found = flax.serialization.from_bytes(state, (tmp_path / "state.msgpack").read_bytes())
    assert_same(jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, state))


def test_a_step_that_is_converted_is_kept_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the trainer's rules would delete it."""
    read, checked = OwnArray.read, threading.Event()
    with CheckpointManager(tmp_path / "run", keep=KeepLast(1)) as manager:
        manager.save(1, {"a": jnp.arange(3.0)}).result()

        def slow(self: OwnArray, part: Any) -> np.ndarray:
            manager.save(2, {"a": jnp.zeros(3)}).result()
            manager.wait()
            assert manager.all_steps() == [1, 2]
            checked.set()
            return read(self, part)

        monkeypatch.setattr(OwnArray, "read", slow)
        convert(tmp_path / "run", tmp_path / "copy")
        assert checked.is_set()
    assert_same(ckptmgr.load(tmp_path / "copy"), {"a": jnp.arange(3.0)})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "foo"}, "no dtype is called 'foo'"),
        ({"dtype": jnp.int8}, "a floating one"),
        ({"to": "npz", "target": "s3://bucket/x.npz"}, "written to files only"),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    """Before anything is read."""
    ckptmgr.save(tmp_path / "ours", {"a": jnp.ones(3)})
    target = options.pop("target", tmp_path / "copy")
    with pytest.raises(InvalidOption, match=words):
        convert(tmp_path / "ours", target, **options)


def test_a_conversion_that_is_interrupted_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has begun is finished, and nothing more is begun."""
    with ocp.StandardCheckpointer() as checkpointer:
        arrays = {f"a{n:02}": jnp.full(300_000, n, jnp.float32) for n in range(30)}
        checkpointer.save(tmp_path / "theirs", arrays)
    count = itertools.count()
    read = TensorStoreArray.read

    def interrupted(self: TensorStoreArray, part: Any) -> np.ndarray:
        if next(count) == 3:
            raise KeyboardInterrupt
        return read(self, part)

    monkeypatch.setattr(TensorStoreArray, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert next(count) < 15
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]
