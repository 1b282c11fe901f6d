"""A run as anybody may look at it: its steps, and restoring them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, Unpack

from ckptmgr.catalog import Catalog
from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import CheckpointError, InvalidOption, NoSuchStep, ProcessesDiffer
from ckptmgr.format.step import StepInfo, parse_step, step_name
from ckptmgr.future import LoadFuture
from ckptmgr.limiter import ByteLimiter, LimiterStatistics
from ckptmgr.options import require
from ckptmgr.pipeline import restore
from ckptmgr.pipeline.request import LoadOptions, Request, make_request
from ckptmgr.retention import Verdict, ranked
from ckptmgr.service import Service
from ckptmgr.storage.base import Storage
from ckptmgr.tree.registry import Registry

T = TypeVar("T")


class Run:
    """The reading half of a CheckpointManager, which makes what this looks at."""

    _storage: Storage
    _registry: Registry
    _limiter: ByteLimiter
    _catalog: Catalog
    _service: Service
    _coordinator: Coordinator
    _read_only: bool

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
          DamagedStep: bytes are missing or are not those that were saved.
          UndecodableLeaf: a handler or a registered class refuses what it stored.
        """
        return self._restore(self._choose(step), like, options)[1]

    def _choose(self, step: int | Literal["newest"]) -> int | None:
        """The step to restore, process 0's choice for all; None where nothing is committed."""
        newest = isinstance(step, str) and step == "newest"
        wanted = "newest" if newest else parse_step(step)

        def decide(said: Sequence[bytes]) -> bytes:
            for process, other in enumerate(said):
                if other != said[0]:
                    raise ProcessesDiffer(
                        f"process 0 restores step {said[0].decode()}, process {process} step "
                        f"{other.decode()}",
                        process=process,
                    )
            chosen = max(self._look().steps, default=None) if newest else wanted
            return str(chosen).encode()

        said = self._agree("restore", str(wanted).encode(), decide).decode()
        return None if said == "None" else int(said)

    def _agree(
        self,
        topic: str,
        report: bytes | CheckpointError,
        decide: Callable[[Sequence[bytes]], bytes],
    ) -> bytes:
        """Decide for all processes; a reader decides for itself."""
        if self._read_only and isinstance(report, bytes):
            return decide([report])
        return self._coordinator.agree(f"{self._service.topic}/{topic}", report, decide)

    def _restore(self, step: int | None, like: object, options: LoadOptions) -> tuple[int, Any]:
        """Restore a step in all processes, or in none."""
        request = make_request(like, **options)
        try:
            if request.broadcast and self._read_only:
                raise InvalidOption("broadcast needs a manager that is not read-only")
            future = self._load(step, request)
            try:
                found = future.result()
            except BaseException:
                future.cancel()
                raise
            sent = found.to_send if isinstance(found, restore.Unfinished) else b""
        except CheckpointError as error:
            if self._coordinator.count > 1 and not self._read_only:
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

        Each process restores by itself and hears of its own errors only, so not by broadcast.
        """
        wanted = None if isinstance(step, str) and step == "newest" else parse_step(step)
        request = make_request(like, **options)
        if options.get("broadcast", False):
            raise InvalidOption(
                "broadcast belongs into the thread that trains: use restore() or resume()"
            )
        return self._load(wanted, request)

    def _load(self, wanted: int | None, request: Request) -> LoadFuture:
        info = self._look().find(wanted)
        future = LoadFuture(info.step, self._service.dispatch)

        async def work() -> object:
            with self._catalog.reading(info.step):
                name = step_name(info.step or 0)
                return await restore.load(
                    self._storage, name, request, self._registry, self._limiter, future
                )

        self._service.load(future, work)
        return future

    def resume(
        self,
        like: T,
        *,
        step: int | Literal["newest"] = "newest",
        default_step: int = 0,
        **options: Unpack[LoadOptions],
    ) -> tuple[int, T]:
        """The step and the tree to go on from; `(default_step, like)` where nothing is committed.

        Blocks and raises like `restore`. A step that is named must be there.
        """
        first, wanted = parse_step(default_step), self._choose(step)
        return (first, like) if wanted is None else self._restore(wanted, like, options)

    # Looking

    def all_steps(self) -> list[int]:
        """The committed steps, lowest first."""
        return list(self._look().steps)

    def latest_step(self) -> int | None:
        """The highest committed step; None where there is none."""
        return max(self._look().steps, default=None)

    def best_step(self, metric: str, mode: Literal["min", "max"] = "min") -> int:
        """The committed step with the lowest ("min") or highest ("max") metric.

        Raises:
          NoSuchStep: no step has that metric as a number.
        """
        require(mode in ("min", "max"), "mode", "'min' or 'max'", mode)
        best = ranked(self._look().steps, metric, mode)
        if not best:
            raise NoSuchStep(f"no committed step has the metric {metric!r}")
        return best[0]

    def info(self, step: int) -> StepInfo:
        """What is known of a committed step.

        Raises:
          NoSuchStep: it is not committed.
        """
        return self._look().find(parse_step(step))

    def explain(self) -> Verdict:
        """Why each committed step is kept, and why each step this manager deleted was."""
        return self._look().explain()

    def statistics(self) -> LimiterStatistics:
        """The bytes that are in flight now: copied, borrowed, and the most that were copied."""
        return self._limiter.statistics()

    def _look(self) -> Catalog:
        """The catalog, read anew where another process writes."""
        if self._read_only:
            self._service.check_open()
        if self._read_only or self._coordinator.index:
            self._catalog.refresh()
        return self._catalog


def _all_sent(said: Sequence[bytes]) -> bytes:
    if len(set(said)) > 1:
        raise ProcessesDiffer("the processes do not restore the same: like= or shardings= differ")
    return b""
