"""Hostile web pages in a real browser beside a running UI: none of their requests launches a run or
changes anything.

The pages come from another origin, whose name leads to this machine, as the attacker's own server
or a rebound name would. Every attempt is to launch the job `register_dumps`, which is as good as
any, or to forge a materialization.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import psutil
import pytest

from tests.pipeline.defs.conftest import prepared, random_pgn
from tests.pipeline.defs.served.browser import CHROMIUM, FLAGS, MARKS, ended, go, newest
from tests.pipeline.defs.served.server import Server, serving, wait

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = MARKS
EVIL = ("evil.test", "localhost")
"""Names of the hostile server: another site, and another port of the UI's own host, which a browser
calls the same site."""
FORGED = "/report_asset_materialization/forged"

TAGS = {
    "img": '<img src="{get}">',
    "script": '<script src="{get}"></script>',
    "style": '<link rel=stylesheet href="{get}">',
    "prefetch": '<link rel=prefetch href="{get}"><link rel=preload as=fetch href="{get}">',
    "iframe": '<iframe src="{get}"></iframe>',
    "object": '<object data="{get}"></object><embed src="{get}">',
    "media": '<video src="{get}" autoplay></video><audio src="{get}" autoplay></audio>',
    "background": '<div style="background: url({get})">x</div>',
    "svg": '<svg><image href="{get}"/></svg>',
    "refresh": '<meta http-equiv=refresh content="0;url={get}">',
    "redirected "
    "img": '<img src="/redirect?code=302&to={quoted}"><img src="/redirect?code=307&to={quoted}">',
    "redirected form": '<form method=post action="/redirect?code=307&to={quoted}"></form>{submit}',
    "form get": '<form action="{graphql}"><input name=query value="{html}"></form>{submit}',
    "form "
    "post": '<form method=post action="{get}"><input name=query value="{html}"></form>{submit}',
    "form multipart": '<form method=post enctype=multipart/form-data action="{get}"><input '
    "name=a></form>{submit}",
    "form text": '<form method=post enctype=text/plain action="{graphql}">'
    "<input name='{start}' value='\"}}'></form>{submit}",
    "form in a "
    "frame": '<iframe name=f></iframe><form target=f method=post action="{get}"></form>{submit}',
    "no referrer": "<meta name=referrer content=no-referrer><form method=post "
    'action="{get}"></form>{submit}',
    "sandboxed": "<iframe sandbox=allow-scripts srcdoc=\"<img src='{get}'>"
    "<script>fetch('{get}',{{mode:'no-cors'}})</script>\"></iframe>",
    "data page": '<iframe src="data:text/html,<img src=%22{quoted}%22>"></iframe>',
    "ping": '<a id=a ping="{get}" href="#">x</a><script>a.click()</script>',
    "forged": "<form method=post "
    'action="{url}{forged}?metadata=%7B%22path%22%3A%22/etc%22%7D"></form>{submit}',
    "prerender": "<script "
    'type=speculationrules>{{"prerender":[{{"source":"list","urls":["{get}"]}}]}}</script>',
}
"""Pages that need no script but to submit a form."""
SUBMIT = "<script>document.forms[0].submit()</script>"
SCRIPTS = {
    "fetch get": "fetch(get, blind)",
    "fetch with credentials": "fetch(get, {...blind, credentials: 'include'})",
    "fetch head": "fetch(get, {...blind, method: 'HEAD'})",
    "fetch cors": "fetch(get)",
    "fetch "
    "json": "fetch(graphql, {method: 'POST', headers: {'content-type': 'application/json'}, body})",
    "fetch text": "post(graphql, body, 'text/plain')",
    "fetch disguised": "post(graphql, body, 'text/plain; application/json')",
    "fetch disguised "
    "form": "post(graphql, body, 'application/x-www-form-urlencoded; application/json')",
    "fetch urlencoded": "post(get, new URLSearchParams({query}))",
    "fetch "
    "multipart": "(() => { const f = new FormData(); f.append('query', query); return post(get, f) "
    "})()",
    "fetch blob": "post(graphql, new Blob([body], {type: 'application/json'}))",
    "fetch batch": "post(graphql, `[${body},${body}]`, 'text/plain; application/json')",
    "fetch "
    "redirected": "post('/redirect?code=307&to=' + encodeURIComponent(graphql), body, 'text/plain; "
    "application/json')",
    "fetch redirected get": "fetch('/redirect?code=302&to=' + encodeURIComponent(get), blind)",
    "newline": "fetch(get.replace('/graphql?', '/graphql%0A?'), blind)",
    "slashes": "fetch(get.replace('/graphql?', '//graphql?'), blind)",
    "escaped": "fetch(get.replace('/graphql?query', '/%67raphql?%71uery'), blind)",
    "keepalive": "fetch(get, {...blind, keepalive: true})",
    "beacon": "navigator.sendBeacon(get)",
    "beacon text": "navigator.sendBeacon(graphql, body)",
    "beacon json": "navigator.sendBeacon(graphql, new Blob([body], {type: 'text/plain; "
    "application/json'}))",
    "xhr": "xhr('GET', get)",
    "xhr post": "xhr('POST', get, body)",
    "event source": "new EventSource(get)",
    "worker": "new Worker(URL.createObjectURL(new Blob([`fetch(${JSON.stringify(get)}, {mode: "
    "'no-cors'})`])))",
    "imported": "import(get)",
    "window": "window.open(get)",
    "forged": 'post(url + forged, \'{"metadata": {"path": "/etc"}}\', \'text/plain; '
    "application/json')",
    "websocket": "talk('graphql-ws', {type: 'start', id: '1', payload: {query}})",
    "websocket subscription": "talk('graphql-ws', {type: 'start', id: '1', payload: {query: "
    "query.replace('mutation', "
    "'subscription')}})",
    "websocket of another "
    "kind": "talk('graphql-transport-ws', {type: 'subscribe', id: '1', payload: {query}})",
    "navigation": "location.href = get",
}
"""Attempts by script, with the functions of PRELUDE."""
PRELUDE = """
const [url, query, forged] = %s;
const graphql = url + '/graphql', get = graphql + '?query=' + encodeURIComponent(query);
const body = JSON.stringify({query}), blind = {mode: 'no-cors'};
function post(place, body, kind) {
  const headers = kind ? {'content-type': kind} : {};
  return fetch(place, {...blind, method: 'POST', body, headers});
}
function xhr(method, place, body) {
  return new Promise(done => {
    const request = new XMLHttpRequest();
    request.onloadend = done;
    request.open(method, place);
    request.send(body);
  });
}
function talk(protocol, message) {
  return new Promise(done => {
    const socket = new WebSocket(graphql.replace('http', 'ws'), protocol);
    socket.onopen = () => {
      socket.send('{"type": "connection_init"}');
      socket.send(JSON.stringify(message));
      setTimeout(done, 500);
    };
    socket.onmessage = event => { window.heard = event.data };
    socket.onerror = done;
  });
}
"""


class Hostile(BaseHTTPRequestHandler):
    """Serves the pages of `pages` by path, and redirects wherever it is asked to."""

    pages: dict[str, str]

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/redirect":
            code, _, place = asked.query.partition("&to=")
            self.send_response(int(code.removeprefix("code=")))
            self.send_header("Location", place if place.startswith("http:") else unquote(place))
            self.end_headers()
            return
        body = self.pages.get(asked.path, "").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

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
    """A browser for which every name leads to this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = [*FLAGS, "--host-resolver-rules=MAP *.test 127.0.0.1", "--disable-popup-blocking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser.new_context()
        browser.close()


def mutation(server: Server) -> str:
    """Give the mutation that launches `register_dumps`, as an attacker writes it who has read the
    source."""
    selector = (
        f'repositoryLocationName:"{server.location()}",'
        'repositoryName:"__repository__",jobName:"register_dumps"'
    )
    parameters = f"executionParams:{{selector:{{{selector}}},runConfigData:{{}}}}"
    return f"mutation{{launchRun({parameters}){{__typename}}}}"


def changes(server: Server) -> tuple[int, int]:
    """Count the runs and the assets that were ever materialised."""
    counted = (
        "{ runsOrError { ... on Runs { results { id } } } assetsOrError { ... on "
        "AssetConnection { nodes { id } } } }"
    )
    found = server.ask(counted)
    return len(found["runsOrError"]["results"]), len(found["assetsOrError"]["nodes"])


def attack(
    context: "BrowserContext", url: str, port: int, pages: dict[str, str], query: str
) -> int:
    """Open every hostile page from every origin; return how many there were."""
    prelude = PRELUDE % json.dumps([url, query, FORGED])
    get = f"{url}/graphql?query={quote(query, safe='')}"
    body = json.dumps({"query": query})
    words = {
        "get": get,
        "quoted": quote(get, safe=""),
        "graphql": f"{url}/graphql",
        "html": query.replace('"', "&quot;"),
        "start": body[:-2] + '","a":"',
        "submit": SUBMIT,
        "url": url,
        "forged": FORGED,
    }
    every = {name: tag.format(**words) for name, tag in TAGS.items()}
    every |= {
        name + " by script": f"<script>{prelude}\n{code}</script>" for name, code in SCRIPTS.items()
    }
    for number, text in enumerate(every.values()):
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
            attack(context, url, port, pages, mutation(server))
            for url in (server.url, server.url.replace("127.0.0.1", "localhost"))
        )
    assert attempts == 4 * (len(TAGS) + len(SCRIPTS))
    assert changes(server) == before


