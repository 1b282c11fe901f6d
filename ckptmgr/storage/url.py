"""Where a run or a checkpoint lies: a path, or the URL of a prefix in an object store.

The only place that reads URLs. Credentials are none of its business: they come from the
environment or the SDK's own files, and are in no URL, option, manifest or message.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from ckptmgr.errors import InvalidOption, NoSuchStep
from ckptmgr.format.step import COMMIT_RECORD
from ckptmgr.storage.archive import ArchiveStorage, is_archive
from ckptmgr.storage.base import Storage
from ckptmgr.storage.local import LocalStorage

if TYPE_CHECKING:
    from ckptmgr.storage.cloud import CloudStorage

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<bucket>[^/]*)(?P<path>.*)", re.DOTALL
)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_SEGMENT: Final = re.compile(r"[A-Za-z0-9!_.*'()=+,~ -]+")
_SCHEMES: Final = ("s3", "gs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """How to reach an object store, as in `CheckpointManager("s3://bucket/run", storage=...)`.

    Credentials come from the environment or the SDK's files, as for its other tools.

    Attributes:
      endpoint: the URL of a store that speaks S3; None: that of AWS_ENDPOINT_URL_S3 or
        AWS_ENDPOINT_URL in the environment, or Amazon's.
      region: the bucket's; None: that of AWS_REGION or AWS_DEFAULT_REGION, or found by asking.
      anonymous: use no credentials, for public buckets of S3.
      retries: how often a call is tried again that the store failed.
      deadline: the seconds after which a call is given up, its retries included.
      lease_seconds: how long a writer that died keeps the next one waiting.
      one_writer: use a store that cannot tell two writers apart: nobody else may write there.

    Raises:
      InvalidOption: one of them is nothing that it can be.
    """

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    retries: int = 5
    deadline: float = 60.0
    lease_seconds: float = 30.0
    one_writer: bool = False

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)
        if not (isinstance(self.retries, int) and self.retries >= 0):
            raise InvalidOption(f"retries is an integer of at least 0, not {self.retries!r}")
        for name in ("deadline", "lease_seconds"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise InvalidOption(f"{name} is a number of seconds above 0, not {value!r}")


def is_url(text: str) -> bool:
    """Whether this is meant for an object store."""
    return "://" in text


def absolute(directory: str | os.PathLike[str]) -> str:
    """A URL as it is, or the absolute path, so that a later chdir does not move the run.

    Raises:
      InvalidOption: it is neither.
    """
    if not isinstance(directory, str | PurePath) and not hasattr(directory, "__fspath__"):
        raise InvalidOption(f"directory is a path or URL, not {directory!r}")
    text = os.fspath(directory)
    if not text or "\0" in text:
        raise InvalidOption("directory is empty" if not text else "directory holds a NUL")
    if is_url(text):
        return text
    return os.path.abspath(os.path.expanduser(text))


def storage_of(
    directory: str | os.PathLike[str], options: Storage | ObjectStore | None = None
) -> Storage:
    """The store of the run at a path or URL; that of `options` where it is one.

    Raises:
      InvalidOption: it is no path and no URL that we know.
    """
    text = absolute(directory)
    if options is not None and not isinstance(options, ObjectStore):
        return options
    if is_url(text):
        return _cloud(text, options or ObjectStore())
    if options is not None:
        raise InvalidOption("ObjectStore is for s3:// and gs://, not for a local directory")
    return LocalStorage(text)


def parent(path: str | os.PathLike[str], options: ObjectStore | None = None) -> tuple[Storage, str]:
    """The store of what the checkpoint at a path or URL lies in, and its name there.

    Of a local one through links, which a rename would replace.
    """
    text = absolute(path)
    if is_url(text):
        if not _parts(text)[2]:
            raise InvalidOption("this is a bucket: a checkpoint has a name in it")
        above, _, name = text.rstrip("/").rpartition("/")
        return storage_of(above, options), name
    root, name = os.path.split(os.path.realpath(text))
    return LocalStorage(root), name


def at(path: str | os.PathLike[str], options: ObjectStore | None = None) -> tuple[Storage, str]:
    """The store and the name of the checkpoint at a path or URL; no name where it is a run.

    Raises:
      NoSuchStep: there is no such directory.
    """
    text = absolute(path)
    if is_url(text):
        if _parts(text)[2]:
            around, name = parent(text, options)
            if around.taken(name):
                return around, name
        return storage_of(text, options), ""
    if is_archive(text):
        archive = ArchiveStorage(text)
        return archive, archive.name
    if not os.path.isdir(text):
        what = (
            "this is a file, not a directory"
            if os.path.exists(text)
            else "there is no such directory"
        )
        raise NoSuchStep(what, file=text)
    if os.path.lexists(os.path.join(text, COMMIT_RECORD)):
        return parent(text)
    return LocalStorage(text), ""


def _cloud(url: str, options: ObjectStore) -> CloudStorage:
    """The store of a prefix."""
    from ckptmgr.storage.cloud import CloudStorage  # noqa: PLC0415  # tensorstore takes 0.3 s
    from ckptmgr.storage.objects import Objects  # noqa: PLC0415

    scheme, bucket, path = _parts(url)
    spec = _s3(options) if scheme == "s3" else _gs(options)
    spec |= {"bucket": bucket, "path": f"{path}/" if path else ""}
    objects = Objects(spec, f"{scheme}://{bucket}/{path}".rstrip("/"), options.deadline)
    return CloudStorage(objects, lease_seconds=options.lease_seconds, one_writer=options.one_writer)


def _parts(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and prefix of a URL."""
    if "@" in url or ":" in url.partition("://")[2]:
        raise InvalidOption("a URL holds no credentials; they come from the environment")
    match = _URL.fullmatch(url)
    scheme = match["scheme"].lower() if match else ""
    if match is None or scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise InvalidOption(f"no store is known for {scheme or url[:20]!r}; there are {known}")
    bucket = match["bucket"]
    if _BUCKET.fullmatch(bucket) is None:
        raise InvalidOption(
            f"{bucket!r} is no bucket: it has 3 or more characters, of a-z, 0-9, '.', '-', '_'"
        )
    segments = match["path"].strip("/").split("/") if match["path"].strip("/") else []
    for segment in segments:
        if _SEGMENT.fullmatch(segment) is None or segment in (".", ".."):
            raise InvalidOption(f"{segment!r} cannot be a part of a prefix in an object store")
    return scheme, bucket, "/".join(segments)


