"""A run as anybody may read it: its steps restored, the newest that is whole."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Unpack

import anyio.to_thread

from ckptmgr.errors import (
    CheckpointError,
    DamagedStep,
    InvalidOption,
    NoSuchStep,
    ProcessesDiffer,
    StepDeleted,
)
from ckptmgr.events import FellBack, RestoreFailed, RestoreFinished, RestoreStarted
from ckptmgr.format.step import parse_step, step_name
from ckptmgr.future import LoadFuture
from ckptmgr.interop.opening import open_foreign
from ckptmgr.interop.reader import ForeignReader
from ckptmgr.pipeline import restore
from ckptmgr.pipeline.request import LoadOptions, Request, make_request
from ckptmgr.pipeline.workers import left_in_thread
from ckptmgr.steps import Steps
from ckptmgr.tree.registry import Registry

T = TypeVar("T")


class Run(Steps):
    """The reading half of a CheckpointManager, which makes what this looks at."""

    _registry: Registry

    def restore(
        self,
        step: int | Literal["newest"] = "newest",
        like: object = None,
        **options: Unpack[LoadOptions],
    ) -> Any:  # a tree of the caller's own types
        """Restore a step; blocks until the tree is there, every byte checked.

        Args:
          step: which one.
          like: a tree of the saved structure, or of ShapeDtypeStructs: each leaf takes
            its type, dtype and sharding. None: as it was saved, jax arrays with their
            saved sharding where the devices allow it.
          options: select=, shardings=, mesh=, casting=, resize=, broadcast=; see LoadOptions.

        With several processes all must call it, unless the manager is read-only: they restore
        the same step, and if one cannot, all raise.

        Raises:
          NoSuchStep: there is no such step, or none at all.
          TreeMismatch: the saved tree is not like `like`; lists every difference.
          DamagedStep: bytes are missing or are not those that were saved; of "newest": of
            every step. Those passed over are logged, stay on disk, and are not the latest.
          StepDeleted: it was deleted, or replaced, before it could be read.
          UndecodableLeaf: a handler or a registered class refuses what it stored.
        """
        if isinstance(step, str) and step == "newest":
            found = self._newest(like, options)
            if found is None:
                raise NoSuchStep("nothing has been committed yet", file=self._storage.root)
            return found[1]
        return self._restore(self._choose(step), like, options)[1]

    def _newest(self, like: object, options: LoadOptions) -> tuple[int, Any] | None:
        """Restore the newest step that is whole; None where nothing was ever committed.

        Raises:
          DamagedStep: every step there is is damaged.
        """
        while (step := self._choose("newest")) is not None:
            try:
                found = self._restore(step, like, options)
            except DamagedStep as error:
                self._catalog.damage(step, error)
            except StepDeleted:
                self._catalog.refresh()  # retention was quicker: there is a newer one
            else:
                passed = [other for other in self._catalog.damaged if other > step]
                if passed:
                    self._catalog.tell(FellBack(step=step, passed=passed))
                return found
        return None

    def _choose(self, step: int | Literal["newest"]) -> int | None:
        """The step to restore, process 0's choice for all; None where nothing is committed."""
        newest = isinstance(step, str) and step == "newest"
        try:
            wanted = None if newest else parse_step(step)
        except CheckpointError as error:
            self._agree("restore", error, _all_sent)
            raise

        def decide(said: Sequence[bytes]) -> bytes:
            for process, other in enumerate(said):
                if other != said[0]:
                    raise ProcessesDiffer(
                        f"process 0 restores step {said[0].decode()}, process {process} step "
                        f"{other.decode()}",
                        process=process,
                    )
            chosen = self._newest_good() if newest else wanted
            return str(chosen).encode()

        report = str(step).encode() if newest else str(wanted).encode()
        said = self._agree("restore", report, decide).decode()
        return None if said == "None" else int(said)

    def _newest_good(self) -> int | None:
        """The newest step that is not known to be damaged; None where there are none at all."""
        try:
            return self._look().find(None).step
        except NoSuchStep:
            return None

    def _restore(self, step: int | None, like: object, options: LoadOptions) -> tuple[int, Any]:
        """Restore a step in all processes, or in none."""
        with contextlib.ExitStack() as held:
            try:
                request = make_request(like, **options)
                if request.broadcast and self._read_only:
                    raise InvalidOption("broadcast needs a manager that is not read-only")
                future = self._load(step, request)
                try:
                    # Until all have it: who is done first may be the one who deletes.
                    name = step_name(future.step or 0)
                    held.enter_context(self._storage.reading(name))
                    found = future.result()
                except BaseException:
                    future.cancel()
                    raise
                sent = found.to_send if isinstance(found, restore.Unfinished) else b""
            except CheckpointError as error:
                self._agree("restored", error, _all_sent)
                raise
            self._agree("restored", sent, _all_sent)
        assert future.step is not None
        return future.step, found.finish() if isinstance(found, restore.Unfinished) else found

    def restore_async(
        self,
        step: int | Literal["newest"] = "newest",
        like: object = None,
        **options: Unpack[LoadOptions],
    ) -> LoadFuture:
        """Begin to restore; returns at once a future of the tree. Arguments as for `restore`.

        Each process restores by itself and hears of its own errors only, so not by broadcast;
        with several give the number of the step, for each has its own newest.
        """
        wanted = None if isinstance(step, str) and step == "newest" else parse_step(step)
        request = make_request(like, **options)
        if options.get("broadcast", False):
            raise InvalidOption(
                "broadcast belongs into the thread that trains: use restore() or resume()"
            )
        return self._load(wanted, request)

    def _load(self, wanted: int | None, request: Request) -> LoadFuture:
        """Read a step, or where `wanted` is None the newest that is whole."""
        catalog = self._look()
        # One that was found damaged is tried once more for who asks for it by its number.
        first = wanted if wanted in catalog.damaged else catalog.find(wanted).step
        future = LoadFuture(first, self._service.dispatch)

        async def work() -> object:
            while True:
                step = future.step or 0
                try:
                    found = await self._read(step_name(step), request, future)
                except DamagedStep:
                    if wanted is not None:
                        raise
                except StepDeleted:
                    if wanted is not None:
                        raise
                    await anyio.to_thread.run_sync(catalog.refresh)
                else:
                    return found
                future.step = catalog.find(None).step

        self._service.load(future, work)
        return future

    async def _read(self, name: str, request: Request, future: LoadFuture) -> object:
        # What is said of the step is of the one that is kept there meanwhile, and of no later one.
        step, catalog = future.step or 0, self._catalog
        async with left_in_thread(self._storage.reading(name)):
            began = time.perf_counter()
            catalog.tell(RestoreStarted(step=step))
            try:
                found = await restore.load(
                    self._storage, name, request, self._registry, self._limiter, future
                )
            except CheckpointError as error:
                seconds = time.perf_counter() - began
                catalog.tell(RestoreFailed(step=step, error=error, seconds=seconds))
                if isinstance(error, DamagedStep):
                    await anyio.to_thread.run_sync(catalog.damage, step, error)
                raise
            catalog.tell(
                RestoreFinished(
                    step=step,
                    nbytes=future.progress.bytes_done,
                    leaves=future.progress.leaves_done,
                    seconds=time.perf_counter() - began,
                )
            )
            if request.select.all and request.processes.count == 1:  # all of it was read
                await anyio.to_thread.run_sync(catalog.recover, step)
            return found

    def resume(
        self,
        like: T,
        *,
        step: int | Literal["newest"] = "newest",
        default_step: int = 0,
        import_from: str | os.PathLike[str] | None = None,
        **options: Unpack[LoadOptions],
    ) -> tuple[int, T]:
        """The step and the tree to go on from; `(default_step, like)` where nothing is committed.

        Blocks and raises like `restore`. A step that is named must be there.

        `import_from`: a run or checkpoint of Orbax, or of another library, to go on from as long
        as nothing is committed here; its own step counts, where it says one.
        """
        first = parse_step(default_step)
        if isinstance(step, str) and step == "newest":
            found = self._newest(like, options)
            if found is None and import_from is not None:
                return self._import(import_from, like, first, options)
            return found or (first, like)
        return self._restore(self._choose(step), like, options)

    def _import(
        self, path: str | os.PathLike[str], like: T, first: int, options: LoadOptions
    ) -> tuple[int, T]:
        """What another library has saved; each process reads it for itself."""
        request = make_request(like, **options)
        if request.broadcast:
            raise InvalidOption("broadcast is of checkpoints of ckptmgr's own")
        try:
            opened = open_foreign(os.path.abspath(path))
            future = LoadFuture(opened.step, self._service.dispatch)
            reader = ForeignReader(opened, self._limiter)

            async def work() -> object:
                return await restore.assembled(
                    opened.manifest, reader, request, self._registry, future
                )

            self._service.load(future, work)
            try:
                found = future.result()
            except BaseException:
                future.cancel()
                raise
        except CheckpointError as error:
            self._agree("imported", error, _all_sent)
            raise
        step = first if opened.step is None else opened.step
        self._agree("imported", str(step).encode(), _all_sent)
        return step, found


def _all_sent(said: Sequence[bytes]) -> bytes:
    if len(set(said)) > 1:
        raise ProcessesDiffer("the processes do not restore the same: like= or shardings= differ")
    return b""
