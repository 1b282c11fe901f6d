"""`verify`: every byte of a step read and checked, or of all of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import anyio

from ckptmgr.cli import text
from ckptmgr.cli.contents import place
from ckptmgr.cli.runs import look
from ckptmgr.errors import InvalidOption, NoSuchStep, StepDeleted
from ckptmgr.format.step import COMMIT_RECORD, step_name, step_number
from ckptmgr.future import Progress
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline.verify import Problem, VerifyReport, verify
from ckptmgr.storage.base import Storage
from ckptmgr.units import count, size

LIMIT = 1 << 30  # bytes that are read at a time


def check(url: str, step: str, *, every: bool, json: bool) -> bool:
    """Verify a step or all of them, the newest first; whether all are whole."""
    if every and step != "newest":
        raise InvalidOption("give a step, or --all, not both")
    if every:
        catalog = (found := look(url)).catalog
        storage = found.storage
        names = [step_name(s) for s in sorted({*catalog.steps, *catalog.damaged}, reverse=True)]
    else:
        storage, name = place(url, step)
        names = [name]
    reports = []
    for name in names:
        report = _report(storage, name)
        if report is None and every:
            continue  # deleted meanwhile
        if report is None:
            raise NoSuchStep("it was deleted", file=f"{storage.root}/{name}")
        reports.append((name, report))
        if not json:
            text.say(_lines(name, report))
    if json:
        text.say_json(
            [{"name": name, "ok": report.ok, **_told(report)} for name, report in reports]
        )
    elif not names:
        text.say("no step is committed yet")
    return all(report.ok for _, report in reports)


def _report(storage: Storage, name: str) -> VerifyReport | None:
    """What is wrong with a step; None where it has been deleted."""
    step = step_number(name)
    try:
        with bar(f"verifying {name}") as tell, storage.reading(name):
            return anyio.run(verify, storage, name, ByteLimiter(LIMIT), step, tell)
    except StepDeleted as error:
        if not storage.taken(name):
            return None
        missing = f"{storage.root}/{name}/{COMMIT_RECORD}"
        return VerifyReport(step, 0, 0, (Problem(None, error.file or missing, "is missing"),))


def whole(storage: Storage, name: str) -> bool:
    """Whether a step is what was saved, whatever was noted of it since."""
    report = _report(storage, name)
    return report is not None and report.whole


def _told(report: VerifyReport) -> dict[str, object]:
    return {"files": report.files, "nbytes": report.nbytes, "problems": report.problems}


def _lines(name: str, report: VerifyReport) -> Iterator[str]:
    if report.ok:
        yield f"{name}: ok, {count(report.files, 'file')}, {size(report.nbytes)}"
        return
    wrong = f", {len(report.problems)} of {count(report.files, 'file')}" if report.files else ""
    yield f"{name}: DAMAGED{wrong}"
    for problem in report.problems:
        leaf = f"leaf {problem.leaf}, " if problem.leaf else ""
        yield f"  {leaf}{problem.file}: {problem.what}"


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415  # where nobody looks it is not needed
    from rich.progress import BarColumn, DownloadColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done: bars.update(task, completed=done.bytes_done, total=done.bytes_total)
