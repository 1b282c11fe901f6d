"""Object stores to test against: moto's S3 server, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import boto3

from ckptmgr import ObjectStore
from ckptmgr.format.step import nonce

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "canary-access-key",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-key",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_LISTENS = re.compile(rb"Running on (http://127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class Store:
    """A prefix of a bucket that nobody else uses, and how to reach it."""

    url: str
    endpoint: str
    options: ObjectStore

    def of(self, **changes: Any) -> ObjectStore:
        """The options with changes."""
        return replace(self.options, **changes)


_QUICK = ObjectStore(retries=2, deadline=20.0, lease_seconds=1.5)


def s3(endpoint: str) -> Store:
    """A prefix of its own on a server that speaks S3."""
    options = replace(_QUICK, endpoint=endpoint, region="us-east-1")
    return Store(f"s3://bucket/runs/{nonce()}", endpoint, options)


def gs(endpoint: str) -> Store:
    """A prefix of its own on the fake of GCS, to which the environment leads."""
    return Store(f"gs://bucket/runs/{nonce()}", endpoint, _QUICK)


def server() -> Iterator[str]:
    """The endpoint of an S3 server with the bucket `bucket`: moto, or what CKPTMGR_S3 names."""
    there = os.environ.get("CKPTMGR_S3")
    if there is not None:
        boto3.client("s3", endpoint_url=there, region_name="us-east-1").create_bucket(
            Bucket="bucket"
        )
        yield there
    else:
        os.environ.update(CREDENTIALS)
        yield from _moto()


def _moto() -> Iterator[str]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            found = None
            while found is None:
                line = process.stderr.readline()
                assert line, "moto did not start"
                found = _LISTENS.search(line)
            # It logs each request: a pipe that nobody reads fills, and the server stands still.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            endpoint = found[1].decode()
            request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
            urllib.request.urlopen(request, timeout=20).close()
            yield endpoint
        finally:
            process.kill()