def _s3(options: ObjectStore) -> dict[str, Any]:
    retries = {"max_retries": options.retries, "initial_delay": "200ms", "max_delay": "5s"}
    spec: dict[str, Any] = {"driver": "s3", "context": {"s3_request_retries": retries}}
    endpoint = options.endpoint or _said("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    if endpoint is not None:
        _check_endpoint(endpoint)
        spec["endpoint"] = endpoint.rstrip("/")
    region = options.region or _said("AWS_REGION", "AWS_DEFAULT_REGION")
    if region is not None:
        spec["aws_region"] = region
    if options.anonymous:
        spec["aws_credentials"] = {"type": "anonymous"}
    elif _said("AWS_ACCESS_KEY_ID") and _said("AWS_SECRET_ACCESS_KEY"):
        # The SDK's own search begins with its files, and complains of each that is not there.
        spec["aws_credentials"] = {"type": "environment"}
    return spec


def _check_endpoint(endpoint: str) -> None:
    if re.fullmatch(r"https?://[^/@\s]+/?", endpoint) is None:
        raise InvalidOption("endpoint is the URL of a host, http:// or https://, and no more")


def _said(*names: str) -> str | None:
    """What the environment says, as other tools of the store read it."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _gs(options: ObjectStore) -> dict[str, Any]:
    if options.endpoint is not None or options.region is not None or options.anonymous:
        raise InvalidOption("endpoint, region and anonymous are of s3://, not of gs://")
    retries = {"max_retries": options.retries, "initial_delay": "200ms", "max_delay": "5s"}
    return {"driver": "gcs", "context": {"gcs_request_retries": retries}}
