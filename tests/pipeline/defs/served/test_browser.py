"""The UI as a person uses it, in a real browser: materialise, read, watch, stop."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.defs.conftest import prepared, random_pgn
from tests.pipeline.defs.served.browser import (
    MARKS,
    browsing,
    ended,
    go,
    launch,
    newest,
    shown_pictures,
    visible,
)
from tests.pipeline.defs.served.server import Server, serving, wait

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = MARKS
POSITIONS = "ops: {positions: {config: {workers: 1, ingest: {test_share: 0.2, val_share: 0.2}}}}"
TRAIN = "ops: {checkpoint: {config: {name: %s, minutes: %s, train: {batch_size: 64, threads: 1}}}}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        datasets = prepared(tmp_path_factory.mktemp("browsed"), monkeypatch)
        (datasets / "dumps" / "small.pgn").write_text(random_pgn(200))
        with serving() as server:
            run = server.launch("register_dumps", {})
            wait(lambda: server.status(run) == "SUCCESS", 60)
            yield server


@pytest.fixture(scope="module")
def page(server: Server) -> "Iterator[Page]":
    with browsing() as page:
        yield page


def test_a_dump_becomes_positions(server: Server, page: "Page") -> None:
    run = launch(page, server, "dump", "", "small")
    ended(server, run)
    run = launch(page, server, "positions", POSITIONS, "small")
    ended(server, run)
    go(page, server, "/assets/positions?view=partitions&partition=small", "dropped_games")
    for words in ("dagster/row_count", "bytes_per_position", "shards", "Materialized"):
        assert visible(page, words).count()
    assert all(width > 0 for width in shown_pictures(page, "sample_of_positions"))


def test_positions_become_a_training_set(server: Server, page: "Page") -> None:
    run = launch(page, server, "training_set", "ops: {training_set: {config: {}}}")
    ended(server, run)
    go(page, server, "/assets/training_set", "test_positions_in_train")


def terminate(page: "Page", server: Server, run: str) -> None:
    """Press Terminate once training has shown figures, and wait for the end."""
    go(page, server, f"/runs/{run}", "checkpoint")
    page.locator("text=ASSET_OBSERVATION >> visible=true").first.wait_for(timeout=120_000)
    page.get_by_role("button", name="Terminate").first.click()
    # of the dialog: the page's own button is disabled meanwhile
    visible(page, "Terminate 1 run").click()
    ended(server, run, "CANCELED", 90)


def test_training_is_watched_stopped_and_continued(server: Server, page: "Page") -> None:
    run = launch(page, server, "checkpoint", TRAIN % ("stopped", "30.0"))
    go(page, server, f"/runs/{run}", "checkpoint")
    for words in ("minutes_left", "learning_rate", "positions_per_second"):
        page.locator(f'text="{words}" >> visible=true').first.wait_for(timeout=120_000)
    go(page, server, "/assets/checkpoint", "checkpoint")
    visible(page, "Plots").click()
    page.locator("canvas").first.wait_for()
    terminate(page, server, run)
    card = Path(os.environ["FIANCHETTO_DATASETS"]) / "checkpoints" / "stopped" / "checkpoint.json"
    before = json.loads(card.read_text())["step"]
    page.locator('button:has-text("Re-execute all")').first.click()
    again = str(wait(lambda: (found := newest(server)) != run and found, 30))
    terminate(page, server, again)
    assert json.loads(card.read_text())["step"] > before > 0


def test_the_graph_is_drawn(server: Server, page: "Page") -> None:
    page.set_viewport_size({"width": 1900, "height": 900})
    page.goto(server.url + server.unfolded_graph(), wait_until="domcontentloaded")
    for node in server.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]:
        visible(page, node["assetKey"]["path"][-1]).wait_for()


def test_materialize_all_makes_what_is_there_and_downloads_nothing(
    server: Server,
    page: "Page",
) -> None:
    before = runs(server).keys()
    page.goto(server.url + server.unfolded_graph(), wait_until="domcontentloaded")
    visible(page, "accuracy_report").wait_for()
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
    found = server.ask(query)["runsOrError"]["results"]
    return {
        run["id"]: tuple(
            sorted(
                [each["path"][-1] for each in run["assetSelection"] or []]
                + [tag["value"] for tag in run["tags"] if tag["key"] == "dagster/partition"]
            )
        )
        for run in found
    }
