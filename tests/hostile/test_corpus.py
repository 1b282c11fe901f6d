"""Every hostile input is one error of ours that names file and leaf; soon, and in little memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.corpus import CORPUS, prepare

SECONDS = 5.0
BYTES = 256_000_000


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest run."""
    directory = tmp_path_factory.mktemp("hostile")
    prepare(directory)
    return directory


@pytest.fixture(scope="module")
def victim() -> Iterator[subprocess.Popen[str]]:
    """What reads them, each in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def visited(victim: subprocess.Popen[str], run: Path) -> dict[str, Any]:
    """What it says of a run."""
    assert victim.stdin is not None
    assert victim.stdout is not None
    victim.stdin.write(f"{run}\n")
    victim.stdin.flush()
    found: dict[str, Any] = json.loads(victim.stdout.readline())
    return found


def test_the_honest_run_is_read_by_every_door(
    template: Path, tmp_path: Path, victim: subprocess.Popen[str]
) -> None:
    """So that what follows says something."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    for door, said in visited(victim, tmp_path / "run").items():
        assert said["error"] is None, (door, said)
        assert not said.get("problems")


@pytest.mark.parametrize("name", CORPUS)
def test_it_is_one_error_that_names_file_and_leaf(
    name: str, template: Path, tmp_path: Path, victim: subprocess.Popen[str]
) -> None:
    """By every door, without a signal; and the trainer goes on from the step before."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    hostile, run = CORPUS[name], tmp_path / "run"
    hostile.spoil(run / "step-00000002")
    outside = {path: path.read_bytes() for path in (tmp_path / "honest").rglob("*.json")}
    said = visited(victim, run)
    assert "died" not in said, said
    for door, heard in said.items():
        assert heard["error"] != "foreign", (door, heard["text"])
        assert heard["seconds"] < SECONDS, (door, heard)
        assert heard["bytes"] < BYTES, (door, heard)
        assert heard.get("text", "").replace("\n", "").isprintable()
    for door in hostile.doors:
        heard = said[door]
        assert heard["error"] or heard.get("problems"), (door, heard)
        files = [heard["file"]] if heard["error"] else [file for _, file, _ in heard["problems"]]
        names = hostile.file.split("|")
        assert any(name in (file or "") for file in files for name in names), (door, heard)
        leaves = [heard["leaf"]] if heard["error"] else [leaf for leaf, _, _ in heard["problems"]]
        listed = repr(hostile.leaf) in heard.get("text", "")  # where there are several
        assert hostile.leaf is None or hostile.leaf in leaves or listed, (door, heard)
    went_on = said["resume"]["error"]
    newer = said["restore"]["error"] == "UnsupportedFormat"  # no damage: it is not passed over
    assert went_on == ("UnsupportedFormat" if newer else None), said["resume"]
    for path, data in outside.items():
        assert path.read_bytes() == data
