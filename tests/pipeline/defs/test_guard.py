"""Requests that the guard before Dagster's web server lets through and refuses;
served/test_hostile.py asks a real browser."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Router

from pipeline.board.local_server import Guard
from pipeline.defs.guard import Reports, find_refusal

HOST = "127.0.0.1:3000"
Header = tuple[str, str]
JSON = ("content-type", "application/json")
SAME = ("sec-fetch-site", "same-origin")
OWN = ("origin", f"http://{HOST}")


def request(
    *headers: Header, method: str = "GET", path: str = "/", query: str = "", host: str = HOST
) -> dict[str, Any]:
    """Build the ASGI scope of a request."""
    fields = [("host", host), *headers] if host else list(headers)
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in fields],
    }


def websocket(*headers: Header, host: str = HOST) -> dict[str, Any]:
    return request(*headers, path="/graphql", host=host) | {"type": "websocket"}


def post(*headers: Header, path: str = "/graphql", **more: str) -> dict[str, Any]:
    return request(*headers, method="POST", path=path, **more)


LET_THROUGH = {
    "a program": request(),
    "a typed address": request(("sec-fetch-site", "none")),
    "a page with a query of its own": request(SAME, path="/runs", query="query=x"),
    "the page of GraphiQL": request(SAME, path="/graphql"),
    "the UI's query": post(JSON, OWN, SAME, query="op=Runs"),
    "curl": post(("content-type", "application/json; charset=utf-8")),
    "a tunnel by ssh": request(("origin", "http://localhost:80"), SAME, host="localhost:80"),
    "port 80": request(host="localhost"),
    "the UI's websocket": websocket(OWN),
    "a program's websocket": websocket(),
}


@pytest.mark.parametrize("name", LET_THROUGH)
def test_the_ui_and_local_programs_are_let_through(name: str) -> None:
    assert find_refusal(LET_THROUGH[name]) == ""


HOSTS = """evil.test:3000 127.0.0.1.evil.test:3000 evil.test localhost.:3000 127.0.0.1:3000:80
    localhost: 127.0.0.1@evil.test:3000 [::1]:3000 0.0.0.0:3000 127.0.0.2:3000 127.0.0.1:x 127.1"""
ORIGINS = """http://evil.test http://evil.test:3000 null http://127.0.0.1:8000 http://localhost:3000
    https://127.0.0.1:3000 http://127.0.0.1:3000.evil.test http://127.0.0.1:3000/ file://
    http://127.0.0.1"""


@pytest.mark.parametrize("host", [*HOSTS.split(), ""])
def test_a_foreign_host_is_refused_and_so_are_two(host: str) -> None:
    assert "host" in find_refusal(request(host=host))
    assert "host" in find_refusal(websocket(host=host))
    assert "host" in find_refusal(request(("host", host)))
    assert "host" in find_refusal(request(("host", HOST)))


@pytest.mark.parametrize("origin", [*ORIGINS.split(), ""])
def test_a_foreign_origin_is_refused(origin: str) -> None:
    header = ("origin", origin)
    for scope in (
        request(header),
        request(OWN, header),
        post(JSON, SAME, header),
        post(header, path="/report_asset_materialization/positions"),
        websocket(header),
    ):
        assert "origin" in find_refusal(scope)


@pytest.mark.parametrize(
    "site", ["cross-site", "same-site", "", "Same-Origin", "same-origin, cross-site"]
)
def test_a_foreign_site_is_refused(site: str) -> None:
    header = ("sec-fetch-site", site)
    for method in ("GET", "HEAD", "POST", "OPTIONS"):
        assert "site" in find_refusal(request(header, method=method))
    assert "site" in find_refusal(request(SAME, header))
    assert "site" in find_refusal(websocket(OWN, header))


@pytest.mark.parametrize("query", ["query=mutation{x}", "a=b&query=", "%71uery=x", "query"])
def test_graphql_in_the_address_is_refused_whoever_asks(query: str) -> None:
    """Old browsers send neither `Origin` nor `Sec-Fetch-Site` with the GET of an image."""
    for path in ("/graphql", "/graphql\n", "//graphql", "/graphql/", "/GraphQL", "/x/graphql"):
        for method in ("GET", "HEAD", "POST"):
            refusal = find_refusal(request(JSON, method=method, path=path, query=query))
            assert "address" in refusal, (path, method)


TYPES = """
text/plain
text/plain; application/json
application/x-www-form-urlencoded
multipart/form-data; boundary=application/json
application/graphql
application/jsonx
application/json|text/plain
text/plain, application/json
"""


@pytest.mark.parametrize("types", TYPES.splitlines())
def test_graphql_by_post_is_json_alone(types: str) -> None:
    """A page of another site may send the types that Dagster's server reads as JSON because the
    word stands in them."""
    headers = [("content-type", kind) for kind in types.split("|") if kind]
    assert "application/json" in find_refusal(post(*headers))


def answer(scope: dict[str, Any], guarded: Any = None) -> tuple[list[dict[str, Any]], int]:
    """Call a guarded application; return its messages, and how often the application behind the
    guard was called."""
    calls, messages = [], []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["type"])
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"page"})

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(Guard(guarded or application, find_refusal)(scope, receive, send))
    return messages, len(calls)


def test_a_refused_request_does_not_reach_the_application() -> None:
    (start, body), calls = answer(request(("sec-fetch-site", "cross-site"), path="/<script>"))
    assert (start["status"], calls) == (403, 0)
    assert b"<script>" not in body["body"]
    (close,), calls = answer(websocket(("origin", "http://evil.test")))
    assert (close["type"], close["code"], calls) == ("websocket.close", 1008, 0)
    (start, body), calls = answer(request())
    assert (start["status"], body["body"], calls) == (200, b"page", 1)
    assert (b"x-frame-options", b"SAMEORIGIN") in start["headers"], "framed by none but the UI"
    assert answer({"type": "lifespan"}) == ([], 1)


def test_reports_are_read_only_and_run_no_scripts(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    folder = tmp_path / "reports" / "a b"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<script>alert(1)</script>")
    (folder / "link").symlink_to(tmp_path / "secret")
    served = Router([Mount("/reports", Reports(directory=tmp_path / "reports"))])
    (start, *_), _ = answer(request(SAME, path="/reports/a b/report.html"), served)
    headers = dict(start["headers"])
    assert start["status"] == 200
    assert headers[b"content-security-policy"].startswith(b"default-src 'none'")
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"x-frame-options"] == b"SAMEORIGIN"
    secrets = ("../secret", "a b/../../secret", "/etc/passwd", "a b/link", "..\\secret")
    for path in (*secrets, "a b", ""):
        with pytest.raises(HTTPException) as refused:
            answer(request(SAME, path=f"/reports/{path}"), served)
        assert refused.value.status_code in (403, 404), path
    with pytest.raises(HTTPException) as refused:
        answer(post(SAME, OWN, path="/reports/a b/report.html"), served)
    assert refused.value.status_code == 405
