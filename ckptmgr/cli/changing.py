"""`pin`, `unpin`, `annotate` and `rm`: what a person changes of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ckptmgr.cli import text
from ckptmgr.cli.runs import look, number, writing
from ckptmgr.errors import InvalidOption
from ckptmgr.format.step import step_name
from ckptmgr.pipeline import notes


def pin(url: str, step: str) -> None:
    """Keep a step whatever the rules say."""
    seen = look(url)
    found = seen.step(step)
    notes.pin(seen.storage, step_name(found))
    text.say(f"step {found} is pinned")


def unpin(url: str, step: str) -> None:
    """Leave a step to the rules again."""
    seen = look(url)
    found = seen.step(step)
    notes.unpin(seen.storage, step_name(found))
    text.say(f"step {found} is left to the rules")


def annotate(url: str, step: str, metrics: Sequence[str], metadata: Sequence[str]) -> None:
    """Say more of a step."""
    values = {name: _float(name, value) for name, value in map(_pair, metrics)}
    said = {name: _json(value) for name, value in map(_pair, metadata)}
    if not values and not said:
        raise InvalidOption("there is nothing to say: give --metric or --metadata NAME=VALUE")
    seen = look(url)
    found = seen.step(step)
    notes.annotate(seen.storage, step_name(found), values, said)
    text.say(f"step {found}: {text.values({**values, **said})}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and text.isprintable()):
        raise InvalidOption(f"this is NAME=VALUE, not {text!r}")
    return name, value


def _float(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise InvalidOption(f"the metric {name} is a number, not {value!r}") from error


def _json(value: str) -> object:
    """JSON, or else text."""
    try:
        found: object = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    return found


def rm(url: str, steps: Sequence[str]) -> None:
    """Delete steps, damaged ones too, and by name what was set aside; while nobody writes."""
    with writing(url) as seen:
        known: Mapping[int, object] = {**seen.catalog.steps, **seen.catalog.damaged}
        found = dict.fromkeys(step if step in seen.aside else number(step) for step in steps)
        for step in found:
            if isinstance(step, int) and step not in known:
                seen.step(str(step))  # which says that there is no such step
        for step in found:
            if isinstance(step, str):
                seen.storage.delete(step)
            else:
                seen.catalog.delete(step, "by ckptmgr rm")
            text.say(f"{step} is deleted")
