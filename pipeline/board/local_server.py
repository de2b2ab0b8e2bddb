"""Bind a port, by default on 127.0.0.1, and refuse requests from other web pages.

Any page open in a browser on this machine can send requests to a local port, and an attacker's
DNS name may resolve to 127.0.0.1.
"""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import UserError

HOST = "127.0.0.1"
LOCAL_NAMES = (HOST, "localhost")
"""Accepted host names. Another name may be an attacker's that resolves here (DNS rebinding)."""
OWN_PAGES = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` of the server's own pages and of typed addresses."""
NO_FRAMES = {"X-Frame-Options": "SAMEORIGIN"}
"""Header that keeps other sites from framing a page, in browsers without `Sec-Fetch-Site`."""
POLICY_VIOLATION = 1008
"""RFC 6455's code for closing a websocket; before the handshake it becomes status 403."""


def explain_refusal(scope: Scope) -> str:
    """Return why a request or a websocket is refused, or "" if it is allowed.

    Programs other than browsers send neither `Origin` nor `Sec-Fetch-Site`, and are accepted: they
    run on this machine.
    """
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    host = hosts[0] if len(hosts) == 1 else ""
    name, _, port = host.partition(":")
    if name.lower() not in LOCAL_NAMES or not (port.isdecimal() or ":" not in host):
        return f"the host must be {' or '.join(LOCAL_NAMES)}"
    if any(origin != f"http://{host}" for origin in headers.getlist("origin")):
        return "the request comes from a page of another origin"
    if any(site not in OWN_PAGES for site in headers.getlist("sec-fetch-site")):
        return "the request comes from a page of another site"
    return ""


class Guard:
    """ASGI middleware that answers refused requests with 403 and adds headers to the others."""

    def __init__(
        self,
        app: ASGIApp,
        refuse: Callable[[Scope], str] = explain_refusal,
        headers: Mapping[str, str] = NO_FRAMES,
    ) -> None:
        self.app, self.refuse, self.headers = app, refuse, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif reason := self.refuse(scope):
            await _refuse(reason, scope, receive, send)
        else:
            await self.app(scope, receive, self._add_headers(send))

    def _add_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        return send_with_headers


async def _refuse(reason: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request with 403, or a websocket before its handshake."""
    if scope["type"] == "http":
        link = '<p><a href="/">Open the UI</a></p>'
        page = f"<!doctype html><title>Refused</title><p>Refused: {reason}.</p>{link}"
        await HTMLResponse(page, status_code=403)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})


@contextmanager
def listen(port: int, hint: str, host: str = HOST) -> Iterator[socket.socket]:
    """Yield a socket that listens on a port; raise UserError, which ends with `hint`, on failure.

    Use another `host` than HOST only in containers. Requests must still name one of LOCAL_NAMES.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            # a second server then fails here even while this one is loading
            listener.listen()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "ports range from 0 to 65535"
            raise UserError(
                f"port {port} of {host}: {reason}; choose another with {hint}"
            ) from error
        yield listener
