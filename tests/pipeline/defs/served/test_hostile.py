"""Hostile web pages, open in a real browser beside the UI, cannot launch a run or change anything.

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
from tests.pipeline.defs.conftest import prepare_data_folder
from tests.pipeline.defs.served.browser import CHROMIUM, FLAGS, MARKS
from tests.pipeline.defs.served.server import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = MARKS
HOSTILE_HOSTS = ("evil.test", "localhost")
"""Hosts of the hostile server: another site, and the same site, the UI's own host with another
port."""
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
"""Attempts without scripts, except to submit a form."""
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
    """Serves `pages` by path, and redirects to the URL after `to=`."""

    pages: dict[str, str]

    def do_GET(self) -> None:
        path, target = urlsplit(self.path).path, urlsplit(self.path).query.removeprefix("to=")
        self.send_response(307 if target else 200)
        self.send_header(
            *("Location", unquote(target)) if target else ("Content-Type", "text/html")
        )
        self.end_headers()
        self.wfile.write(self.pages.get(path, "").encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve_hostile_pages() -> Iterator[tuple[int, dict[str, str]]]:
    """Serve hostile pages on this machine; yield the port, and the pages by path."""
    handler = type("Handler", (Hostile,), {"pages": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port, handler.pages
        running.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        prepare_data_folder(tmp_path_factory.mktemp("attacked"), monkeypatch)
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
"""GraphQL that launches `verify`, as an attacker who has read the source would."""


def count_changes(server: Server) -> tuple[int, int]:
    """Count the runs, and the assets with a materialization."""
    runs = "runsOrError { ... on Runs { results { id } } }"
    assets = "assetsOrError { ... on AssetConnection { nodes { id } } }"
    data = server.ask(f"{{ {runs} {assets} }}")
    return len(data["runsOrError"]["results"]), len(data["assetsOrError"]["nodes"])


def attack(context: "BrowserContext", url: str, port: int, pages: dict[str, str]) -> int:
    """Open every hostile page from every origin, and return the number of attempts."""
    prelude = PRELUDE % json.dumps([url, MUTATION, FORGED])
    get = f"{url}/graphql?query={quote(MUTATION, safe='')}"
    values = {
        "get": get,
        "quoted": quote(get, safe=""),
        "graphql": f"{url}/graphql",
        "html": MUTATION.replace('"', "&quot;"),
        "start": json.dumps({"query": MUTATION})[:-2] + '","a":"',
        "submit": SUBMIT,
        "url": url,
        "forged": FORGED,
    }
    bodies = [tag.format(**values) for tag in TAGS]
    bodies += [f"<script>{prelude}\n{code}</script>" for code in SCRIPTS]
    pages |= {f"/{number}": f"<!doctype html><body>{body}" for number, body in enumerate(bodies)}
    urls = [
        f"http://{host}:{port}/{number}" for host in HOSTILE_HOSTS for number in range(len(bodies))
    ]
    for hostile_url in urls:
        page = context.new_page()
        page.goto(hostile_url, wait_until="commit")
        if len(context.pages) >= 12 or hostile_url == urls[-1]:
            page.wait_for_timeout(2000)
            for opened in context.pages:
                opened.close()
    return len(urls)


def test_a_page_of_another_origin_cannot_launch_a_run(
    server: Server, context: "BrowserContext"
) -> None:
    before = count_changes(server)
    with serve_hostile_pages() as (port, pages):
        attempts = sum(
            attack(context, url, port, pages)
            for url in (server.url, server.url.replace("127.0.0.1", "localhost"))
        )
    assert attempts == 4 * (len(TAGS) + len(SCRIPTS))
    assert count_changes(server) == before
    assert server.ask(MUTATION)["launchRun"]["__typename"] == "LaunchRunSuccess"
    assert count_changes(server)[0] == before[0] + 1, "an allowed request launches a run"
