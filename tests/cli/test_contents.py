"""`show` and `diff`: what a checkpoint holds, and what changed."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import ckptmgr
from ckptmgr import CheckpointManager, LeafOptions
from tests.cli.conftest import Shell


def body(out: str) -> list[str]:
    """The lines of the tree below the heading."""
    return out.partition("\n\n")[2].splitlines()


def test_a_step_is_shown_as_its_tree(shell: Shell, trained: Path) -> None:
    """With types, shapes and bytes, each level further in."""
    told = shell("show", trained, 200)
    assert told.code == 0
    assert [line.split() for line in body(told.out)] == [
        ["host", "int16[4]", "8", "B"],
        ["key", "jax.random.key", "threefry2x32", "8", "B"],
        ["name", "str", "'gpt'"],
        ["opt/", "1", "leaf", "20", "B"],
        ["0", "float32[5]", "20", "B"],
        ["params/", "4", "leaves", "722", "kB"],
        ["one/", "2", "leaves", "361", "kB"],
        ["bias", "float32[300]", "1.2", "kB"],
        ["kernel", "float32[300,", "300]", "360", "kB"],
        ["two/", "2", "leaves", "361", "kB"],
        ["bias", "float32[300]", "1.2", "kB"],
        ["kernel", "float32[300,", "300]", "360", "kB"],
        ["step", "int", "200"],
    ]
    assert body(told.out)[8].startswith("    kernel")
    heading = told.out.partition("\n\n")[0]
    for words in ("step      200", "722 kB in 9 leaves", "loss=0", "'by': 'me'", "ckptmgr 0"):
        assert words in heading


def test_the_newest_is_shown_where_no_step_is_named(shell: Shell, trained: Path) -> None:
    """And a single checkpoint by its path."""
    for arguments in ([trained], [trained, "newest"], [trained / "step-00000500"]):
        assert shell("show", *arguments).out.startswith("step      500")
    ckptmgr.save(trained.parent / "alone", {"a": np.ones(3)})
    assert body(shell("show", trained.parent / "alone").out) == ["a  float64[3]  24 B"]


def test_depth_and_match_show_less(shell: Shell, trained: Path) -> None:
    """Subtrees as one line each; leaves by globs of their paths."""
    lines = body(shell("show", trained, "--depth", 1).out)
    assert [line.split()[0] for line in lines] == ["host", "key", "name", "opt/", "params/", "step"]
    assert body(shell("show", trained, "--depth", 0).out) == []
    lines = body(shell("show", trained, "--match", "params/*/bias", "--match", "step").out)
    assert [line.split()[0] for line in lines] == [
        "params/",
        "one/",
        "bias",
        "two/",
        "bias",
        "step",
    ]
    told = shell("show", trained, "--match", "parms")
    assert (told.code, told.out) == (1, "")
    assert "matches no leaf" in told.err


def test_shardings_are_shown_by_axes(shell: Shell, run: Path) -> None:
    """Never by devices."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    array = jax.device_put(
        jnp.ones((8, 4)), NamedSharding(mesh, PartitionSpec(("data", "model"), None))
    )
    with CheckpointManager(run) as manager:
        manager.save(1, {"w": array}).result()
    assert body(shell("show", run).out) == [
        "w  float32[8, 4]  128 B  (data+model, None) of data=4 model=2"
    ]
    (leaf,) = shell("show", run, "--json").json["leaves"]
    assert leaf["arrays"][0]["sharding"] == {
        "axes": {"data": 4, "model": 2},
        "spec": [["data", "model"], None],
    }


def test_scripts_read_the_tree_as_json(shell: Shell, trained: Path) -> None:
    """Every leaf with its path."""
    told = shell("show", trained, "--json").json
    assert (told["info"]["step"], told["info"]["pinned"]) == (500, False)
    assert told["writer"]["jax"] == jax.__version__
    (kernel,) = (leaf for leaf in told["leaves"] if leaf["path"] == "params/one/kernel")
    assert (kernel["nbytes"], kernel["arrays"][0]["shape"]) == (360_000, [300, 300])


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        ("7", 1, "not committed; the newest that are: 0, 200, 300, 400, 500"),
        ("-1", 2, "No such option"),
        ("first", 2, "a step is a number"),
        ("1e3", 2, "a step is a number"),
        ("99999999999999999999999", 2, "at most"),
        ("1" * 5000, 2, "a step is a number"),
    ],
)
def test_a_step_that_is_not_there_is_said_to_be_so(
    shell: Shell, trained: Path, step: str, code: int, words: str
) -> None:
    """And what is no step at all is wrong usage."""
    told = shell("show", trained, step)
    assert (told.code, told.out) == (code, "")
    assert words in told.err


def test_steps_are_compared_by_their_digests(shell: Shell, trained: Path) -> None:
    """Exit code 3 where they differ, 0 where not."""
    told = shell("diff", trained, 400, 500)
    assert told.code == 3
    lines = [line.split() for line in told.out.splitlines()]
    assert lines[1:5] == [
        ["changed", "opt/0", "float32[5]"],
        ["changed", "params/one/kernel", "float32[300,", "300]"],
        ["changed", "params/two/kernel", "float32[300,", "300]"],
        ["changed", "step", "int", "400", "->", "int", "500"],
    ]
    assert told.out.splitlines()[-1] == "0 added, 0 removed, 4 changed, 5 equal"
    same = shell("diff", trained, 400, 400)
    assert (same.code, same.out) == (0, "0 added, 0 removed, 0 changed, 9 equal\n")


