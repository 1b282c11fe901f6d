"""What many tests share. Eight CPU devices, asked for before jax starts."""

from __future__ import annotations

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage import gcs, servers


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run, not made yet."""
    return tmp_path / "run"


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The endpoint of an S3 server."""
    servers.credentials()
    yield from servers.moto()


@pytest.fixture
def s3(moto: str) -> servers.Store:
    """A prefix of its own there."""
    return servers.s3(moto)


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[str]:
    """The endpoint of a fake of GCS."""
    for endpoint in gcs.fake():
        os.environ["TENSORSTORE_GCS_HTTP_URL"] = endpoint
        os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"] = "canary-google-token"
        yield endpoint


@pytest.fixture
def gs(fake_gcs: str) -> servers.Store:
    """A prefix of its own there."""
    return servers.gs(fake_gcs)
