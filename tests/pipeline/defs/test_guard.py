"""Requests that the guard in front of Dagster's web server allows and refuses.

served/test_hostile.py sends them from a real browser.
"""

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from pipeline.board.local_server import Guard
from pipeline.defs.ui import ReportFiles, find_refusal

HOST = "127.0.0.1:3000"
Header = tuple[str, str]
JSON = ("content-type", "application/json")
FROM_UI = ("sec-fetch-site", "same-origin")
OWN_ORIGIN = ("origin", f"http://{HOST}")


def request(
    *headers: Header, method: str = "GET", path: str = "/", query: str = "", host: str = HOST
) -> dict[str, Any]:
    """Build the ASGI scope of a request; an empty host leaves the header out."""
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


ALLOWED = (
    request(),  # from a program on this machine
    request(("sec-fetch-site", "none")),  # from the address bar
    request(FROM_UI, path="/runs", query="query=x"),
    request(FROM_UI, path="/graphql"),  # the page of GraphiQL
    post(JSON, OWN_ORIGIN, FROM_UI, query="op=Runs"),
    post(("content-type", "application/json; charset=utf-8")),
    request(("origin", "http://localhost:80"), FROM_UI, host="localhost:80"),  # an SSH tunnel
    request(host="localhost"),
    websocket(OWN_ORIGIN),
    websocket(),
)


def test_the_ui_and_local_programs_are_allowed() -> None:
    assert [find_refusal(scope) for scope in ALLOWED] == [""] * len(ALLOWED)


BAD_HOSTS = """evil.test:3000 127.0.0.1.evil.test:3000 localhost.:3000 127.0.0.1:3000:80 localhost:
    127.0.0.1@evil.test:3000 [::1]:3000 0.0.0.0:3000 127.0.0.1:x 127.1"""
BAD_ORIGINS = """http://evil.test:3000 null http://127.0.0.1:8000 http://localhost:3000
    https://127.0.0.1:3000 http://127.0.0.1:3000.evil.test http://127.0.0.1:3000/ file://"""
BAD_SITES = ("cross-site", "same-site", "", "Same-Origin", "same-origin, cross-site")


def test_foreign_hosts_origins_and_sites_are_refused() -> None:
    for host in (*BAD_HOSTS.split(), ""):
        for scope in (request(host=host), websocket(host=host), request(("host", host))):
            assert "host" in find_refusal(scope), host
    for origin in (*BAD_ORIGINS.split(), ""):
        header = ("origin", origin)
        forged = post(header, path="/report_asset_materialization/positions")
        for scope in (
            request(OWN_ORIGIN, header),
            post(JSON, FROM_UI, header),
            forged,
            websocket(header),
        ):
            assert "origin" in find_refusal(scope), origin
    for site in BAD_SITES:
        header = ("sec-fetch-site", site)
        head = request(header, method="HEAD")
        for scope in (
            request(header),
            head,
            request(FROM_UI, header),
            websocket(OWN_ORIGIN, header),
        ):
            assert "site" in find_refusal(scope), site


BAD_CONTENT_TYPES = """,text/plain,text/plain; application/json,application/x-www-form-urlencoded
multipart/form-data; boundary=application/json,application/graphql,application/jsonx
application/json|text/plain,text/plain| application/json""".replace("\n", ",").split(",")
"""Content types that other sites may send without asking; Dagster accepts some of them as JSON."""


def test_graphql_must_be_posted_as_json() -> None:
    """This also holds for old browsers, which send no `Origin` or `Sec-Fetch-Site` for an image."""
    for query in ("query=mutation{x}", "a=b&query=", "%71uery=x", "query"):
        for path in ("/graphql", "/graphql\n", "//graphql", "/graphql/", "/GraphQL", "/x/graphql"):
            for method in ("GET", "HEAD", "POST"):
                refusal = find_refusal(request(JSON, method=method, path=path, query=query))
                assert "in the URL" in refusal, (path, method)
    for types in BAD_CONTENT_TYPES:
        headers = [("content-type", kind) for kind in types.split("|") if kind]
        assert "application/json" in find_refusal(post(*headers)), types


def test_a_refused_request_does_not_reach_the_application() -> None:
    calls = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(scope["type"])
        await PlainTextResponse("page")(scope, receive, send)

    client = TestClient(Guard(application, find_refusal), base_url=f"http://{HOST}")
    refused = client.get("/<script>", headers={"sec-fetch-site": "cross-site"})
    assert refused.status_code == 403
    assert "<script>" not in refused.text
    foreign = client.websocket_connect("/", headers={"origin": "http://evil.test"})
    with pytest.raises(WebSocketDisconnect) as closed, foreign:
        pass
    assert (closed.value.code, calls) == (1008, [])
    answer = client.get("/")
    assert (answer.text, calls) == ("page", ["http"])
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"


def test_reports_are_read_only_and_run_no_scripts(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    folder = tmp_path / "reports" / "a b"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<script>alert(1)</script>")
    (folder / "link").symlink_to(tmp_path / "secret")
    reports = Mount("/reports", ReportFiles(directory=tmp_path / "reports"))
    client = TestClient(Starlette(routes=[reports]))
    answer = client.get("/reports/a b/report.html")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    secrets = ("%2e%2e/secret", "a b/%2e%2e/%2e%2e/secret", "%2Fetc%2Fpasswd", "a b/link")
    for path in (*secrets, "..%5Csecret", "a b", ""):
        assert client.get(f"/reports/{path}").status_code in (403, 404), path
    assert client.post("/reports/a b/report.html").status_code == 405
