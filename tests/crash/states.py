"""The states that a power cut may leave: operations recorded, replayed with what was unsynced lost.

As ALICE does (Pillai et al., OSDI 2014), and more pessimistic than any journal: of what was
not synced by the moment of the cut, each write and each change of a directory is there or
not, independently of the others; a file's unsynced bytes may be missing, cut or zero.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ckptmgr.storage import rename


@dataclass(frozen=True)
class Operation:
    """One call: its kind and its paths, what was written, and what it made durable, if it did."""

    kind: str
    path: str
    other: str = ""
    data: bytes = b""


@dataclass
class Node:
    """A file or a directory, apart from its names."""

    entries: dict[str, Node] | None = None  # None for a file
    data: bytes = b""
    sure: bool = True  # whether its bytes were synced


@dataclass
class Recorder:
    """Records what changes under a directory."""

    root: Path
    operations: list[Operation] = field(default_factory=list)
    _mutex: threading.RLock = field(default_factory=threading.RLock)

    def _note(self, kind: str, path: str, other: str = "", data: bytes = b"") -> None:
        promised = not os.path.basename(path).startswith(".status")
        if promised and str(path).startswith(str(self.root)):
            self.operations.append(Operation(kind, str(path), str(other), data))

    @contextmanager
    def recording(self) -> Iterator[None]:  # noqa: C901  # a case for each call
        """While the context lasts."""
        real = {
            name: getattr(os, name)
            for name in ("open", "mkdir", "writev", "fdatasync", "fsync", "rename", "link")
        }
        unlink, rmdir, exchange = os.unlink, os.rmdir, rename.renameat2

        def path_of(descriptor: int) -> str:
            return os.readlink(f"/proc/self/fd/{descriptor}")

        def call(name: str) -> Callable[..., Any]:
            def wrapped(*args: Any, **options: Any) -> Any:
                with self._mutex:  # one after the other, as they are recorded
                    result = real[name](*args, **options)
                    if name == "open" and args[1] & os.O_CREAT:
                        self._note("create", args[0])
                    elif name == "mkdir":
                        self._note("mkdir", args[0])
                    elif name == "writev":
                        data = b"".join(bytes(part) for part in args[1])[:result]
                        self._note("write", path_of(args[0]), data=data)
                    elif name in ("fdatasync", "fsync"):
                        self._note("sync", path_of(args[0]))
                    elif name in ("rename", "link"):
                        self._note(name, args[0], args[1])
                    return result

            return wrapped

        def removed(function: Callable[..., None]) -> Callable[..., None]:
            def wrapped(path: Any, *, dir_fd: int | None = None) -> None:
                with self._mutex:
                    full = path if dir_fd is None else f"{path_of(dir_fd)}/{path}"
                    function(path, dir_fd=dir_fd)
                    self._note("remove", os.fspath(full))

            return wrapped

        def renamed(source: str, target: str, flags: int) -> None:
            with self._mutex:
                exchange(source, target, flags)
                self._note("swap" if flags == 2 else "rename", source, target)

        for name in real:
            setattr(os, name, call(name))
        os.unlink, os.rmdir = removed(unlink), removed(rmdir)
        rename.renameat2 = renamed
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(os, name, function)
            os.unlink, os.rmdir, rename.renameat2 = unlink, rmdir, exchange


def loaded(path: Path) -> Node:
    """What is on the disk before, all of it durable."""
    if path.is_dir():
        return Node({child.name: loaded(child) for child in path.iterdir()})
    return Node(data=path.read_bytes())


class Replay:
    """One state: what is there after the first `length` operations and a cut."""

    def __init__(self, root: Path, before: Path, operations: list[Operation], length: int) -> None:
        self._root = str(root)
        self._before = before
        self._operations = operations[:length]

    def state(self, chance: random.Random) -> Node:
        """A state that may be found: what was synced, and some of what was not."""
        live = loaded(self._before)  # as the processes see it
        disk = loaded(self._before)  # as it is found
        twin = {id(live): disk}
        self._pair(live, disk, twin)
        pending: dict[int, list[Callable[[], None]]] = {}
        keep = chance.random()  # how much of what is unsynced got through

        def later(node: Node, change: Callable[[], None]) -> None:
            pending.setdefault(id(node), []).append(change)

        held: list[Node] = [live]  # so that no id is used twice
        for operation in self._operations:
            self._apply(operation, live, twin, later, pending, held)
        for changes in pending.values():
            for change in changes:
                if chance.random() < keep:
                    change()
        for node in held:
            found = twin.get(id(node))
            if found is not None and found.entries is None and not found.sure:
                whole = node.data
                found.data = chance.choice(
                    [b"", whole[: len(whole) // 2], bytes(len(whole)), whole]
                )
        return disk

    def _pair(self, one: Node, other: Node, twin: dict[int, Node]) -> None:
        twin[id(one)] = other
        for name, child in (one.entries or {}).items():
            self._pair(child, (other.entries or {})[name], twin)

    def _find(self, root: Node, path: str) -> tuple[Node, str]:
        """The directory that a path lies in, and its name there."""
        node = root
        parts = path[len(self._root) :].strip("/").split("/")
        for part in parts[:-1]:
            assert node.entries is not None
            node = node.entries[part]
        return node, parts[-1]

    def _apply(
        self,
        operation: Operation,
        live: Node,
        twin: dict[int, Node],
        later: Callable[[Node, Callable[[], None]], None],
        pending: dict[int, list[Callable[[], None]]],
        held: list[Node],
    ) -> None:
        directory, name = self._find(live, operation.path)
        assert directory.entries is not None
        here = twin[id(directory)].entries
        assert here is not None
        if operation.kind in ("create", "mkdir"):
            if name in directory.entries:
                return  # an open that creates where there is one already: a lock
            made, found = (Node({}), Node({})) if operation.kind == "mkdir" else (Node(), Node())
            directory.entries[name] = made
            held.append(made)
            twin[id(made)] = found
            later(directory, lambda: here.__setitem__(name, found))
        elif operation.kind == "write":
            file = directory.entries[name]
            file.data += operation.data
            twin[id(file)].sure = False
            if file not in held:
                held.append(file)
        elif operation.kind == "sync":
            node = directory.entries.get(name, live) if name else live
            for change in pending.pop(id(node), []):
                change()
            if node.entries is None:
                twin[id(node)].sure, twin[id(node)].data = True, node.data
        elif operation.kind == "remove":
            del directory.entries[name]
            later(directory, partial(_without, here, name))
        else:
            self._moved(operation, live, directory, name, twin, later)

    def _moved(
        self,
        operation: Operation,
        live: Node,
        directory: Node,
        name: str,
        twin: dict[int, Node],
        later: Callable[[Node, Callable[[], None]], None],
    ) -> None:
        """A rename, a swap or a link: one change, of both directories."""
        to, new = self._find(live, operation.other)
        assert directory.entries is not None
        assert to.entries is not None
        here, there = twin[id(directory)].entries, twin[id(to)].entries
        assert here is not None
        assert there is not None
        node = directory.entries[name]
        moved, former = twin[id(node)], to.entries.get(new)
        back = None if former is None else twin[id(former)]
        to.entries[new] = node
        if operation.kind == "swap":
            assert former is not None
            directory.entries[name] = former
        elif operation.kind == "rename":
            del directory.entries[name]

        def change() -> None:
            there[new] = moved
            if operation.kind == "swap" and back is not None:
                here[name] = back
            elif operation.kind == "rename":
                here.pop(name, None)

        later(to, change)


def _without(entries: dict[str, Node], name: str) -> None:
    entries.pop(name, None)


def written(node: Node, path: Path) -> None:
    """Put a state on the disk."""
    if path.exists():
        shutil.rmtree(path)
    _write(node, path)


def _write(node: Node, path: Path) -> None:
    if node.entries is None:
        path.write_bytes(node.data)
        return
    path.mkdir()
    for name, child in node.entries.items():
        _write(child, path / name)
