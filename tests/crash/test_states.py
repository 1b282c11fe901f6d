"""Every state that a power cut may leave of an operation is one that loses nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.crash.faults import OPERATIONS, check, prepared
from tests.crash.states import Recorder, Replay, written


@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_of_the_unsynced_is_lost(tmp_path: Path, operation: str, states: int) -> None:
    """At each moment of it, several mixes; what was acknowledged at the end is there."""
    before, work, found = tmp_path / "before", tmp_path / "work", tmp_path / "found"
    before.mkdir()
    prepared(before / "run")
    shutil.copytree(before, work)
    recorder = Recorder(work)
    with recorder.recording():
        OPERATIONS[operation](work / "run")
    length = len(recorder.operations)
    chance = random.Random(operation)
    for number in range(states):
        moment = number % (length + 1)
        replay = Replay(work, before, recorder.operations, moment)
        written(replay.state(chance), found)
        check(found / "run", acknowledged=moment == length, operation=operation)
    print(f"{operation}: {length} operations, {states} states")
