"""Requests that the guard before Dagster's web server lets through and refuses;
served/test_hostile.py asks a real browser."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Router

from pipeline.board.local_server import Guard
from pipeline.defs.ui import Reports, find_refusal

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


LET_THROUGH = (
    request(),  # a program
    request(("sec-fetch-site", "none")),  # a typed address
    request(SAME, path="/runs", query="query=x"),
    request(SAME, path="/graphql"),  # the page of GraphiQL
    post(JSON, OWN, SAME, query="op=Runs"),
    post(("content-type", "application/json; charset=utf-8")),
    request(("origin", "http://localhost:80"), SAME, host="localhost:80"),  # a tunnel by ssh
    request(host="localhost"),
    websocket(OWN),
    websocket(),
)


def test_the_ui_and_local_programs_are_let_through() -> None:
    assert [find_refusal(scope) for scope in LET_THROUGH] == [""] * len(LET_THROUGH)


HOSTS = """evil.test:3000 127.0.0.1.evil.test:3000 localhost.:3000 127.0.0.1:3000:80 localhost:
    127.0.0.1@evil.test:3000 [::1]:3000 0.0.0.0:3000 127.0.0.1:x 127.1"""
ORIGINS = """http://evil.test:3000 null http://127.0.0.1:8000 http://localhost:3000
    https://127.0.0.1:3000 http://127.0.0.1:3000.evil.test http://127.0.0.1:3000/ file://"""
SITES = ("cross-site", "same-site", "", "Same-Origin", "same-origin, cross-site")


def test_foreign_hosts_origins_and_sites_are_refused() -> None:
    for host in (*HOSTS.split(), ""):
        for scope in (request(host=host), websocket(host=host), request(("host", host))):
            assert "host" in find_refusal(scope), host
    for origin in (*ORIGINS.split(), ""):
        header = ("origin", origin)
        forged = post(header, path="/report_asset_materialization/positions")
        for scope in (request(OWN, header), post(JSON, SAME, header), forged, websocket(header)):
            assert "origin" in find_refusal(scope), origin
    for site in SITES:
        header = ("sec-fetch-site", site)
        head = request(header, method="HEAD")
        for scope in (request(header), head, request(SAME, header), websocket(OWN, header)):
            assert "site" in find_refusal(scope), site


TYPES = """,text/plain,text/plain; application/json,application/x-www-form-urlencoded
multipart/form-data; boundary=application/json,application/graphql,application/jsonx
application/json|text/plain,text/plain| application/json""".replace("\n", ",").split(",")
"""Types that a page of another site may send, and that Dagster reads as JSON if the word is in
them."""


def test_graphql_is_executed_by_post_of_json_alone() -> None:
    """Old browsers send neither `Origin` nor `Sec-Fetch-Site` with the GET of an image."""
    for query in ("query=mutation{x}", "a=b&query=", "%71uery=x", "query"):
        for path in ("/graphql", "/graphql\n", "//graphql", "/graphql/", "/GraphQL", "/x/graphql"):
            for method in ("GET", "HEAD", "POST"):
                refusal = find_refusal(request(JSON, method=method, path=path, query=query))
                assert "in the URL" in refusal, (path, method)
    for types in TYPES:
        headers = [("content-type", kind) for kind in types.split("|") if kind]
        assert "application/json" in find_refusal(post(*headers)), types


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
    secrets = ("../secret", "a b/../../secret", "/etc/passwd", "a b/link", "..\\secret")
    for path in (*secrets, "a b", ""):
        with pytest.raises(HTTPException) as refused:
            answer(request(SAME, path=f"/reports/{path}"), served)
        assert refused.value.status_code in (403, 404), path
    with pytest.raises(HTTPException) as refused:
        answer(post(SAME, OWN, path="/reports/a b/report.html"), served)
    assert refused.value.status_code == 405
