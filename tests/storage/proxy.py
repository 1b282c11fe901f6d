"""A proxy before an object store that does what networks and bad stores do."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_ELSEWHERE = (  # as Amazon answers
    b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is "
    b"malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'</Message>"
    b"<Region>eu-west-1</Region></Error>"
)
_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length"})

FAULTS = ("reset", "503", "hang", "trickle", "lost", "403")


class Asked(NamedTuple):
    """A request: put, get, list or delete, and the key or query."""

    kind: str
    path: str


class Proxy:
    """Forwards to `endpoint`; `fault` says what happens to a request, None if nothing does.

    "reset": no answer, and nothing is forwarded; "503", "403" and "region": the store's errors;
    "hang": nothing ever comes; "trickle": the answer comes a byte at a time; "lost": it is
    forwarded, and the answer is not given. `after` is called before an answer is given.
    `strip`: headers that the store is not told of. `ceph`: refuse every condition on what is
    there.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urllib.parse.urlsplit(endpoint)
        self.backend = (parts.hostname or "", parts.port or 80)
        self.fault: Callable[[Asked], str | None] = lambda _: None
        self.after: Callable[[Asked], object] = lambda _: None
        self.strip: frozenset[str] = frozenset()
        self.ceph = False
        self.asked: list[Asked] = []
        self.ended = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is several small packets
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # of the base class
        """Say nothing."""

    def _handle(self) -> None:
        proxy = self.server.proxy
        length = int(self.headers.get("Content-Length", 0))
        with contextlib.suppress(ConnectionError):
            data = self.rfile.read(length)
            asked = self._asked()
            proxy.asked.append(asked)
            self._answer(asked, proxy.fault(asked), data)

    do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = _handle  # noqa: N815  # of the base class

    def _asked(self) -> Asked:
        parts = urllib.parse.urlsplit(self.path)
        listing = "list-type" in parts.query or parts.path.endswith("/o")
        kinds = {"PUT": "put", "POST": "put", "DELETE": "delete"}
        kind = kinds.get(self.command, "list" if listing else "get")
        return Asked(kind, urllib.parse.unquote(self.path))

    def _answer(self, asked: Asked, fault: str | None, data: bytes) -> None:
        if fault == "hang":
            self.server.proxy.ended.wait()
            fault = "reset"
        if fault == "reset":
            self._reset()
            return
        if fault == "503":
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, [], _BUSY)
            return
        if fault == "403":
            self._send(HTTPStatus.FORBIDDEN, [], _DENIED)
            return
        if fault == "region":
            self._send(HTTPStatus.BAD_REQUEST, [], _ELSEWHERE)
            return
        status, headers, found = self._forward(data)
        self.server.proxy.after(asked)
        if fault == "lost":
            self._reset()
            return
        self._send(status, headers, found, trickle=fault == "trickle")

    def _forward(self, data: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        proxy = self.server.proxy
        headers = {k: v for k, v in self.headers.items() if k.lower() not in proxy.strip}
        if proxy.ceph and "If-Match" in self.headers:
            headers["If-Match"] = '"none"'
        connection = http.client.HTTPConnection(*proxy.backend, timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body=data, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _send(
        self, status: int, headers: list[tuple[str, str]], data: bytes, *, trickle: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not trickle:
            self.wfile.write(data)
            return
        for byte in data:
            self.wfile.write(bytes([byte]))
            if self.server.proxy.ended.wait(0.05):
                return

    def _reset(self) -> None:
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever hung up is not told."""


@contextlib.contextmanager
def before(endpoint: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy before a store, and its endpoint."""
    proxy = Proxy(endpoint)
    with _Server(proxy) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            proxy.ended.set()
            server.shutdown()
            thread.join()
