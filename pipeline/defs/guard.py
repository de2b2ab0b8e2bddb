"""ASGI middleware before Dagster's web server: requests that another web page made are refused.

Dagster's web server runs GraphQL mutations that come by GET, and reads neither `Origin` nor `Host`, so any page that is open
in a browser on this machine could launch runs (docs/dagster-csrf.md). The UI itself needs none of what is refused here.
"""

from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = ("127.0.0.1", "localhost")
"""Host names that the UI answers to. With any other, a name of the attacker's may point at this machine (DNS rebinding)."""
OWN_PAGES = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` for requests of the UI itself, and for addresses that the user typed."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
"""Content-Security-Policy of reports."""
POLICY_VIOLATION = 1008
"""Code of RFC 6455 to close a websocket with; before the handshake it becomes the status 403."""


class Reports(StaticFiles):
    """The folder of reports, to be read; its pages run no scripts and load nothing, whatever they contain."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return a file with the headers that say so."""
        response = super().file_response(*args, **options)
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


class Guard:
    """Pass on the requests of the UI's own pages and of local programs; answer all others with 403."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif reason := find_refusal(scope):
            await _refuse(reason, scope, receive, send)
        else:
            await self.app(scope, receive, _forbid_framing(send))


def find_refusal(scope: Scope) -> str:
    """Return why a request or a websocket is refused, or "" if it is not.

    Programs other than browsers send neither `Origin` nor `Sec-Fetch-Site`, and are let in: they run on this machine.
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
    if scope["type"] == "http" and "graphql" in scope["path"].lower():
        return _refuse_graphql(scope["method"], headers.getlist("content-type"), scope["query_string"])
    return ""


def _refuse_graphql(method: str, types: list[str], query: bytes) -> str:
    """Return why a GraphQL request is refused: the UI sends its queries as JSON by POST, never in the address.

    No page of another origin can send JSON without asking the server first (CORS), which Dagster's never allows.
    """
    if "query" in parse_qs(query.decode("latin-1"), keep_blank_values=True):
        return "GraphQL in the address is not executed: send it as JSON by POST"
    if method == "POST" and [kind.partition(";")[0].strip().lower() for kind in types] != ["application/json"]:
        return "GraphQL by POST must be application/json"
    return ""


async def _refuse(reason: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request with 403, or a websocket before its handshake."""
    if scope["type"] == "http":
        page = f'<!doctype html><title>Refused</title><p>Refused: {reason}.</p><p><a href="/">Open the UI</a></p>'
        await HTMLResponse(page, status_code=403)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})


def _forbid_framing(send: Send) -> Send:
    """Add the header that keeps other sites from showing a page in a frame, for browsers without `Sec-Fetch-Site`."""

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
        await send(message)

    return send_with_header
