"""`watch`: what a manager in another process does, live, from the status that it writes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from ckptmgr.cli import text
from ckptmgr.cli.runs import lives, look, works
from ckptmgr.status import Status, Work, read_status
from ckptmgr.units import size, span

_LOOK_SECONDS: Final = 0.5


def watch(url: str, *, once: bool, json: bool) -> None:
    """Show it until Ctrl-C; with `once` as it is now."""
    storage = look(url).storage

    def read() -> Status | None:
        return read_status(storage)

    if sys.stdout.isatty() and not once and not json:
        _live(read)
    former: object = ()
    for status, speed in _statuses(read):
        now = (status, status and lives(status))
        if now != former:
            if json:
                text.say_json(status and {**as_dict(status), "bytes_per_second": speed})
            else:
                text.say(lines(status, speed, time.time()))
        if once:
            return
        former = now


def as_dict(status: Status) -> dict[str, object]:
    """A status as JSON has it."""
    found = {name: getattr(status, name) for name in status.__struct_fields__}
    return {**found, "lives": lives(status)}


def _live(read: Callable[[], Status | None]) -> None:
    from rich.console import Console  # noqa: PLC0415  # for a terminal alone
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(console=Console(), auto_refresh=False) as live:
        for status, speed in _statuses(read):
            shown = "\n".join(lines(status, speed, time.time()))
            live.update(Text(shown, overflow="ellipsis", no_wrap=True), refresh=True)


def _statuses(read: Callable[[], Status | None]) -> Iterator[tuple[Status | None, float]]:
    """The status a few times a second, with the bytes a second since the one before it."""
    former, speed = None, 0.0
    while True:
        status = read()
        if status is None or former is None or status.time != former.time:
            speed = throughput(former, status)
            former = status
        yield status, speed
        time.sleep(_LOOK_SECONDS)


def throughput(former: Status | None, status: Status | None) -> float:
    """The bytes a second that the works of two statuses have made between them. Pure."""
    if former is None or status is None or status.time <= former.time:
        return 0.0
    before = {(work.step, work.state): work.bytes_done for work in former.works}
    done = sum(
        max(work.bytes_done - before.get((work.step, work.state), 0), 0) for work in status.works
    )
    return done / (status.time - former.time)


def lines(status: Status | None, speed: float, now: float) -> list[str]:
    """What a status says, in lines. Pure, but for a look whether the process is there."""
    if status is None:
        return ["no manager has said anything here yet"]
    found = [f"writer   {status.host}, pid {status.pid}: {_life(status, now)}"]
    found += [_work(work) for work in works(status, now)]
    memory = f"{size(status.in_flight_bytes)} of {size(status.limit_bytes)} in flight"
    found.append(f"bytes    {size(speed)}/s, {memory}, {size(status.borrowed_bytes)} borrowed")
    if status.saved:
        saved = status.saved
        rate = f"{size(saved.nbytes / saved.seconds)}/s" if saved.seconds > 0 else ""
        found.append(
            f"saved    step {saved.step}, {text.age(saved.time, now)}: {size(saved.nbytes)} in "
            f"{span(saved.seconds)} ({rate}), {span(saved.stall)} of them in save()"
        )
    if status.failed:
        failed = status.failed
        found.append(f"failed   step {failed.step}, {text.age(failed.time, now)}: {failed.error}")
    return [*found, f"keeps    {status.keep}"]


def _life(status: Status, now: float) -> str:
    heard = f"last heard {text.age(status.time, now)}"
    living = lives(status)
    if status.closed:
        return f"closed {text.age(status.time, now)}"
    if living is False:
        return f"its process is gone, {heard}"
    if living is None and status.works and not works(status, now):
        return f"perhaps gone, {heard}"
    alive = "alive, " if living else ""
    return f"{alive}{'' if status.works else 'idle, '}{heard}"


def _work(work: Work) -> str:
    part = work.bytes_done / work.bytes_total if work.bytes_total else 0.0
    amount = f"{text.bar(part)} {size(work.bytes_done)} of {size(work.bytes_total)}"
    return f"{work.state.lower():<9}step {work.step} {amount if work.bytes_total else ''}".rstrip()
