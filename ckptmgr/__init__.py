"""ckptmgr: an async checkpoint manager that lives inside JAX trainers."""

from etils import epy

with epy.lazy_api_imports(globals()):  # the command line does without jax
    from ckptmgr import events
    from ckptmgr.cadence import At, Cadence, Every, OnPreemption, OverheadBelow, WhenIdle
    from ckptmgr.conversion import convert
    from ckptmgr.distributed.coordinator import Coordinator
    from ckptmgr.errors import (
        AccessDenied,
        CheckpointError,
        DamagedStep,
        DirectoryLocked,
        EarlierSaveFailed,
        Exhausted,
        InvalidOption,
        InvalidStep,
        ManagerClosed,
        MissingFile,
        MsgpackError,
        NoFile,
        NoSpace,
        NoSuchStep,
        NotAStep,
        OutOfMemory,
        ProcessesDiffer,
        ProcessSilent,
        StepDeleted,
        StepExists,
        StepHeld,
        StorageError,
        StoreUnavailable,
        TooManyOpenFiles,
        TreeMismatch,
        TruncatedFile,
        UndecodableLeaf,
        UnsupportedFormat,
        UnsupportedLeaf,
        WaitTimeout,
    )
    from ckptmgr.events import Event
    from ckptmgr.format import msgpack
    from ckptmgr.format.step import StepInfo
    from ckptmgr.functional import load, load_async, load_structure, save, save_async, verify
    from ckptmgr.future import LoadFuture, Progress, SaveFuture, State
    from ckptmgr.limiter import ByteLimiter, LimiterStatistics
    from ckptmgr.manager import CheckpointManager
    from ckptmgr.pipeline.leaf_options import LeafOptions
    from ckptmgr.pipeline.request import LoadOptions
    from ckptmgr.pipeline.verify import Problem, VerifyReport
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
    from ckptmgr.storage.url import ObjectStore
    from ckptmgr.tree.handlers import Encoded, Handler, NumpyStruct, Stored
    from ckptmgr.tree.per_process import PerProcess
    from ckptmgr.tree.registered import register_leaf, register_node
    from ckptmgr.tree.structure import key_paths

__all__ = [
    # saving and restoring
    "CheckpointManager",
    "LoadOptions",
    "convert",
    "load",
    "load_async",
    "load_structure",
    "save",
    "save_async",
    "verify",
    # what comes of it
    "Event",
    "events",
    "LoadFuture",
    "Progress",
    "SaveFuture",
    "State",
    "StepInfo",
    "Problem",
    "Verdict",
    "VerifyReport",
    # when to save
    "At",
    "Cadence",
    "Every",
    "OnPreemption",
    "OverheadBelow",
    "WhenIdle",
    # what to keep
    "KeepAll",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepSteps",
    "KeepWithin",
    "Retention",
    # what a tree may hold, and how it is stored
    "Encoded",
    "Handler",
    "LeafOptions",
    "NumpyStruct",
    "PerProcess",
    "Stored",
    "key_paths",
    "register_leaf",
    "register_node",
    # around it
    "ByteLimiter",
    "Coordinator",
    "LimiterStatistics",
    "MemoryStorage",
    "ObjectStore",
    "msgpack",
    # errors
    "AccessDenied",
    "CheckpointError",
    "DamagedStep",
    "DirectoryLocked",
    "EarlierSaveFailed",
    "Exhausted",
    "InvalidOption",
    "InvalidStep",
    "ManagerClosed",
    "MissingFile",
    "MsgpackError",
    "NoFile",
    "NoSpace",
    "NoSuchStep",
    "NotAStep",
    "OutOfMemory",
    "ProcessSilent",
    "ProcessesDiffer",
    "StepDeleted",
    "StepExists",
    "StepHeld",
    "StorageError",
    "StoreUnavailable",
    "TooManyOpenFiles",
    "TreeMismatch",
    "TruncatedFile",
    "UndecodableLeaf",
    "UnsupportedFormat",
    "UnsupportedLeaf",
    "WaitTimeout",
]
