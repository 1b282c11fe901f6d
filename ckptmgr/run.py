"""A run as anybody may look at it: its steps, and restoring them."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, Unpack

from ckptmgr.catalog import Catalog
from ckptmgr.errors import NoSuchStep
from ckptmgr.format.step import StepInfo, parse_step, step_name
from ckptmgr.future import LoadFuture
from ckptmgr.limiter import ByteLimiter, LimiterStatistics
from ckptmgr.options import require
from ckptmgr.pipeline import restore
from ckptmgr.pipeline.request import LoadOptions, make_request
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
          options: select=, shardings=, mesh=, casting=, resize=; see LoadOptions.

        Raises:
          NoSuchStep: there is no such step, or none at all.
          TreeMismatch: the saved tree is not like `like`; lists every difference.
          DamagedStep: bytes are missing or are not those that were saved.
          UndecodableLeaf: a handler or a registered class refuses what it stored.
        """
        future = self.restore_async(step, like, **options)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def restore_async(
        self,
        step: int | Literal["newest"] = "newest",
        like: object = None,
        **options: Unpack[LoadOptions],
    ) -> LoadFuture:
        """Begin to restore; returns at once a future of the tree. Arguments as for `restore`."""
        wanted = None if isinstance(step, str) and step == "newest" else parse_step(step)
        request = make_request(like, **options)
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
        if isinstance(step, str) and step == "newest" and not self._look().steps:
            return parse_step(default_step), like
        future = self.restore_async(step, like, **options)
        try:
            tree: T = future.result()
        except BaseException:
            future.cancel()
            raise
        assert future.step is not None
        return future.step, tree

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
            self._catalog.refresh()
        return self._catalog
