"""ckptmgr: an async checkpoint manager that lives inside JAX trainers."""

from ckptmgr.cadence import At, Cadence, Every, WhenIdle
from ckptmgr.errors import (
    CheckpointError,
    DamagedStep,
    DirectoryLocked,
    EarlierSaveFailed,
    InvalidOption,
    InvalidStep,
    ManagerClosed,
    MissingFile,
    NoSpace,
    NoSuchStep,
    NotAStep,
    StepExists,
    StorageError,
    TreeMismatch,
    TruncatedFile,
    UnsupportedFormat,
    UnsupportedLeaf,
    WaitTimeout,
)
from ckptmgr.format.step import StepInfo
from ckptmgr.functional import load, load_async, save, save_async
from ckptmgr.future import LoadFuture, Progress, SaveFuture, State
from ckptmgr.limiter import ByteLimiter, LimiterStatistics
from ckptmgr.manager import CheckpointManager
from ckptmgr.retention import (
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepSteps,
    KeepWithin,
    Retention,
    Verdict,
)
from ckptmgr.storage.memory import MemoryStorage
from ckptmgr.tree.structure import key_paths

__all__ = [
    # saving and restoring
    "CheckpointManager",
    "load",
    "load_async",
    "save",
    "save_async",
    # what comes of it
    "LoadFuture",
    "Progress",
    "SaveFuture",
    "State",
    "StepInfo",
    "Verdict",
    # when to save
    "At",
    "Cadence",
    "Every",
    "WhenIdle",
    # what to keep
    "KeepAll",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepSteps",
    "KeepWithin",
    "Retention",
    # around it
    "ByteLimiter",
    "LimiterStatistics",
    "MemoryStorage",
    "key_paths",
    # errors
    "CheckpointError",
    "DamagedStep",
    "DirectoryLocked",
    "EarlierSaveFailed",
    "InvalidOption",
    "InvalidStep",
    "ManagerClosed",
    "MissingFile",
    "NoSpace",
    "NoSuchStep",
    "NotAStep",
    "StepExists",
    "StorageError",
    "TreeMismatch",
    "TruncatedFile",
    "UnsupportedFormat",
    "UnsupportedLeaf",
    "WaitTimeout",
]