def test_leaves_come_go_and_change_their_kind(shell: Shell, run: Path) -> None:
    """Each is told apart."""
    with CheckpointManager(run) as manager:
        manager.save(1, {"a": jnp.ones(3), "b": 1, "c": np.ones(2)}).result()
        manager.save(2, {"a": jnp.ones(4), "c": jnp.ones(2), "d": 1.5}).result()
    changes = shell("diff", run, 1, 2, "--json").json["changes"]
    assert [(change["kind"], change["path"], change["what"]) for change in changes] == [
        ("changed", "a", "float32[3] -> float32[4]"),
        ("removed", "b", "int 1"),
        ("changed", "c", "float64[2] -> float32[2]"),
        ("added", "d", "float 1.5"),
    ]


def test_values_say_how_far_apart_arrays_are(shell: Shell, run: Path) -> None:
    """The largest and the mean difference; of every dtype of numbers, and nothing of texts."""
    first = {
        "big": np.zeros((1000, 500), np.float32),
        "half": np.arange(4, dtype=ml_dtypes.bfloat16),
        "int": np.array([1, 2], np.uint8),
        "complex": np.array([1j, 0]),
        "time": np.array(["2026-01-01"], "datetime64[D]"),
        "same": np.ones(3),
        "bytes": b"abc",
    }
    second = {
        **first,
        "big": np.full((1000, 500), 0.5, np.float32),
        "half": np.array([0, 1, 2, 7], ml_dtypes.bfloat16),
        "int": np.array([0, 2], np.uint8),
        "complex": np.array([0, 3 + 4j]),
        "time": np.array(["2026-01-02"], "datetime64[D]"),
        "bytes": b"abd",
    }
    with CheckpointManager(run, pack_below="1KiB") as manager:
        manager.save(1, first).result()
        manager.save(2, second).result()
    told = shell("diff", run, 1, 2, "--values", "--json").json
    found = {change["path"]: (change["largest"], change["mean"]) for change in told["changes"]}
    assert found == {
        "big": (0.5, 0.5),
        "half": (4, 1),
        "int": (1, 0.5),
        "complex": (5, 3),
        "time": (None, None),
        "bytes": (None, None),
    }
    assert "largest" in shell("diff", run, 1, 2, "--values").out


def test_other_chunks_are_no_other_values(shell: Shell, run: Path) -> None:
    """Where digests cannot be compared the bytes are."""
    tree = {"equal": np.arange(1000.0), "changed": np.arange(1000.0)}
    with CheckpointManager(run) as manager:
        manager.save(1, tree).result()
    options = [("*", LeafOptions(write_chunk=(250,)))]
    with CheckpointManager(run, leaf_options=options) as manager:
        manager.save(2, {**tree, "changed": np.arange(1000.0) + 1}).result()
    told = shell("diff", run, 1, 2, "--json").json
    assert [(change["kind"], change["path"]) for change in told["changes"]] == [
        ("changed", "changed")
    ]
    assert told["equal"] == 1


def test_arrays_of_several_boxes_are_put_together(shell: Shell, run: Path) -> None:
    """Small ones that lie in the pack in parts, too."""
    mesh = jax.make_mesh((8,), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    with CheckpointManager(run) as manager:
        for step in (1, 2):
            array = np.arange(16.0, dtype=np.float32)
            array[3] += step
            manager.save(step, {"w": jax.device_put(array, sharding)}).result()
    (change,) = shell("diff", run, 1, 2, "--values", "--json").json["changes"]
    assert (change["largest"], change["mean"]) == (1, 1 / 16)


def test_a_damaged_manifest_is_an_error(shell: Shell, trained: Path) -> None:
    """That names the file."""
    (trained / "step-00000500" / "tree.json").write_bytes(b"{}")
    told = shell("show", trained)
    assert (told.code, told.out) == (1, "")
    assert "tree.json" in told.err


def test_trees_of_odd_keys_are_shown(shell: Shell, run: Path) -> None:
    """Slashes and dots in keys, a leaf that is the whole tree, and none at all."""
    with CheckpointManager(run) as manager:
        manager.save(1, {"a/b": {"c.d": 1}, "é\n": 2}).result()
        manager.save(2, 7).result()
        manager.save(3, {}).result()
    assert [line.split()[0] for line in body(shell("show", run, 1).out)] == ["a~1b/", "c.d", "é\\n"]
    assert body(shell("show", run, 2).out) == ["(the leaf)  int 7"]
    assert shell("show", run, 3).code == 0


def test_what_is_no_finite_number_is_compared(shell: Shell, run: Path) -> None:
    """Equal ones are no difference; and neighbouring ints of 64 bits are one apart."""
    with CheckpointManager(run) as manager:
        big = np.array([2**62, 5], np.int64)
        odd = np.array([np.nan, np.inf, 1.0])
        manager.save(1, {"int": big, "odd": odd, "worse": odd}).result()
        later = {
            "int": big + np.array([1, 0]),
            "odd": odd + np.array([0, 0, 1]),
            "worse": np.array([0.0, 1.0, 1.0]),
        }
        manager.save(2, later).result()
    changes = shell("diff", run, 1, 2, "--values", "--json").json["changes"]
    found = {change["path"]: (change["largest"], change["mean"]) for change in changes}
    assert found == {"int": (1, 0.5), "odd": (1, pytest.approx(1 / 3)), "worse": ("inf", "inf")}
