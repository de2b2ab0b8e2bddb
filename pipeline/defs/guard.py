"""ASGI middleware before Dagster's web server: requests that another web page made are refused.

Dagster's web server does not check where a request comes from, so any page that is open in a
browser on this machine could launch runs. The UI itself needs none of what is refused here.
"""

from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pipeline.board.local_server import refuse_foreign

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'"
)
"""Content-Security-Policy of reports."""


class Reports(StaticFiles):
    """Serve the folder of reports, whose pages may neither run scripts nor load anything."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return a file with the headers that say so."""
        response = super().file_response(*args, **options)
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def find_refusal(scope: Scope) -> str:
    """Return why a request or a websocket is refused, or "" if it is not."""
    if reason := refuse_foreign(scope):
        return reason
    if scope["type"] == "http" and "graphql" in scope["path"].lower():
        types = Headers(scope=scope).getlist("content-type")
        return _refuse_graphql(scope["method"], types, scope["query_string"])
    return ""


def _refuse_graphql(method: str, types: list[str], query: bytes) -> str:
    """Return why a GraphQL request is refused: only JSON by POST is executed.

    No page of another origin can send JSON without asking the server first (CORS), which Dagster's
    never allows.
    """
    if "query" in parse_qs(query.decode("latin-1"), keep_blank_values=True):
        return "GraphQL in the address is not executed: send it as JSON by POST"
    if method == "POST" and [kind.partition(";")[0].strip().lower() for kind in types] != [
        "application/json"
    ]:
        return "GraphQL by POST must be application/json"
    return ""
