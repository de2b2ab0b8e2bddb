"""Hostile web pages in a real browser beside a running UI: none launches a run or changes anything.

The pages come from another origin, whose name resolves to this machine, as with DNS rebinding. Each
tries to launch the job `verify`, or to forge a materialization.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import pytest

from pipeline.defs.ui import CODE_LOCATION
from tests.pipeline.defs.conftest import prepared
from tests.pipeline.defs.served.browser import CHROMIUM, FLAGS, MARKS
from tests.pipeline.defs.served.server import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = MARKS
EVIL = ("evil.test", "localhost")
"""Hosts of the hostile server: another site, and the UI's own host with another port, which counts
as the same site."""
FORGED = "/report_asset_materialization/forged"

TAGS = (
    '<img src="{get}"><link rel=prefetch href="{get}"><link rel=preload as=fetch href="{get}">',
    '<iframe src="{get}"></iframe><object data="{get}"></object><embed src="{get}">',
    '<img src="/redirect?to={quoted}">',
    '<form method=post action="/redirect?to={quoted}"></form>{submit}',
    '<form method=post action="{get}"><input name=query value="{html}"></form>{submit}',
    '<form method=post enctype=text/plain action="{graphql}">'
    "<input name='{start}' value='\"}}'></form>{submit}",
    "<meta name=referrer content=no-referrer><form method=post action='{get}'></form>{submit}",
    "<iframe sandbox=allow-scripts srcdoc=\"<img src='{get}'>"
    "<script>fetch('{get}',{{mode:'no-cors'}})</script>\"></iframe>",
    '<iframe src="data:text/html,<img src=%22{quoted}%22>"></iframe>',
    '<form method=post action="{url}{forged}?metadata=%7B%22path%22%3A%22/x%22%7D"></form>{submit}',
)
"""Pages without scripts, except to submit a form."""
SUBMIT = "<script>document.forms[0].submit()</script>"
SCRIPTS = (
    "fetch(get, {...blind, credentials: 'include', keepalive: true})",
    "fetch(graphql, {method: 'POST', headers: {'content-type': 'application/json'}, body})",
    "post(graphql, body, 'text/plain; application/json')",
    "post(get, new URLSearchParams({query}))",
    "post('/redirect?to=' + encodeURIComponent(graphql), body, 'text/plain; application/json')",
    "fetch(get.replace('/graphql?query', '//%67raphql%0A?%71uery'), blind)",
    "navigator.sendBeacon(graphql, new Blob([body], {type: 'text/plain; application/json'}))",
    "new EventSource(get)",
    "import(get)",
    "window.open(get)",
    'post(url + forged, \'{"metadata": {"path": "/etc"}}\', \'text/plain; application/json\')',
    "talk('graphql-ws', {type: 'start', id: '1', payload: {query}})",
    "talk('graphql-transport-ws', {type: 'subscribe', id: '1', payload: {query}})",
)
"""Attempts by script, with the functions of PRELUDE."""
PRELUDE = """
const [url, query, forged] = %s;
const graphql = url + '/graphql', get = graphql + '?query=' + encodeURIComponent(query);
const body = JSON.stringify({query}), blind = {mode: 'no-cors'};
function post(place, body, kind) {
  const headers = kind ? {'content-type': kind} : {};
  return fetch(place, {...blind, method: 'POST', body, headers});
}
function talk(protocol, message) {
  return new Promise(done => {
    const socket = new WebSocket(graphql.replace('http', 'ws'), protocol);
    socket.onopen = () => {
      socket.send('{"type": "connection_init"}');
      socket.send(JSON.stringify(message));
      setTimeout(done, 500);
    };
    socket.onerror = done;
  });
}
"""


class Hostile(BaseHTTPRequestHandler):
    """Serves `pages` by path, and redirects to the address after `to=`."""

    pages: dict[str, str]

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        place = unquote(asked.query.removeprefix("to="))
        self.send_response(307 if place else 200)
        self.send_header(*("Location", place) if place else ("Content-Type", "text/html"))
        self.end_headers()
        self.wfile.write(self.pages.get(asked.path, "").encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def hostile() -> Iterator[tuple[int, dict[str, str]]]:
    """Serve hostile pages from a port of the loopback; yield it, and the pages by path."""
    handler = type("Handler", (Hostile,), {"pages": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port, handler.pages
        running.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        prepared(tmp_path_factory.mktemp("attacked"), monkeypatch)
        with serving() as server:
            yield server


@pytest.fixture(scope="module")
def context() -> "Iterator[BrowserContext]":
    """A browser that resolves *.test to this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = [*FLAGS, "--host-resolver-rules=MAP *.test 127.0.0.1", "--disable-popup-blocking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser.new_context()
        browser.close()


SELECTOR = (
    f'repositoryLocationName:"{CODE_LOCATION}",repositoryName:"__repository__",jobName:"verify"'
)
MUTATION = (
    f"mutation{{launchRun(executionParams:{{selector:{{{SELECTOR}}},runConfigData:{{}}}})"
    "{__typename}}"
)
"""Launches `verify`, as an attacker who has read the source would."""


def changes(server: Server) -> tuple[int, int]:
    """Count the runs, and the assets with a materialization."""
    runs = "runsOrError { ... on Runs { results { id } } }"
    found = server.ask(
        f"{{ {runs} assetsOrError {{ ... on AssetConnection {{ nodes {{ id }} }} }} }}"
    )
    return len(found["runsOrError"]["results"]), len(found["assetsOrError"]["nodes"])


def attack(context: "BrowserContext", url: str, port: int, pages: dict[str, str]) -> int:
    """Open every hostile page from every origin; return how many there were."""
    prelude = PRELUDE % json.dumps([url, MUTATION, FORGED])
    get = f"{url}/graphql?query={quote(MUTATION, safe='')}"
    words = {
        "get": get,
        "quoted": quote(get, safe=""),
        "graphql": f"{url}/graphql",
        "html": MUTATION.replace('"', "&quot;"),
        "start": json.dumps({"query": MUTATION})[:-2] + '","a":"',
        "submit": SUBMIT,
        "url": url,
        "forged": FORGED,
    }
    every = [tag.format(**words) for tag in TAGS]
    every += [f"<script>{prelude}\n{code}</script>" for code in SCRIPTS]
    for number, text in enumerate(every):
        pages[f"/{number}"] = f"<!doctype html><body>{text}"
    places = [f"http://{host}:{port}/{number}" for host in EVIL for number in range(len(every))]
    for place in places:
        page = context.new_page()
        page.goto(place, wait_until="commit")
        if len(context.pages) >= 12 or place == places[-1]:
            page.wait_for_timeout(2000)
            for shown in context.pages:
                shown.close()
    return len(places)


def test_a_page_of_another_origin_launches_nothing(
    server: Server, context: "BrowserContext"
) -> None:
    before = changes(server)
    with hostile() as (port, pages):
        attempts = sum(
            attack(context, url, port, pages)
            for url in (server.url, server.url.replace("127.0.0.1", "localhost"))
        )
    assert attempts == 4 * (len(TAGS) + len(SCRIPTS))
    assert changes(server) == before
    assert server.ask(MUTATION)["launchRun"]["__typename"] == "LaunchRunSuccess"
    assert changes(server)[0] == before[0] + 1, "it would have worked"