def test_a_rebound_name_reads_and_launches_nothing(
    server: Server, context: "BrowserContext"
) -> None:
    """The page's origin is then the UI's address by another name, so that its requests are of the
    same origin."""
    before, query = changes(server), mutation(server)
    port = urlsplit(server.url).port
    page = context.new_page()
    url = f"http://rebound.test:{port}"
    answered = page.goto(f"{url}/")
    assert answered is not None
    assert answered.status == 403
    assert "Dagster" not in page.content()
    prelude = PRELUDE % json.dumps([url, query, FORGED])
    for name, code in SCRIPTS.items():
        page.goto(f"{url}/")
        page.evaluate(
            f"(async () => {{ {prelude}\n try {{ await ({code}) }} catch (error) {{}} }})()"
        )
        page.wait_for_timeout(200)
        if name not in ("navigation",):
            assert page.evaluate("window.heard") is None, name
    read = page.evaluate(
        "fetch('/graphql', {method: 'POST', headers: {'content-type': 'application/json'}, "
        'body: \'{"query": "{ version }"}\'}).then(answer => answer.status)'
    )
    assert read == 403
    for shown in context.pages:
        shown.close()
    assert changes(server) == before


def test_only_the_web_server_listens_and_only_on_this_machine(server: Server) -> None:
    tree = [psutil.Process(server.pid), *server.tree()]
    listening = {
        (process.pid, connection.laddr)
        for process in tree
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {(server.pid, ("127.0.0.1", urlsplit(server.url).port))}


def test_the_ui_itself_launches_the_job_by_a_click(
    server: Server, context: "BrowserContext"
) -> None:
    runs, _ = changes(server)
    page = context.new_page()
    go(
        page,
        server,
        f"/locations/{server.location()}/jobs/register_dumps/playground",
        "register_dumps",
    )
    page.locator('button:has-text("Launch Run")').last.click()
    wait(lambda: changes(server)[0] == runs + 1, 60)
    ended(server, newest(server))
    page.locator("text=RUN_SUCCESS >> visible=true").first.wait_for()  # by the websocket


SCRIPTED = [
    "<script>pwned=1</script>",
    "<img src=x onerror=pwned=1>",
    "<svg onload=pwned=1>",
    "</text><image href=x onerror=pwned=1>",
    "[link](javascript:pwned=1)",
    "![picture](http://evil.test/seen)",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<a href=javascript:pwned=1>here</a>",
    "`|</td><img src=x onerror=pwned=1>|",
    "{{constructor.constructor('pwned=1')()}}",
    "\u202e<details open ontoggle=pwned=1>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=pwned=1>",
]
"""Names of players, events, dumps, checkpoints and training sets that are markup, or would load a
page of an attacker's."""


def hostile_pgn() -> str:
    """Games whose tags are markup."""
    games = random_pgn(8 * len(SCRIPTED)).split("[Event ")[1:]
    for number, game in enumerate(games):
        text = SCRIPTED[number % len(SCRIPTED)]
        for name, value in (("White", "a"), ("Black", "b"), ("Termination", "Normal")):
            game = game.replace(f'[{name} "{value}"]', f'[{name} "{text}"]')
        games[number] = "[Event " + game.replace("Rated Blitz game", f"Rated Blitz {text}").replace(
            "https://lichess.org/", f"javascript:pwned=1//{text}"
        )
    return "".join(games)


def test_markup_in_names_stays_text_on_the_pages(server: Server, context: "BrowserContext") -> None:
    """Dumps, checkpoints and training sets are named by markup too, as far as a folder's name can
    be."""
    datasets = Path(os.environ["FIANCHETTO_DATASETS"])
    keys = SCRIPTED[1], SCRIPTED[4]
    for key in keys:
        (datasets / "dumps" / f"{key}.pgn").write_text(hostile_pgn())
    ended(server, server.launch("register_dumps", {}))
    config = {
        "ops": {
            "positions": {"config": {"workers": 1, "ingest": {"test_share": 0.3, "val_share": 0.3}}}
        }
    }
    for key in keys:
        ended(server, server.launch("build_positions", config, {"dagster/partition": key}))
    name, train = keys[0], {"steps": 2, "batch_size": 16, "threads": 1}
    network = {"name": name, "minutes": 0.0, "train": train}
    ops = {"training_set": {"config": {"name": name}}, "checkpoint": {"config": network}}
    (datasets / "reports" / name / "<b onclick=pwned=1>").mkdir(parents=True)
    (datasets / "reports" / name / "<b onclick=pwned=1>" / "report.json").write_text("{")
    names = ("training_set", "checkpoint", "accuracy_report", "leaderboard")
    run = server.launch("__ASSET_JOB", {"ops": ops}, assets=names)
    ended(server, run)
    places = [f"/assets/positions?view=partitions&partition={quote(key)}" for key in keys]
    places += [f"/assets/dump?view=partitions&partition={quote(key)}" for key in keys]
    places += [f"/assets/{name}" for name in names]
    places += [f"/assets/{name}?view=checks" for name in ("positions", "training_set")] + [
        f"/runs/{run}",
        "/runs",
    ]
    page, elsewhere = context.new_page(), []
    page.on(
        "request",
        lambda asked: elsewhere.append(asked.url) if not _is_own(asked.url, server) else None,
    )
    shown = 0
    for place in places:
        page.goto(server.url + place, wait_until="domcontentloaded")
        page.wait_for_timeout(3000)
        entries = page.locator('text="[Show Markdown]"')
        for at in range(entries.count()):
            entries.nth(at).click()
            page.wait_for_timeout(1000)
            page.keyboard.press("Escape")
            page.wait_for_timeout(300)
        shown += page.locator("img[src^='/reports/']").count()
        assert page.evaluate("window.pwned") is None, place
        assert not page.locator("a[href^='javascript:']").count(), place
    written = [path for path in datasets.glob("reports/**/*.html") if path.is_file()]
    assert written
    for path in written:
        served = f"{server.url}/reports/{quote(path.relative_to(datasets / 'reports').as_posix())}"
        for address in (path.as_uri(), served):
            page.goto(address)
            page.wait_for_timeout(500)
            assert page.locator("svg").count(), address
            assert page.evaluate("window.pwned") is None, address
            assert not page.locator("a[href^='javascript:']").count(), address
    page.close()
    assert shown > len(keys)
    assert elsewhere == []


def _is_own(url: str, server: Server) -> bool:
    return url.startswith((server.url, "data:", "blob:", "file:", server.url.replace("http", "ws")))
