"""Object stores under many: writers that compete, replies that are lost, processes that are killed.

`make test-stores` runs all of it; `make test` a part.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ckptmgr import CheckpointManager
from ckptmgr.storage.cloud import CloudStorage
from ckptmgr.storage.url import storage_of
from tests.storage.proxy import Asked, before
from tests.storage.servers import Store

FULL = os.environ.get("CKPTMGR_STORES") == "all"
PROCESSES, TURNS = (8, 25) if FULL else (4, 3)
COMMITS = 200 if FULL else 12
KILLS = 200 if FULL else 4
_LOST = 0.2
_ROOT = Path(__file__).parents[2]

COMPETITOR = """
import sys
import numpy as np
from ckptmgr import CheckpointManager, DirectoryLocked, ObjectStore
url, endpoint, name, turns = sys.argv[1:]
options = ObjectStore(endpoint=endpoint, region="us-east-1", lease_seconds=3.0)
done = 0
while done < int(turns):
    try:
        manager = CheckpointManager(url, storage=options)
    except DirectoryLocked:
        continue
    with manager:
        step = 1 + max(manager.all_steps(), default=-1)
        mine = float(int(name) * 1000 + done)
        manager.save(step, {"a": np.full(200_000, mine), "b": mine}).result()
        print(step, mine, flush=True)
    done += 1
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)


def test_of_many_writers_one_has_a_step_and_readers_see_whole_ones(s3: Store) -> None:
    """Each opens, saves and closes again and again; what each was told is what is there."""
    looked, said = 0, list[str]()
    with contextlib.ExitStack() as stack:
        everyone = [
            stack.enter_context(start(COMPETITOR, s3.url, s3.endpoint, str(number), str(TURNS)))
            for number in range(PROCESSES)
        ]
        while any(process.poll() is None for process in everyone):
            with CheckpointManager(s3.url, storage=s3.options, read_only=True) as reader:
                for step in reader.all_steps()[-3:]:
                    tree = reader.restore(step)
                    assert (tree["a"] == tree["b"]).all()
                    looked += 1
        for process in everyone:
            assert process.stdout is not None
            assert process.wait() == 0
            said += process.stdout.read().splitlines()
    told = {int(line.split()[0]): float(line.split()[1]) for line in said}
    assert len(told) == len(said)
    assert looked
    assert sorted(told) == list(range(PROCESSES * TURNS))
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        assert manager.all_steps() == sorted(told)
        for step, mine in told.items():
            assert manager.restore(step)["b"] == mine


def test_replies_that_are_lost_are_no_failures_and_no_duplicates(s3: Store) -> None:
    """One put in five is answered by nothing."""
    chance = random.Random(0)
    lost = 0

    def fault(asked: Asked) -> str | None:
        nonlocal lost
        drop = asked.kind == "put" and chance.random() < _LOST
        lost += drop
        return "lost" if drop else None

    with before(s3.endpoint) as (proxy, endpoint):
        proxy.fault = fault
        options = s3.of(endpoint=endpoint, retries=12, lease_seconds=60.0)
        with CheckpointManager(s3.url, storage=options) as manager:
            for step in range(COMMITS):
                manager.save(step, {"a": np.full(1000, float(step))}).result()
            assert manager.all_steps() == list(range(COMMITS))
            for step in range(COMMITS):
                assert manager.restore(step)["a"][0] == step
        proxy.fault = lambda _: None
    assert lost > COMMITS / 2
    store = storage_of(s3.url, s3.options)
    assert isinstance(store, CloudStorage)
    keys = store.objects.keys("step-")
    # Of each step its record, its manifest, its pack and the metadata of that; and no more.
    assert len(keys) == 4 * COMMITS


KILLED = """
import sys
import numpy as np
from ckptmgr import CheckpointManager, KeepLast, ObjectStore
options = ObjectStore(endpoint=sys.argv[2], region="us-east-1", lease_seconds=600.0)
with CheckpointManager(sys.argv[1], keep=KeepLast(3), storage=options) as manager:
    step = 1 + max(manager.all_steps(), default=-1)
    print("open", flush=True)
    while True:
        manager.save(step, {"a": np.full(300_000, float(step)), "b": step}).result()
        print(step, flush=True)
        step += 1
"""


def test_a_killed_writer_loses_no_step_that_it_was_told_of(s3: Store) -> None:
    """And the next one on its machine goes on at once, whatever its lease said."""
    chance = random.Random(0)
    newest = -1
    for _ in range(KILLS):
        with start(KILLED, s3.url, s3.endpoint) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
            time.sleep(chance.uniform(0.0, 0.4))  # when it is killed is what is to be random
            writer.send_signal(signal.SIGKILL)
            told = [int(line) for line in writer.stdout.read().split()]
        newest = max([newest, *told])
        with CheckpointManager(s3.url, storage=s3.options, read_only=True) as reader:
            there = reader.all_steps()
            assert not told or there[-1] >= newest
            assert {step for step in told[-2:] if step > there[-1] - 3} <= set(there)
            for step in there:
                assert reader.verify(step).ok
                tree = reader.restore(step)
                assert (tree["a"] == step).all()
    with CheckpointManager(s3.url, storage=s3.options) as manager:
        manager.save(newest + 10, {"a": np.zeros(3)}).result()
