"""What the guard before Dagster's web server lets through and refuses; served/test_hostile.py asks
a real browser."""

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


def request(
    *headers: Header, method: str = "GET", path: str = "/", query: str = "", host: str = HOST
) -> dict[str, Any]:
    """Build the ASGI scope of a request."""
    fields = [("host", host), *headers] if host else list(headers)
    encoded = [(name.encode(), value.encode()) for name, value in fields]
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": encoded,
    }


def websocket(*headers: Header, host: str = HOST) -> dict[str, Any]:
    return request(*headers, path="/graphql", host=host) | {"type": "websocket"}


SAME = ("sec-fetch-site", "same-origin")
OWN = ("origin", f"http://{HOST}")


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(request(), id="a program"),
        pytest.param(request(("sec-fetch-site", "none")), id="a typed address"),
        pytest.param(
            request(SAME, path="/runs", query="query=x"), id="a page with a query of its own"
        ),
        pytest.param(request(SAME, path="/graphql"), id="the page of GraphiQL"),
        pytest.param(
            request(JSON, OWN, SAME, method="POST", path="/graphql", query="op=Runs"),
            id="the UI's query",
        ),
        pytest.param(
            request(
                ("content-type", "application/json; charset=utf-8"), method="POST", path="/graphql"
            ),
            id="curl",
        ),
        pytest.param(request(OWN, SAME, host="127.0.0.1:3000"), id="the address"),
        pytest.param(
            request(("origin", "http://localhost:8080"), SAME, host="localhost:8080"),
            id="a tunnel by ssh",
        ),
        pytest.param(request(host="localhost"), id="port 80"),
        pytest.param(websocket(OWN), id="the UI's websocket"),
        pytest.param(websocket(), id="a program's websocket"),
    ],
)
def test_the_ui_and_local_programs_are_let_through(scope: dict[str, Any]) -> None:
    assert find_refusal(scope) == ""


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.test:3000",
            "127.0.0.1.evil.test:3000",
            "evil.test",
            "",
            "localhost.:3000",
            "127.0.0.1:3000:80",
        ),
        *(
            "localhost:",
            "127.0.0.1@evil.test:3000",
            "[::1]:3000",
            "0.0.0.0:3000",
            "127.0.0.2:3000",
            "127.0.0.1:x",
            "127.1",
        ),
    ],
)
def test_a_foreign_host_is_refused(host: str) -> None:
    assert "host" in find_refusal(request(host=host))
    assert "host" in find_refusal(websocket(host=host))


def test_two_hosts_are_refused() -> None:
    assert "host" in find_refusal(request(("host", HOST)))
    assert "host" in find_refusal(request(("host", "evil.test")))


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "http://evil.test",
            "http://evil.test:3000",
            "null",
            "",
            "http://127.0.0.1:8000",
            "http://localhost:3000",
        ),
        *(
            "https://127.0.0.1:3000",
            "http://127.0.0.1:3000.evil.test",
            "http://127.0.0.1:3000/",
            "file://",
            "http://127.0.0.1",
        ),
    ],
)
def test_a_foreign_origin_is_refused(origin: str) -> None:
    for scope in (
        request(("origin", origin)),
        request(OWN, ("origin", origin)),
        request(JSON, SAME, ("origin", origin), method="POST", path="/graphql"),
        request(("origin", origin), method="POST", path="/report_asset_materialization/positions"),
        websocket(("origin", origin)),
    ):
        assert "origin" in find_refusal(scope)


@pytest.mark.parametrize(
    "site", ["cross-site", "same-site", "", "Same-Origin", "same-origin, cross-site"]
)
def test_a_foreign_site_is_refused(site: str) -> None:
    for method in ("GET", "HEAD", "POST", "OPTIONS"):
        assert "site" in find_refusal(request(("sec-fetch-site", site), method=method))
    assert "site" in find_refusal(request(SAME, ("sec-fetch-site", site)))
    assert "site" in find_refusal(websocket(OWN, ("sec-fetch-site", site)))


@pytest.mark.parametrize(
    "path", ["/graphql", "/graphql\n", "//graphql", "/graphql/", "/GraphQL", "/x/graphql"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("query", ["query=mutation{x}", "a=b&query=", "%71uery=x", "query"])
def test_graphql_in_the_address_is_refused_whoever_asks(path: str, method: str, query: str) -> None:
    """Old browsers send neither `Origin` nor `Sec-Fetch-Site` with the GET of an image."""
    assert "address" in find_refusal(request(JSON, method=method, path=path, query=query))


@pytest.mark.parametrize(
    "types",
    [
        [],
        ["text/plain"],
        ["text/plain; application/json"],
        ["application/x-www-form-urlencoded"],
        ["multipart/form-data; boundary=application/json"],
        ["application/graphql"],
        ["application/jsonx"],
        ["application/json", "text/plain"],
        ["text/plain, application/json"],
    ],
)
def test_graphql_by_post_is_json_alone(types: list[str]) -> None:
    """A page of another site may send the types that Dagster's server reads as JSON because the
    word stands in them."""
    headers = [("content-type", kind) for kind in types]
    assert "application/json" in find_refusal(request(*headers, method="POST", path="/graphql"))


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


def test_pages_are_framed_by_none_but_the_ui() -> None:
    (start, body), calls = answer(request())
    assert (start["status"], body["body"], calls) == (200, b"page", 1)
    assert (b"x-frame-options", b"SAMEORIGIN") in start["headers"]


def test_reports_are_read_only_and_run_no_scripts(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    folder = tmp_path / "reports" / "a b"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<script>alert(1)</script>")
    (folder / "link").symlink_to(tmp_path / "secret")
    served = Router([Mount("/reports", Reports(directory=tmp_path / "reports"))])
    (start, *_), _ = answer(request(SAME, path="/reports/a b/report.html"), served)
    headers = dict(start["headers"])
    assert (start["status"], headers[b"content-security-policy"][:18]) == (
        200,
        b"default-src 'none'",
    )
    assert (headers[b"x-content-type-options"], headers[b"x-frame-options"]) == (
        b"nosniff",
        b"SAMEORIGIN",
    )
    for path in (
        "../secret",
        "a b/../../secret",
        "/etc/passwd",
        "a b/link",
        "a b",
        "",
        "..\\secret",
    ):
        with pytest.raises(HTTPException) as refused:
            answer(request(SAME, path=f"/reports/{path}"), served)
        assert refused.value.status_code in (403, 404), path
    with pytest.raises(HTTPException) as refused:
        answer(request(SAME, OWN, path="/reports/a b/report.html", method="POST"), served)
    assert refused.value.status_code == 405
    (start, *_), calls = answer(
        request(("sec-fetch-site", "cross-site"), path="/reports/a b/report.html")
    )
    assert (start["status"], calls) == (403, 0)


def test_the_servers_own_start_and_end_pass() -> None:
    assert answer({"type": "lifespan"}) == ([], 1)
