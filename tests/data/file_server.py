"""A web server on 127.0.0.1 that answers ranges, and fails as told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Offer:
    """A file on the server, and what goes wrong with it."""

    content: bytes
    version: str = '"1"'
    statuses: list[int] = field(default_factory=list)  # answers before the file itself is given
    stops: list[int] = field(default_factory=list)  # bytes after which the first transfers are cut
    answers_ranges: bool = True
    tells_length: bool = True


class FileServer:
    """Serves `offers` by path; `requests` has the path, Range and bytes sent of each request."""

    def __init__(self) -> None:
        self.offers: dict[str, Offer] = {}
        self.requests: list[tuple[str, str | None, int]] = []
        self.address = ""

    def url(self, path: str, content: bytes, **faults: object) -> str:
        self.offers[path] = Offer(content, **faults)  # type: ignore[arg-type]
        return f"{self.address}/{path}"

    @property
    def ranges(self) -> list[str | None]:
        return [asked for _, asked, _ in self.requests]


@contextmanager
def serving() -> Iterator[FileServer]:
    files = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server calls it so
            path, asked = self.path.removeprefix("/"), self.headers.get("Range")
            offer = files.offers.get(path)
            if offer is None or offer.statuses:
                files.requests.append((path, asked, 0))
                self.send_error(404 if offer is None else offer.statuses.pop(0))
                return
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and offer.answers_ranges else 0
            if self.headers.get("If-Range", offer.version) != offer.version:
                start = 0
            if start and start >= len(offer.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(offer.content)}")
                self.send_header("Content-Length", "0")
                files.requests.append((path, asked, 0))
                self.end_headers()
                return
            body = offer.content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(offer.content) - 1}/{len(offer.content)}")
            if offer.tells_length:
                self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", offer.version)
            self.end_headers()
            sent = body[: offer.stops.pop(0)] if offer.stops else body
            files.requests.append((path, asked, len(sent)))  # first: who has the last byte may look at once
            self.wfile.write(sent)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
