"""Datasets on their way through the UI, in a real browser: dropped dumps, months, a check that
blocks, self-play."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from pipeline.dumps.fetch import STEM
from tests.pipeline.defs.conftest import prepared, random_pgn
from tests.pipeline.defs.served.browser import (
    MARKS,
    browsing,
    ended,
    go,
    newest,
    open_launchpad,
    shown_pictures,
    write,
)
from tests.pipeline.defs.served.server import Server, serving, wait
from tests.pipeline.defs.test_tuned import TINY
from tests.pipeline.loopback import serving as publishing

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = MARKS
Served = tuple[Path, Server]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A UI that begins beside a dump that came before it, and with a Lichess that publishes two
    months."""
    with pytest.MonkeyPatch.context() as monkeypatch, publishing() as lichess:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{lichess.url}/standard")
        # an engine would evaluate every move of 200 positions
        monkeypatch.setenv("FIANCHETTO_UCI_ENGINE", "")
        datasets = prepared(tmp_path_factory.mktemp("story"), monkeypatch)
        (datasets / "dumps" / "small.pgn").write_text(random_pgn(200))
        os.utime(datasets / "dumps" / "small.pgn", (0, 0))
        for number in (1, 2):
            data = zstandard.compress(random_pgn(20, seed=number).encode())
            lichess.publish(f"{STEM}2013-0{number}.pgn.zst", data)
        with serving() as server:
            yield datasets, server


@pytest.fixture(scope="module")
def page(served: Served) -> "Iterator[Page]":
    with browsing() as page:
        yield page


def launched(page: "Page", server: Server, button: str) -> str:
    """Press a button that launches a run, and give the run's id."""
    before = newest(server)
    page.locator(f'button:has-text("{button}")').last.click()
    return str(wait(lambda: (found := newest(server)) != before and found, 60))


def made(datasets: Path, key: str) -> bool:
    return (datasets / "positions" / key / "manifest.json").exists()


def test_the_sensor_builds_what_came_while_the_ui_was_down_and_what_comes_now(
    served: Served, page: "Page"
) -> None:
    datasets, server = served
    go(page, server, f"/locations/{server.location()}/sensors/new_dumps", "new_dumps")
    switch = page.locator('input[type="checkbox"]').first
    switch.dispatch_event("click")
    wait(lambda: made(datasets, "small"), 180)
    (datasets / "dumps" / "dropped.pgn").write_text(random_pgn(30, seed=1))
    os.utime(datasets / "dumps" / "dropped.pgn", (0, 0))
    wait(lambda: made(datasets, "dropped"), 180)
    ended(server, newest(server))
    switch.dispatch_event("click")
    go(page, server, "/assets/positions?view=partitions&partition=dropped", "Materialized")


def test_a_dropped_file_is_listed_without_switching_anything_on(served: Served) -> None:
    datasets, server = served
    (datasets / "dumps" / "listed.pgn").write_text(random_pgn(3, seed=9))
    keys = '{ assetNodeOrError(assetKey: {path: ["dump"]}) { ... on AssetNode { partitionKeys } } }'
    wait(lambda: "listed" in server.ask(keys)["assetNodeOrError"]["partitionKeys"], 120)
    (datasets / "dumps" / "listed.pgn").unlink()


def test_a_month_is_chosen_in_a_form_and_becomes_positions(served: Served, page: "Page") -> None:
    datasets, server = served
    launchpad = f"/locations/{server.location()}/jobs/fetch_month/playground"
    go(page, server, launchpad, "No errors")
    write(page, "ops: {download: {config: {month: 2013-1}}}")
    run = launched(page, server, "Launch Run")
    ended(server, run, "FAILURE")
    assert "the newest months are" in server.failures(run)
    go(page, server, launchpad, "No errors")
    write(page, "ops: {download: {config: {month: 2013-02}}}")
    ended(server, launched(page, server, "Launch Run"))
    wait(lambda: made(datasets, f"{STEM}2013-02"), 180)
    go(page, server, f"/assets/dump?view=partitions&partition={STEM}2013-02", "sha256")


def test_a_failed_check_blocks_a_later_run_until_it_passes(served: Served, page: "Page") -> None:
    datasets, server = served
    shard = next((datasets / "positions" / "small").glob("train-*.parquet"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    def check(outcome: str) -> None:
        go(page, server, "/assets/positions?view=checks", "files_match_manifest")
        ended(server, launched(page, server, "Execute all"), outcome)

    check("FAILURE")
    shard.write_bytes(whole)
    go(page, server, "/assets/training_set", "training_set")
    run = launched(page, server, "Materialize")
    ended(server, run, "FAILURE")
    go(page, server, f"/runs/{run}", "training_set")
    page.locator(
        "text=/positions of small failed the check files_match_manifest last time/ >> visible=true"
    ).first.wait_for()
    check("SUCCESS")
    go(page, server, "/assets/training_set", "training_set")
    ended(server, launched(page, server, "Materialize"))


def test_self_play_is_started_from_its_jobs_launchpad(served: Served, page: "Page") -> None:
    server = served[1]
    shares = {"workers": 1, "replace": True, "ingest": {"test_share": 0.2, "val_share": 0.2}}
    ended(
        server,
        server.launch(
            "build_positions",
            {"ops": {"positions": {"config": shares}}},
            {"dagster/partition": "small"},
        ),
    )
    steps = {"steps": 4, "batch_size": 16, "threads": 1}
    network = {"minutes": 0.0, "positions": ["small"], "train": steps}
    ended(server, server.launch("train", network))
    go(page, server, f"/locations/{server.location()}/jobs/finetune", "finetune")
    open_launchpad(page)
    matches = {"games": 2, "simulations": [2]}
    tuned = {"name": "tuned", "positions": ["small"], "finetune": TINY}
    config = {
        "ops": {"tuned_checkpoint": {"config": tuned}, "strength_report": {"config": matches}}
    }
    write(page, json.dumps(config))
    ended(server, launched(page, server, "Materialize"), seconds=900)
    go(page, server, "/assets/tuned_checkpoint", "verdicts")
    assert all(width > 0 for width in shown_pictures(page, "curves"))
    go(page, server, "/assets/strength_report", "matches")
