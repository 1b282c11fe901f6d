"""The saver: takes a save through its stages, together with the other processes.

Two rounds hold the processes together. In the first all say what they are about to
save, before anything is written; in the second what they have written, whereupon
process 0 commits. What fails in one fails in all. One process alone goes the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from absl import logging

from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import CheckpointError, DamagedStep, NoSpace, ProcessesDiffer
from ckptmgr.events import Closed
from ckptmgr.format.digest import digest
from ckptmgr.format.encoding import decode_record, encode_record
from ckptmgr.format.manifest import Manifest
from ckptmgr.format.step import COMMIT_RECORD, MANIFEST, StepInfo, nonce
from ckptmgr.future import Progress, State
from ckptmgr.jobs import Ledger, SaveJob, outcome_of
from ckptmgr.limiter import ByteLimiter
from ckptmgr.pipeline import commit, reports, write
from ckptmgr.pipeline.incremental import lending
from ckptmgr.pipeline.verify import check
from ckptmgr.pipeline.workers import left_in_thread
from ckptmgr.storage.base import Attempt, Storage

# Beside the limit: under it the proof would wait for copies of a save that waits for the proof.
_PROOF_BYTES: Final = 32 << 20
_DIFFERENT: Final = b""  # what process 0 says where the processes do not save the same


class Saver:
    """Saves what it is given, one after the other.

    Args:
      storage: where to.
      ledger: the books of that directory.
      coordinator: how the processes agree.
      verify: read back what was written, before it becomes a step.
      incremental: link the files of the newest step that hold what is to be written.

    Attributes:
      topic: what the rounds of this directory are called.
      given_up: wait for other processes no more.
    """

    def __init__(
        self,
        storage: Storage,
        ledger: Ledger,
        coordinator: Coordinator,
        *,
        verify: bool = False,
        incremental: bool = False,
    ) -> None:
        self._storage = storage
        self._ledger = ledger
        self._coordinator = coordinator
        self._verify = verify
        self._incremental = incremental
        self.topic = f"path/{digest(storage.root.encode())}"
        self._runs = False  # a run has one save at a time; a path one of each name
        self.given_up = False

    @property
    def leads(self) -> bool:
        """Whether this process decides, commits and deletes for all."""
        return self._coordinator.index == 0

    @contextlib.contextmanager
    def opened(self, *, writer: bool) -> Iterator[None]:
        """The directory, made and locked if this is its writer: by process 0, for all of them."""
        if not writer:
            self._ledger.refresh()
            try:
                yield
            finally:
                self._ledger.tell(Closed())
            return
        with contextlib.ExitStack() as held:
            report = self._hold(held) if self.leads else self._storage.root.encode()
            self.topic = self._coordinator.agree("open", report, _same_directory).decode()
            self._runs = True
            looked = self._look()
            self._coordinator.agree(f"{self.topic}/opened", looked, lambda _: b"")
            try:
                yield
            finally:
                self._ledger.tell(Closed())  # while the directory is still this manager's

    def _look(self) -> bytes | CheckpointError:
        try:
            self._ledger.refresh()
        except CheckpointError as error:
            return error
        return b""

    def _hold(self, held: contextlib.ExitStack) -> bytes | CheckpointError:
        try:
            self._storage.create()
            held.enter_context(self._storage.lock())
            for name in self._storage.sweep():
                logging.info("removed %s, left by a writer that died", name)
        except CheckpointError as error:
            return error
        except Exception as error:  # noqa: BLE001  # the others must hear of it
            failure = CheckpointError(f"the directory cannot be opened: {error!r}")
            failure.__cause__ = error
            return failure
        return self._storage.root.encode()

    async def save(self, job: SaveJob) -> StepInfo | None:
        """Write and commit; None where it was cancelled before the commit.

        Raises:
          CheckpointError: it failed here or in another process; nothing was committed.
        """
        try:
            return await self._save(job)
        except CheckpointError as error:
            late = error.step is not None and error.step > (job.future.step or 0)
            if late and job.ticket and isinstance(error, ProcessesDiffer):
                job.future.cancel()  # process 0 has gone on without it: it was replaced there
            if job.future.cancelled():
                return None
            raise

    async def _save(self, job: SaveJob) -> StepInfo | None:
        if not job.future.advance(State.WRITING):
            return None
        async with left_in_thread(self._storage.attempt(job.name)) as attempt:
            shared = await self._begin(job, attempt)
            self._ledger.tell(job.started())
            digests: list[str] = []
            outcome: bytes | CheckpointError | None = None
            try:
                outcome = await outcome_of(
                    self._write(job, attempt, shared, digests), "save", job.future.step
                )
                if not job.future.advance(State.COMMITTING):
                    outcome = None
            finally:
                # Even where this task is cancelled: the others are to hear of it.
                if outcome is None:
                    outcome = job.reason or CheckpointError("the save was cancelled")
                with anyio.CancelScope(shield=True):
                    decide = partial(self._commit, job, digests, attempt)
                    record = await self._agree(job, f"written/{shared}", outcome, decide, shared)
            file = f"{self._storage.root}/{job.name}/{COMMIT_RECORD}"
            return self._ledger.add(job.name, decode_record(record, file))

    async def _agree(
        self,
        job: SaveJob,
        topic: str,
        report: bytes | CheckpointError,
        decide: Callable[[Sequence[bytes]], bytes],
        name: str | None = None,
    ) -> bytes:
        return await anyio.to_thread.run_sync(
            partial(
                self._coordinator.agree,
                f"{self.topic}/{topic}" if self._runs else f"{self.topic}/{job.name}/{topic}",
                report,
                decide,
                step=job.future.step or 0,
                name=name,
                stopped=lambda: self._stopped(job),
            )
        )

    def _stopped(self, job: SaveJob) -> CheckpointError | None:
        """Why a save is not wanted any more, once it is not."""
        if not (self.given_up or job.future.cancelled()):
            return None
        return job.reason or CheckpointError("the save was cancelled")

    # Before anything is written

    async def _begin(self, job: SaveJob, attempt: Attempt) -> str:
        """Agree on what is to be saved; the name of the attempt that all write into."""
        report = await outcome_of(self._intent(job), "save", job.future.step)
        shared = await self._agree(job, "begin", report, partial(self._same, attempt))
        if shared == _DIFFERENT:
            table = msgspec.msgpack.encode(reports.table(job.planned.plan, job.contents))
            await self._agree(job, "differ", table, _refuse)
        return shared.decode()

    async def _intent(self, job: SaveJob) -> bytes:
        """What to report, where there is nothing against it."""
        if job.fault is not None:
            raise job.fault
        plan = job.planned.plan
        free = await anyio.to_thread.run_sync(self._locked_and_free) if self.leads else None
        # How much of it is linked is known only when it has been read.
        if free is not None and free < plan.least_nbytes and not self._incremental:
            raise NoSpace(
                f"the step needs {plan.least_nbytes} bytes and {free} are free; free some, or "
                "keep fewer steps",
                file=self._storage.root,
            )
        found = reports.intent(job.name, plan, job.contents, replace=job.replace)
        return msgspec.msgpack.encode(found)

    def _locked_and_free(self) -> int | None:
        self._storage.ensure_locked()
        return self._storage.free_bytes()

    def _same(self, attempt: Attempt, said: Sequence[bytes]) -> bytes:
        intents = {reports.decode_intent(data) for data in said}
        if len(intents) > 1:
            return _DIFFERENT
        return attempt.share().encode() if len(said) > 1 else b"alone"

    # Then

    async def _write(
        self, job: SaveJob, attempt: Attempt, shared: str, digests: list[str]
    ) -> bytes:
        """Write this process's part, durable on return; what there is to report of it."""
        plan, threads = job.planned.plan, self._storage.write_tasks

        def report(progress: Progress) -> None:
            job.future.progress = progress

        if not self.leads:
            await anyio.to_thread.run_sync(attempt.join, shared)
        newest = self._ledger.newest() if self._incremental else None
        async with lending(self._storage, newest, plan) as former:
            digests += await write.write(
                plan, job.handover, attempt, threads, report, former, beside=job.beside
            )
        await commit.put_metadata(plan, job.kept, attempt, threads, leads=self.leads)
        if self.leads:
            return b""  # it keeps the digests itself
        await anyio.to_thread.run_sync(attempt.sync)
        return msgspec.msgpack.encode(reports.written(plan, job.planned.values, digests))

    def _commit(
        self, job: SaveJob, digests: list[str], attempt: Attempt, said: Sequence[bytes]
    ) -> bytes:
        """Commit, not cancelled any more, and return the record; in process 0."""
        others = [reports.decode_written(data) for data in said[1:]]
        plan, values = job.planned.plan, job.planned.values
        manifest = commit.assemble(plan, values, digests, job.kept, others)
        now = self._ledger.commit_time()
        former = job.kept.record if job.kept else None
        record = commit.commit(
            manifest,
            job.header,
            attempt,
            now,
            replace=job.replace,
            former=former,
            prove=partial(self._prove, job, attempt) if self._verify else _unproved,
        )
        return encode_record(record)

    def _prove(self, job: SaveJob, attempt: Attempt, manifest: Manifest, data: bytes) -> None:
        """Read back what was written, before it becomes a step or takes the place of one.

        Raises:
          DamagedStep: it is not what was written.
        """
        name, own = attempt.share(), ByteLimiter(_PROOF_BYTES)
        found = self._storage.read(f"{name}/{MANIFEST}", len(data), fresh=True)
        if found != data:
            raise DamagedStep("the manifest read back is not the one written", file=name)
        work = partial(check, self._storage, name, manifest, own, job.future.step)
        report = anyio.from_thread.run(work)
        if not report.ok:
            raise report.error()


def _unproved(*_: object) -> None:
    pass


def _same_directory(said: Sequence[bytes]) -> bytes:
    for process, directory in enumerate(said):
        if directory != said[0]:
            raise ProcessesDiffer(
                f"process 0 opens {said[0].decode()}, process {process} {directory.decode()}: "
                "all must open the same directories in the same order",
                process=process,
            )
    return f"run/{nonce()}".encode()


def _refuse(said: Sequence[bytes]) -> bytes:
    tables = [msgspec.msgpack.decode(data, type=dict[str, str]) for data in said]
    raise reports.differences(tables)
