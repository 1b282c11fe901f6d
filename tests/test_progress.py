"""`progress=True`: bars in a terminal, lines elsewhere, nothing in other processes."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptmgr import CheckpointManager, Coordinator, SaveFuture
from ckptmgr.distributed.memory import MemoryClient, MemoryStore
from ckptmgr.future import LoadFuture, Progress
from ckptmgr.progress import Lines, display, what
from ckptmgr.storage.local import LocalStorage

PROGRAM = """
import sys, threading
import numpy as np
import ckptmgr
from ckptmgr import progress
from ckptmgr.storage.attempt import LocalAttempt

shown, go = [], threading.Event()

def watched(kind):
    class Watched(kind):
        def show(self, futures):
            before = [future.progress for future in futures]
            super().show(futures)
            shown.extend((kind.__name__, progress.what(future)) for future in futures)
            if any(0 < done.bytes_done == done.bytes_total for done in before):
                go.set()
    return Watched

progress.Bars, progress.Lines = watched(progress.Bars), watched(progress.Lines)
put = LocalAttempt.put

def slow(self, path, parts):
    if path.endswith("zarr.json"):
        assert go.wait(60)
    put(self, path, parts)

LocalAttempt.put = slow
with ckptmgr.CheckpointManager(sys.argv[1], progress=True) as manager:
    manager.save(1, {"a": np.ones(3), "b": np.ones(1_000_000)}).result()
print(sorted(set(shown)))
"""


def dispatch(callbacks: Any) -> None:
    """Call them here."""
    callbacks()


def test_a_terminal_sees_bars(run: Path) -> None:
    """On stderr, and nothing of them is left at the end."""
    parent, child = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(run)],
        stdout=subprocess.PIPE,
        stderr=child,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(child)
        drawn = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:  # how a terminal ends on Linux
                break
            if not part:
                break
            drawn += part
        os.close(parent)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == "[('Bars', 'saving step 1')]\n"
    assert "saving step 1" in drawn.decode()
    assert "8.0/8.0 MB" in drawn.decode()
    assert drawn.rstrip().endswith(b"\r\x1b[2K\x1b[?25h")  # the line is cleared, the cursor back


def test_elsewhere_there_are_no_bars(run: Path) -> None:
    """Nor any control character."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run)], capture_output=True, text=True, check=True
    )
    assert told.stdout == "[('Lines', 'saving step 1')]\n"
    assert "\x1b" not in told.stderr


def test_lines_come_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of each save and load that takes longer, with its speed since the last one."""
    clock = [100.0]
    monkeypatch.setattr("ckptmgr.progress.time.monotonic", lambda: clock[0])
    save, load = SaveFuture(7, dispatch), LoadFuture(None, dispatch)
    lines = Lines()
    with caplog.at_level(logging.INFO, "absl"):
        for second in range(12):
            clock[0] = 100.0 + second
            save.progress = Progress(bytes_done=second * 10**6, bytes_total=20 * 10**6)
            lines.show([save] if second < 7 else [save, load])
        assert [record.getMessage() for record in caplog.records] == [
            "saving step 7: 25 % of 20 MB, 1.0 MB/s",
            "saving step 7: 50 % of 20 MB, 1.0 MB/s",
        ]
        clock[0] += 1
        lines.show([load])
        assert caplog.records[-1].getMessage() == "restoring: 100 % of 0 B, 0 B/s"
        lines.show([])
        lines.show([save])
        assert len(caplog.records) == 3


def test_only_process_0_shows_anything(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have the same to tell."""
    made: list[Lines] = []

    def make() -> Lines:
        made.append(Lines())
        return made[-1]

    monkeypatch.setattr("ckptmgr.manager.display", make)
    store = MemoryStore()
    for index in (0, 1):
        coordinator = Coordinator(client=MemoryClient(store, index, 2))
        CheckpointManager(run, read_only=True, progress=True, coordinator=coordinator).close()
        assert len(made) == 1
    CheckpointManager(run, read_only=True).close()
    assert len(made) == 1


def test_a_restore_is_shown_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a manager that only reads."""
    shown: list[str] = []
    seen = threading.Event()
    read_into = LocalStorage.read_into

    class Shown(Lines):
        """Remembers."""

        def show(self, futures: Any) -> None:
            shown.extend(map(what, futures))
            if futures:
                seen.set()

    def waiting(self: LocalStorage, *arguments: Any, **options: Any) -> None:
        assert seen.wait(60)
        read_into(self, *arguments, **options)

    with CheckpointManager(run) as manager:
        manager.save(3, {"a": np.ones(3)}).result()
    monkeypatch.setattr("ckptmgr.manager.display", Shown)
    monkeypatch.setattr(LocalStorage, "read_into", waiting)
    with CheckpointManager(run, read_only=True, progress=True) as reader:
        reader.restore()
    assert set(shown) == {"restoring step 3"}


def test_without_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert isinstance(display(), Lines)
