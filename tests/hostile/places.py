"""Hostile places: something else where a file or a directory should be, and names that lead out."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from ckptmgr.format import keypath
from tests.hostile.forging import DOORS, Json, Spoil, also, forged, leaf
from tests.hostile.texts import NOTE


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "directory": _directory,
    "socket": _socket,
    "loop": _loop,
    **({"device": _device} if os.geteuid() == 0 else {}),
}


def replaced(path: str, make: Callable[[Path], None]) -> Spoil:
    """Something else in the place of a file; the file is moved out."""

    def spoil(step: Path) -> None:
        (step / path).rename(step.parent.parent / "moved")
        make(step / path)

    return spoil


def linked(path: str) -> Spoil:
    """A link to what was there before."""
    return lambda step: replaced(path, lambda at: at.symlink_to(step.parent.parent / "moved"))(step)


def noted(make: Callable[[Path], None]) -> Spoil:
    """Something else in the place of a note."""

    def spoil(step: Path) -> None:
        (step / "notes").mkdir()
        make(step / "notes" / NOTE)

    return spoil


for _name, _path, _leaf in (
    ("record", "checkpoint.json", None),
    ("manifest", "tree.json", None),
    ("chunk", "arrays/w/c.1", "w"),
    ("zipped", "arrays/z/c.0", "z"),
    ("pack", "packs/0/c.0", "blob"),
    ("metadata", "arrays/w/zarr.json", "w"),
):
    _file = _path.rpartition("/")[2]
    also(f"linked_{_name}", linked(_path), _leaf, _file)
    for _kind, _make in KINDS.items():
        also(f"{_kind}_for_{_name}", replaced(_path, _make), _leaf, _file)
for _name, _path, _leaf in (
    ("array", "arrays/w", "w"),
    ("arrays", "arrays", None),
    ("pack_directory", "packs/0", "blob"),
    ("packs", "packs", "blob"),
):
    also(f"linked_{_name}", linked(_path), _leaf, _path)
# Who gives the link to load() means it; who gives the run does not.
also("linked_step", linked(""), None, "step-00000002", ("restore",))
for _kind, _make in KINDS.items():
    also(f"{_kind}_for_note", noted(_make), None, NOTE, ("verify",))


def notes_elsewhere(step: Path) -> None:
    """The directory of notes is a link out of the step."""
    outside = step.parent.parent / "outside"
    outside.mkdir()
    (step / "notes").symlink_to(outside)


also("notes_elsewhere", notes_elsewhere, None, "notes", ("verify",))

for _name, _key in {
    "up": "../../honest/tree.json",
    "absolute": "/etc/passwd",
    "nul": "a\0b",
    "bidi": "a\u202eb",
    "control": "a\x1b[2Jb",
    "long": "n" * 100_000,
    "case": "W",
    "form": "w\u0301",
    "nothing": "",
}.items():

    def renamed(manifest: Json, path: str = _key) -> None:
        """Another path, while the structure has the former key."""
        leaf(manifest, "w")["path"] = path

    def moved(manifest: Json, key: str = _key) -> None:
        """Another path and key; the data is where it was, so nothing is where this leads."""
        keys = manifest["structure"]["keys"]
        keys[keys.index("w")] = key
        leaf(manifest, "w")["path"] = keypath.join([key])

    also(f"name_{_name}_without_its_key", forged(renamed), _key)
    also(f"name_{_name}", forged(moved), keypath.join([_key]), "zarr.json|c.", DOORS)
