"""Progress for people: bars in a terminal, a line in the log every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from absl import logging

from ckptmgr.future import CheckpointFuture, LoadFuture
from ckptmgr.reporter import Display
from ckptmgr.units import size

_LINE_SECONDS: Final = 5.0


def display() -> Display:
    """Bars where stderr is a terminal and rich is installed, lines elsewhere."""
    if sys.stderr.isatty():
        try:
            return Bars()
        except ImportError:
            logging.info("pip install 'ckptmgr[cli]' for bars instead of lines")
    return Lines()


class Bars:
    """A bar for each save and load that runs, gone when it has ended.

    Raises:
      ImportError: rich is not installed.
    """

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415  # of an extra
        from rich.progress import (  # noqa: PLC0415  # of an extra
            BarColumn,
            DownloadColumn,
            Progress,
            TaskID,
            TextColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # the trainer's streams are its own
            redirect_stderr=False,
        )
        self._tasks: dict[CheckpointFuture[Any], TaskID] = {}

    def show(self, futures: Sequence[CheckpointFuture[Any]]) -> None:
        """Draw the bars of these."""
        for gone in self._tasks.keys() - set(futures):
            self._progress.remove_task(self._tasks.pop(gone))
        for future in futures:
            done = future.progress
            if future not in self._tasks:
                self._tasks[future] = self._progress.add_task(what(future), total=None)
            self._progress.update(
                self._tasks[future], completed=done.bytes_done, total=done.bytes_total or None
            )
        if futures:
            self._progress.start()
            self._progress.refresh()
        else:
            self._progress.stop()


class Lines:
    """A line for each save and load that has run for some seconds, then every few."""

    def __init__(self) -> None:
        self._last: dict[CheckpointFuture[Any], tuple[float, int]] = {}

    def show(self, futures: Sequence[CheckpointFuture[Any]]) -> None:
        """Log what is due."""
        now = time.monotonic()
        self._last = {future: self._last.get(future, (now, 0)) for future in futures}
        for future, (since, before) in self._last.items():
            if now - since >= _LINE_SECONDS:
                done = future.progress
                speed = (done.bytes_done - before) / (now - since)
                logging.info(
                    "%s: %.0f %% of %s, %s/s",
                    what(future),
                    100 * done.fraction,
                    size(done.bytes_total),
                    size(speed),
                )
                self._last[future] = (now, done.bytes_done)


def what(future: CheckpointFuture[Any]) -> str:
    """What a future does, in a few words."""
    verb = "restoring" if isinstance(future, LoadFuture) else "saving"
    return f"{verb} step {future.step}" if future.step is not None else verb
