"""A small fake of Google Cloud Storage: what TensorStore's driver asks for, and how GCS answers.

Objects with generations, media uploads, ranges, preconditions (`ifGenerationMatch`,
`ifGenerationNotMatch`), deletion, and listings in pages, as of the JSON API:
https://cloud.google.com/storage/docs/json_api/v1/objects
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = 50  # keys of a listing; GCS gives 1,000, which no test would reach


class Bucket:
    """The objects of the one bucket there is, `bucket`, each with its generation."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.mutex = threading.Lock()
        self.generations = itertools.count(1)

    def matches(self, name: str, query: dict[str, str]) -> bool:
        """Whether the preconditions hold; under the mutex. An object that is missing has 0."""
        found = self.objects.get(name, (b"", 0))[1]
        wanted, unwanted = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
        return (wanted is None or int(wanted) == found) and (
            unwanted is None or int(unwanted) != found
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is several small packets
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # of the base class
        """Say nothing."""

    def _answer(self, status: HTTPStatus, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _json(self, status: HTTPStatus, content: Any) -> None:
        self._answer(status, json.dumps(content).encode(), Content_Type="application/json")

    def _error(self, status: HTTPStatus, message: str) -> None:
        self._json(status, {"error": {"code": int(status), "message": message}})

    def _asked(self, prefix: str) -> tuple[str | None, dict[str, str]]:
        """The object that is asked for, None for the listing or an upload; and the query."""
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        match = re.fullmatch(rf"{prefix}/storage/v1/b/([^/]+)/o(?:/(.*))?", parts.path)
        if match is None or match[1] != "bucket":
            raise KeyError("The specified bucket does not exist.")
        return None if match[2] is None else urllib.parse.unquote(match[2]), query

    def do_GET(self) -> None:
        """An object, a part of it, or a page of the listing."""
        bucket = self.server.bucket
        try:
            name, query = self._asked("")
        except KeyError as error:
            return self._error(HTTPStatus.NOT_FOUND, str(error))
        if name is None:
            return self._list(query)
        with bucket.mutex:
            if name not in bucket.objects:
                return self._error(HTTPStatus.NOT_FOUND, f"No such object: bucket/{name}")
            if not bucket.matches(name, query):
                unchanged = "ifGenerationNotMatch" in query
                status = HTTPStatus.NOT_MODIFIED if unchanged else HTTPStatus.PRECONDITION_FAILED
                return self._answer(status)
            data, generation = bucket.objects[name]
        headers = {"x_goog_generation": str(generation)}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return self._answer(HTTPStatus.OK, data, **headers)
        first, last = int(wanted[1]), int(wanted[2] or len(data))
        if first >= len(data):
            return self._error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "no such range")
        part = data[first : last + 1]
        headers["Content_Range"] = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        return self._answer(HTTPStatus.PARTIAL_CONTENT, part, **headers)

    def _list(self, query: dict[str, str]) -> None:
        bucket = self.server.bucket
        start = max(query.get("startOffset", ""), query.get("pageToken", ""))
        end, prefix = query.get("endOffset"), query.get("prefix", "")
        with bucket.mutex:
            names = sorted(
                name
                for name in bucket.objects
                if name >= start and name.startswith(prefix) and (end is None or name < end)
            )
        content: dict[str, Any] = {"items": [{"name": name} for name in names[:PAGE]]}
        if len(names) > PAGE:
            content["nextPageToken"] = names[PAGE]
        self._json(HTTPStatus.OK, content)

    def do_POST(self) -> None:
        """An upload."""
        bucket = self.server.bucket
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            _, query = self._asked("/upload")
        except KeyError as error:
            return self._error(HTTPStatus.NOT_FOUND, str(error))
        name = query["name"]
        with bucket.mutex:
            if not bucket.matches(name, query):
                return self._error(HTTPStatus.PRECONDITION_FAILED, "conditionNotMet")
            generation = next(bucket.generations)
            bucket.objects[name] = (data, generation)
        return self._json(HTTPStatus.OK, {"name": name, "generation": str(generation)})

    def do_DELETE(self) -> None:
        """One object."""
        bucket = self.server.bucket
        name, query = self._asked("")
        assert name is not None
        with bucket.mutex:
            if name not in bucket.objects:
                return self._error(HTTPStatus.NOT_FOUND, f"No such object: bucket/{name}")
            if not bucket.matches(name, query):
                return self._error(HTTPStatus.PRECONDITION_FAILED, "conditionNotMet")
            del bucket.objects[name]
        return self._answer(HTTPStatus.NO_CONTENT)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bucket = Bucket()


def fake() -> Iterator[str]:
    """The endpoint of a fake, for as long as it is used."""
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
