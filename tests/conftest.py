"""What many tests share. Eight CPU devices, asked for before jax starts."""

from __future__ import annotations

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage import gcs, servers


class Prefix(str):
    """The URL of a run's prefix. A test that looks for files below it is of local files alone."""

    __slots__ = ()

    def __truediv__(self, _: object) -> Path:
        pytest.skip("looks at local files")

    def exists(self) -> bool:
        """As a path's."""
        pytest.skip("looks at local files")


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The directory of a run, not made yet; in an object store where CKPTMGR_STORE names one."""
    kind = os.environ.get("CKPTMGR_STORE")
    if kind is None:
        return tmp_path / "run"
    store: servers.Store = request.getfixturevalue(kind)
    if kind == "s3":
        os.environ["AWS_ENDPOINT_URL"] = store.endpoint
        os.environ["AWS_REGION"] = "us-east-1"
    return Prefix(store.url)  # type: ignore[return-value]  # whatever is no path is skipped


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 server."""
    yield from servers.server()


@pytest.fixture
def s3(s3_server: str) -> servers.Store:
    """A prefix of its own there."""
    return servers.s3(s3_server)


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
