"""`ls`, `explain` and `gc`: which steps there are, and why they stay or go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Final

from ckptmgr.cli import text
from ckptmgr.cli.runs import Seen, look, rules, verdict, works, writing
from ckptmgr.cli.text import Column
from ckptmgr.errors import DamagedStep, InvalidOption
from ckptmgr.format.step import step_name
from ckptmgr.interop.recognise import foreign_path, orbax_steps, recognised
from ckptmgr.notation import parse_retention
from ckptmgr.status import Work
from ckptmgr.units import size

_COLUMNS: Final = (
    Column("step", right=True),
    Column("state"),
    Column("age", right=True, spare=1),
    Column("size", right=True, spare=2),
    Column("leaves", right=True, spare=5),
    Column("metrics", spare=4),
    Column("kept by", spare=3),
)


def ls(url: str, *, json: bool) -> None:
    """Every step, the newest first, and the saves that are on their way."""
    theirs = foreign_path(url)
    if theirs:
        _ls_theirs(theirs, json=json)
        return
    seen = look(url)
    now, steps, damaged = time.time(), seen.catalog.steps, seen.catalog.damaged
    keep = rules(seen, None)
    kept = verdict(steps, keep).kept if keep else {}
    running = [work for work in works(seen.status, now) if work.state != "READING"]
    saving = tuple(work for work in running if work.step not in steps)
    if json:
        text.say_json(_as_json(seen, saving, kept))
        return
    rows_of: dict[int, tuple[str, ...]] = {}
    for step, info in steps.items():
        state = "pinned" if info.pinned else "committed"
        why = ", ".join(kept.get(step, ())) or ("no rule" if keep else "")
        rows_of[step] = (
            str(step),
            state,
            text.age(info.time, now),
            size(info.nbytes),
            str(info.leaves),
            text.values(info.metrics),
            why,
        )
    for step, what in damaged.items():
        rows_of[step] = (str(step), "DAMAGED", "", "", "", "", what)
    rows = [
        *(_work(work) for work in saving),
        *(rows_of[step] for step in sorted(rows_of, reverse=True)),
        *(("", "set aside", "", "", "", "", name) for name in seen.aside),
    ]
    text.say(text.table(_COLUMNS, rows) if rows else "no step is committed yet")


def _ls_theirs(path: str, *, json: bool) -> None:
    """The committed steps of a run of Orbax; a checkpoint of another library as one without."""
    name = recognised(path)
    steps = orbax_steps(path) if name == "orbax" else {}
    rows = [(str(step), f"of {name}", place) for step, place in sorted(steps.items(), reverse=True)]
    rows = rows or [("", f"of {name}", path)]
    if json:
        said = [{"step": int(s) if s else None, "state": w, "path": p} for s, w, p in rows]
        text.say_json({"run": path, "saving": [], "steps": said})
    else:
        text.say(text.table((Column("step", right=True), Column("state"), Column("path")), rows))


def _as_json(
    seen: Seen, saving: tuple[Work, ...], kept: Mapping[int, tuple[str, ...]]
) -> dict[str, object]:
    rows: list[dict[str, object]] = [
        {
            "step": step,
            "state": "committed",
            "time": info.time,
            "nbytes": info.nbytes,
            "leaves": info.leaves,
            "metrics": info.metrics,
            "metadata": info.metadata,
            "pinned": info.pinned,
            "kept": kept.get(step),
            "path": info.path,
        }
        for step, info in sorted(seen.catalog.steps.items(), reverse=True)
    ]
    damaged = seen.catalog.damaged
    rows += [{"step": step, "state": "damaged", "why": why} for step, why in damaged.items()]
    rows += [{"step": None, "state": "set aside", "path": name} for name in seen.aside]
    running = [{**_fields(work), "state": work.state.lower()} for work in saving]
    return {"run": seen.storage.root, "saving": running, "steps": rows}


def _fields(work: Work) -> dict[str, object]:
    return {name: getattr(work, name) for name in work.__struct_fields__}


def _work(work: Work) -> tuple[str, ...]:
    part = work.bytes_done / work.bytes_total if work.bytes_total else 0.0
    state = work.state.lower() if work.state != "WRITING" else f"{text.bar(part, 10)} {part:.0%}"
    step = "" if work.step is None else str(work.step)
    return (step, state, "", size(work.bytes_total) if work.bytes_total else "", "", "", "")


def explain(url: str, keep: str | None, *, json: bool) -> None:
    """Why each step stays, and why each that is gone was deleted, by the writer's rules."""
    seen = look(url)
    rule = rules(seen, keep)
    if rule is None:
        raise InvalidOption(
            "the rules of this run are not known: give them, as in --keep 'KeepLast(3)'",
            file=url,
        )
    found = verdict(seen.catalog.steps, rule)
    gone = seen.status.deleted if seen.status else {}
    if json:
        text.say_json(
            {"keep": repr(rule), "kept": found.kept, "goes": found.deleted, "deleted": gone}
        )
        return
    text.say(f"note: {doubt}" for doubt in rule.doubts(seen.catalog.steps))
    text.say([f"rules: {rule!r}", *_fates(found.kept, found.deleted, "would go: ")])
    text.say(f"{step:>10}  deleted: {why}" for step, why in sorted(gone.items(), reverse=True))


def _fates(kept: object, deleted: object, goes: str) -> Iterator[str]:
    assert isinstance(kept, dict)
    assert isinstance(deleted, dict)
    for step in sorted({*kept, *deleted}, reverse=True):
        why = f"kept: {', '.join(kept[step])}" if step in kept else f"{goes}{deleted[step]}"
        yield f"{step:>10}  {why}"


def gc(url: str, keep: str, *, dry_run: bool, json: bool) -> bool:
    """Delete what the rules do not keep, or only say what that is; whether all of it is gone.

    The newest step that is to stay is verified first: a damaged one must not be what is left.
    """
    from ckptmgr.cli.checking import whole  # noqa: PLC0415  # tensorstore takes 0.1 s

    rule = parse_retention(keep)
    with contextlib.nullcontext(look(url)) if dry_run else writing(url, rule) as seen:
        catalog = seen.catalog
        found = verdict(catalog.steps, rule)
        while found.deleted and not whole(seen.storage, step_name(max(found.kept))):
            newest = max(found.kept)
            catalog.damage(newest, DamagedStep("it is damaged", step=newest))
            found = verdict(catalog.steps, rule)
        before = dict(catalog.steps)
        if not dry_run:
            catalog.retain()
        gone = found.deleted.keys() - (set() if dry_run else catalog.steps.keys())
        left = found.deleted.keys() - gone
    freed = sum(before[step].nbytes for step in gone)
    if json:
        said = {"deleted": sorted(gone), "left": sorted(left), "damaged": list(catalog.damaged)}
        text.say_json({"keep": repr(rule), "nbytes": freed, **said})
        return not left
    text.say(f"note: {doubt}" for doubt in rule.doubts(before))
    text.say(
        f"{step:>10}  DAMAGED, and left alone" for step in sorted(catalog.damaged, reverse=True)
    )
    if dry_run:
        text.say([*_fates(found.kept, found.deleted, "goes: "), f"would free {size(freed)}"])
        return True
    text.say(f"{step:>10}  deleted" for step in sorted(gone, reverse=True))
    text.say(
        f"{step:>10}  not deleted: it is held, or holds files of others" for step in sorted(left)
    )
    text.say(f"freed {size(freed)}")
    return not left
