"""The UI as a person uses it, in a real browser: watch, stop, continue, all, months."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from pipeline.defs.ui import LOCATION
from pipeline.dumps.fetch import STEM
from tests.pipeline.defs.conftest import prepared, random_pgn
from tests.pipeline.defs.served.browser import (
    MARKS,
    browsing,
    go,
    launch,
    newest,
    visible,
    wait_for_run,
    write,
)
from tests.pipeline.defs.served.server import Server, serving, wait
from tests.pipeline.loopback import serving as publishing

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = MARKS
TRAIN = "ops: {checkpoint: {config: {name: %s, minutes: %s, train: {batch_size: 64, threads: 1}}}}"
BUILD = {"config": {"workers": 1, "ingest": {"test_share": 0.2, "val_share": 0.2}}}
Served = tuple[Path, Server]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A UI beside a dump that came before it, and with a Lichess that publishes a month."""
    with pytest.MonkeyPatch.context() as monkeypatch, publishing() as lichess:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{lichess.url}/standard")
        datasets = prepared(tmp_path_factory.mktemp("browsed"), monkeypatch)
        (datasets / "dumps" / "small.pgn").write_text(random_pgn(200))
        data = zstandard.compress(random_pgn(20, seed=1).encode())
        lichess.publish(f"{STEM}2013-02.pgn.zst", data)
        with serving() as server:
            server.ended(server.launch("build_positions", {"positions": BUILD}, "small"))
            server.ended(server.launch("__ASSET_JOB", {}, assets=("training_set",)))
            yield datasets, server


@pytest.fixture(scope="module")
def page(served: Served) -> "Iterator[Page]":
    with browsing() as page:
        yield page


def terminate(page: "Page", server: Server, run: str) -> None:
    """Press Terminate once training has shown figures, and wait for the end."""
    go(page, server, f"/runs/{run}", "checkpoint")
    page.locator("text=ASSET_OBSERVATION >> visible=true").first.wait_for(timeout=120_000)
    page.get_by_role("button", name="Terminate").first.click()
    # of the dialog: the page's own button is disabled meanwhile
    visible(page, "Terminate 1 run").click()
    server.ended(run, "CANCELED", 90)


def test_training_is_watched_stopped_and_continued(served: Served, page: "Page") -> None:
    datasets, server = served
    run = launch(page, server, "checkpoint", TRAIN % ("stopped", "30.0"))
    go(page, server, f"/runs/{run}", "checkpoint")
    for words in ("minutes_left", "learning_rate", "positions_per_second"):
        page.locator(f'text="{words}" >> visible=true').first.wait_for(timeout=120_000)
    go(page, server, "/assets/checkpoint", "checkpoint")
    visible(page, "Plots").click()
    page.locator("canvas").first.wait_for()
    terminate(page, server, run)
    card = datasets / "checkpoints" / "stopped" / "checkpoint.json"
    before = json.loads(card.read_text())["step"]
    page.locator('button:has-text("Re-execute all")').first.click()
    terminate(page, server, wait_for_run(server, run))
    assert json.loads(card.read_text())["step"] > before > 0


def test_materialize_all_makes_what_is_there_and_downloads_nothing(
    served: Served, page: "Page"
) -> None:
    server = served[1]
    before = runs(server).keys()
    page.set_viewport_size({"width": 1900, "height": 900})
    page.goto(server.url + server.unfolded_graph(), wait_until="domcontentloaded")
    for node in server.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]:
        visible(page, node["assetKey"]["path"][-1]).wait_for()
    page.locator('button:has-text("Materialize all")').last.click()
    page.locator('button:has-text("Launch backfill")').click()
    wait(lambda: len(runs(server).keys() - before) == 2, 300)
    queued = sorted(names for run, names in runs(server).items() if run not in before)
    reported = ("accuracy_report", "checkpoint", "leaderboard", "training_set")
    assert queued == [reported, ("dump", "positions", "small")]
    query = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { id } } } }"
    (backfill,) = server.ask(query)["partitionBackfillsOrError"]["results"]
    cancel = "mutation($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }"
    server.ask(cancel, id=backfill["id"])


def runs(server: Server) -> dict[str, tuple[str, ...]]:
    """Give the assets and the partition of each run."""
    query = """{ runsOrError { ... on Runs { results {
        id assetSelection { path } tags { key value } } } } }"""
    found = {}
    for run in server.ask(query)["runsOrError"]["results"]:
        assets = [each["path"][-1] for each in run["assetSelection"] or []]
        keys = [tag["value"] for tag in run["tags"] if tag["key"] == "dagster/partition"]
        found[run["id"]] = tuple(sorted(assets + keys))
    return found


def test_a_month_is_chosen_in_a_form_and_becomes_positions(served: Served, page: "Page") -> None:
    datasets, server = served
    launchpad = f"/locations/{LOCATION}/jobs/fetch_month/playground"
    for month, end in (("2013-1", "FAILURE"), ("2013-02", "SUCCESS")):
        go(page, server, launchpad, "No errors")
        write(page, f"ops: {{download: {{config: {{month: {month}}}}}}}")
        before = newest(server)
        page.locator('button:has-text("Launch Run")').last.click()
        run = wait_for_run(server, before)
        server.ended(run, end)
        assert ("the newest months are" in server.failures(run)) == (end == "FAILURE")
    wait((datasets / "positions" / f"{STEM}2013-02" / "manifest.json").exists, 180)
