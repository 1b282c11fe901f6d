"""`pin`, `unpin`, `annotate`, `rm` and `verify`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptmgr
from ckptmgr import CheckpointManager, KeepBest, KeepLast
from tests.cli.conftest import Shell, tree
from tests.trees import entries


def test_a_pin_is_seen_by_the_manager_that_writes(shell: Shell, trained: Path) -> None:
    """At its next pass; and so is its end."""
    with CheckpointManager(trained, keep=KeepLast(1)) as manager:
        assert shell("pin", trained, 300).out == "step 300 is pinned\n"
        manager.save(600, tree(600)).result()
        manager.wait()
        assert manager.all_steps() == [0, 300, 600]
        assert shell("unpin", trained, 300).code == 0
        assert shell("unpin", trained, 0).code == 0
        manager.save(700, tree(700)).result()
        manager.wait()
        assert manager.all_steps() == [700]
    assert shell("pin", trained, 300).code == 1


def test_annotations_are_what_rules_look_at(shell: Shell, trained: Path) -> None:
    """Metrics are numbers, metadata JSON or text."""
    told = shell(
        "annotate", trained, 300, "--metric", "score=0.5", "--metadata", "by=night shift",
        "--metadata", 'more={"a": [1, null]}',
    )  # fmt: skip
    assert told.out == "step 300: score=0.5 by=night shift more={'a': [1, None]}\n"
    with CheckpointManager(trained, keep=KeepBest("score", mode="max")) as manager:
        info = manager.info(300)
        assert info.metrics == {"loss": 1, "score": 0.5}
        assert info.metadata == {"by": "night shift", "more": {"a": [1, None]}}
        manager.save(600, tree(600)).result()
        manager.wait()
        assert manager.all_steps() == [0, 300, 600]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to say"),
        (("--metric", "score"), "NAME=VALUE"),
        (("--metric", "=3"), "NAME=VALUE"),
        (("--metric", "score=high"), "is a number"),
    ],
)
def test_what_cannot_be_said_is_wrong_usage(
    shell: Shell, trained: Path, arguments: tuple[str, ...], words: str
) -> None:
    """And nothing is said."""
    told = shell("annotate", trained, 300, *arguments)
    assert told.code == 2
    assert words in told.err


def test_steps_are_deleted_while_nobody_writes(shell: Shell, trained: Path) -> None:
    """Refused otherwise, for pinned ones, for such as are not there, and then none is deleted."""
    with CheckpointManager(trained):
        told = shell("rm", trained, 300)
        assert told.code == 1
        assert "another manager writes this directory (host " in told.err
    before = entries(trained)
    assert "not committed" in shell("rm", trained, 300, 7).err
    assert entries(trained) == before
    assert "unpin it first" in shell("rm", trained, 0).err
    assert shell("rm", trained, 300, 400).out == "300 is deleted\n400 is deleted\n"
    assert entries(trained) == ["step-00000000", "step-00000200", "step-00000500"]


def test_damaged_steps_and_those_set_aside_are_deleted(shell: Shell, trained: Path) -> None:
    """The latter by their names."""
    (trained / "step-00000500" / "checkpoint.json").write_bytes(b"{}")
    assert shell("rm", trained, 500).code == 0
    with CheckpointManager(trained) as manager:
        manager.rollback(300)
    (aside,) = (name for name in entries(trained) if name.startswith(".abandoned"))
    assert shell("rm", trained, aside).out == f"{aside} is deleted\n"
    assert entries(trained) == ["step-00000000", "step-00000200", "step-00000300"]
    assert shell("rm", trained, "../../etc").code == 2
    assert "a step is a number" in shell("rm", trained, "newest").err
    assert shell("rm", trained, 200, "step-00000200", 200).out == "200 is deleted\n"


def test_a_step_that_is_held_stays(shell: Shell, trained: Path) -> None:
    """By any process."""
    with CheckpointManager(trained, read_only=True) as reader, reader.hold(300):
        told = shell("rm", trained, 300)
    assert told.code == 1
    assert "step-00000300" in "".join(entries(trained))


def test_files_of_others_are_never_deleted(shell: Shell, trained: Path) -> None:
    """With a step either."""
    (trained / "step-00000300" / "precious.txt").write_text("x")
    told = shell("rm", trained, 300)
    assert told.code == 1
    assert "precious.txt" in told.err
    assert (trained / "step-00000300" / "precious.txt").exists()


def test_verify_reads_every_byte(shell: Shell, trained: Path) -> None:
    """Of one step, of all, or of the checkpoint at a path."""
    assert shell("verify", trained) == (0, "step-00000500: ok, 2 files, 723 kB\n", "")
    assert shell("verify", trained, 200).out.startswith("step-00000200: ok")
    assert [line[:17] for line in shell("verify", trained, "--all").out.splitlines()] == [
        f"step-{step:08d}: ok" for step in (500, 400, 300, 200, 0)
    ]
    ckptmgr.save(trained.parent / "alone", {"a": np.ones(3)})
    assert shell("verify", trained.parent / "alone").out.startswith("alone: ok")


def test_verify_names_the_leaf_and_the_file(shell: Shell, trained: Path) -> None:
    """And exits with 3."""
    pack = trained / "step-00000300" / "packs" / "0" / "c.0"
    data = bytearray(pack.read_bytes())
    data[100_000] ^= 1
    pack.write_bytes(data)
    told = shell("verify", trained, 300)
    assert told.code == 3
    first, second = told.out.splitlines()
    assert first == "step-00000300: DAMAGED, 1 of 2 files"
    assert second.startswith(f"  leaf params/one/kernel, {pack}: the bytes are not those")
    found = shell("verify", trained, "--all", "--json")
    assert found.code == 3
    assert [report["ok"] for report in found.json] == [True, True, False, True, True]
    assert found.json[2]["problems"][0]["leaf"] == "params/one/kernel"


def test_verify_all_tells_of_steps_that_cannot_be_opened(shell: Shell, trained: Path) -> None:
    """They are damaged, and the others are still checked."""
    (trained / "step-00000400" / "tree.json").unlink()
    told = shell("verify", trained, "--all")
    assert told.code == 3
    assert sum("ok" in line for line in told.out.splitlines()) == 4
    assert "DAMAGED" in told.out


def test_a_step_without_its_record_is_damaged_and_not_deleted(shell: Shell, trained: Path) -> None:
    """As `ls` has it; the others are checked all the same."""
    (trained / "step-00000400" / "checkpoint.json").unlink()
    told = shell("verify", trained, 400)
    assert told.code == 3
    assert "step-00000400: DAMAGED" in told.out
    told = shell("verify", trained, "--all")
    assert told.code == 3
    assert told.out.count(": ok, ") == 4
    assert "not both" in shell("verify", trained, 400, "--all").err


def test_a_run_without_steps_has_nothing_to_show_or_verify(shell: Shell, run: Path) -> None:
    """It is said as such."""
    with CheckpointManager(run):
        pass
    for command in ("show", "verify"):
        told = shell(command, run)
        assert told.code == 1
        assert "nothing has been committed yet" in told.err
    assert shell("verify", run, "--all") == (0, "no step is committed yet\n", "")
