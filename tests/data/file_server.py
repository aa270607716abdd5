"""A web server on 127.0.0.1 that fails as told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Offer:
    """A file on the server, and what goes wrong with it."""

    content: bytes
    statuses: list[int] = field(default_factory=list)  # answers before the file itself is given
    stops: list[int] = field(default_factory=list)  # bytes after which the first transfers are cut
    tells_length: bool = True


class FileServer:
    """Serves `offers` by path; `requests` has the path and the bytes sent of each request."""

    def __init__(self) -> None:
        self.offers: dict[str, Offer] = {}
        self.requests: list[tuple[str, int]] = []
        self.address = ""

    def url(self, path: str, content: bytes, **faults: object) -> str:
        self.offers[path] = Offer(content, **faults)  # type: ignore[arg-type]
        return f"{self.address}/{path}"


@contextmanager
def serving() -> Iterator[FileServer]:
    files = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server calls it so
            path = self.path.removeprefix("/")
            offer = files.offers.get(path)
            if offer is None or offer.statuses:
                files.requests.append((path, 0))
                self.send_error(404 if offer is None else offer.statuses.pop(0))
                return
            body = offer.content
            self.send_response(200)
            if offer.tells_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            sent = body[: offer.stops.pop(0)] if offer.stops else body
            files.requests.append((path, len(sent)))  # first: who has the last byte may look at once
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
