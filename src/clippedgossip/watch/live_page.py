"""The page over HTTP: read-only, on loopback unless told otherwise, and then only with a token.

Another site's script can reach a server on loopback. It cannot read an answer, since no answer allows other
origins; and a name of its own that it points at this machine (DNS rebinding) is refused by the Host header.
"""

import asyncio
import errno
import hmac
import ipaddress
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from clippedgossip.errors import UserError
from clippedgossip.records import RunDirectory
from clippedgossip.watch.watched import Watched

PORT = 8420
CONNECTIONS = 64
"""At once that are answered; others get 503."""
SILENCE = 10.0
"""Seconds that a connection may last without a whole request."""
_SHORTEST_TOKEN = 16
_FILES = {
    "/": ("live.html", "text/html"),
    "/live.css": ("live.css", "text/css"),
    "/live.js": ("live.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Door:
    """Where the page is, and what a request must bring."""

    host: str
    port: int
    token: str = ""

    @property
    def url(self) -> str:
        """To open in a browser on this machine."""
        host = "localhost" if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def cookie(self) -> str:
        return f"clippedgossip-{self.port}"

    def knows(self, host: str) -> bool:
        """Whether a Host header names this machine. A number is no name that could be pointed elsewhere."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        if name in ("localhost", self.host.lower()):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return bool(self.token) and name in {socket.gethostname().lower(), socket.getfqdn().lower()}
        return bool(self.token) or address.is_loopback

    def opens(self, said: str) -> bool:
        return hmac.compare_digest(said.encode(), self.token.encode())


class Guard:
    """Looks at each request before anything answers it, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        answer = self._refusal(HTTPConnection(scope), scope["method"])
        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, request: HTTPConnection, method: str) -> Response | None:
        if not self._door.knows(request.headers.get("host", "")):
            return PlainTextResponse("Not a name of this page; try the machine's IP address.\n", 421)
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("This page is read-only.\n", 405, {"Allow": "GET, HEAD"})
        if not self._door.token or self._door.opens(request.cookies.get(self._door.cookie, "")):
            return None
        if request.url.path == "/" and self._door.opens(request.query_params.get("token", "")):
            answer = RedirectResponse("/", 303)  # so that the token leaves the address line
            answer.set_cookie(self._door.cookie, self._door.token, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse(
            "Open the address that `--watch` or `peer watch` printed, with its token.\n", 403
        )


def application(watched: Watched, door: Door) -> Starlette:
    """The page, its two files, and the state that it asks for."""

    def state(request: Request) -> Response:
        return JSONResponse(watched.state(request.query_params.get("node", "")[:64]))

    def static(path: str) -> Route:
        name, kind = _FILES[path]
        content = (files("clippedgossip.watch") / name).read_bytes()
        return Route(path, lambda request: Response(content, media_type=kind))

    return Starlette(
        routes=[*map(static, _FILES), Route("/state", state)],
        middleware=[Middleware(Guard, door=door), Middleware(GZipMiddleware)],
    )


def watched_in(folders: list[Path]) -> Watched:
    """What there is to watch in some folders: peers, networks of peers, or one run."""
    if len(folders) == 1 and (folders[0] / "config.json").is_file():
        from clippedgossip.own import only_reading
        from clippedgossip.runs.config import NetworkConfig
        from clippedgossip.watch.watched_run import WatchedRun

        run, network = RunDirectory(folders[0]), None
        with suppress(UserError, KeyError), only_reading():  # that of `cg.train` is in no file
            network = NetworkConfig.from_value(run.config["network"], run.path).build()
        return WatchedRun(run, run.config, network)
    from clippedgossip.watch.watched_peers import WatchedPeers

    return WatchedPeers(folders)


class Connection(H11Protocol):
    """Ended when it has asked nothing for a while: uvicorn would wait for a whole request for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > 2 * CONNECTIONS:  # up to that, a request is answered with 503
            transport.abort()
        self.loop.call_later(SILENCE, self._look, None)

    def _look(self, before: object) -> None:
        if self.cycle is before and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(SILENCE, self._look, self.cycle)


class Server:
    """A socket that is bound before anything is promised, and uvicorn on it."""

    def __init__(
        self, watched: Watched, *, host: str = "127.0.0.1", port: int | None = None, token: str = ""
    ) -> None:
        """Without a `port`, 8420, or a free one where that is taken. Elsewhere than on loopback there is
        always a token: the one given, or a new one."""
        if token and len(token) < _SHORTEST_TOKEN:
            raise UserError(
                f"the token has {len(token)} characters\ntake at least {_SHORTEST_TOKEN}, or none"
            )
        self._watched = watched
        self._socket = _bind(host, port)
        token = token or ("" if _is_loopback(host) else secrets.token_urlsafe(24))
        self.door = Door(host, self._socket.getsockname()[1], token)
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(watched, self.door),
                log_level="critical",
                access_log=False,
                lifespan="off",
                ws="none",
                http=Connection,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS,
                h11_max_incomplete_event_size=16 << 10,
                timeout_graceful_shutdown=1,
            )
        )

    def run(self) -> None:
        """Serves until Ctrl-C or SIGTERM."""
        self._server.run(sockets=[self._socket])

    @contextmanager
    def beside(self, patience: float = 2.5) -> Iterator[None]:
        """Serves in a thread while the block runs, and at most `patience` seconds longer, until a page that
        is open has asked once more: so it shows the end."""
        print(f"live page: {self.door.url}", file=sys.stderr)
        thread = threading.Thread(target=self.run, name="live page", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended = time.monotonic()
            while ended - 3 < self._watched.asked < ended + 0.6 and time.monotonic() < ended + patience:
                time.sleep(0.05)
            self._server.should_exit = True
            thread.join(3)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int | None) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family)
    except (OSError, UnicodeError, OverflowError) as error:
        raise UserError(f"cannot listen on {host!r}: {error}\ngive an address of this machine") from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for wanted in (port,) if port is not None else (PORT, 0):
        try:
            bound.bind((address[0], wanted, *address[2:]))
            bound.listen()
            return bound
        except OSError as error:
            why, taken = error.strerror, error.errno == errno.EADDRINUSE
    bound.close()
    fix = "--port 0 takes a free one" if taken else "give an address of this machine, and a port above 1023"
    raise UserError(f"cannot listen on {host}, port {wanted}: {why}\n{fix}")
