"""The UI in a real browser: train by the first form, stop a run, and train step by step."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import shared_data
from tests.pipeline.defs.conftest import prepare_data_folder, random_pgn
from tests.pipeline.defs.served.browser import (
    MARKS,
    browsing,
    find_visible,
    open_page,
    wait_for_run,
    write_config,
)
from tests.pipeline.defs.served.first_hour import take_first_hour
from tests.pipeline.defs.served.server import Server, serving, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = MARKS
FORM = "games: {games}\nminutes: {minutes}\nstart_from_embedded: true\nreport: true\n"
FAILURES = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
    ... on ExecutionStepFailureEvent { error { message stack } }
    ... on RunCanceledEvent { error { message stack } } } } } }"""


def train_from_home_page(
    page: "Page", server: Server, games: Path, keep: Callable[[str], None]
) -> None:
    """Train a first network from the home page, read its accuracy, and stop a second one."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(server.url, wait_until="domcontentloaded")
    find_visible(page, "No errors").wait_for()
    assert page.url.endswith("/jobs/first_network/playground")
    keep("form.png")
    write_config(page, FORM.format(games=games, minutes=0.2))
    page.locator('button:has-text("Launch Run")').last.click()
    run = wait_for_run(server, "")
    server.wait_until_ended(run)
    page.goto(server.url, wait_until="domcontentloaded")
    page.locator("text=measure_network >> visible=true").first.wait_for()
    assert page.url.endswith(run)
    query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { tags { key value } } } }"
    tags = server.ask(query, id=run)["runOrError"]["tags"]
    (top1,) = (tag["value"] for tag in tags if tag["key"] == "top1")
    page.wait_for_timeout(3000)
    keep("run.png")
    open_page(page, server, "/assets/accuracy_report", "moves_found")
    shown = page.locator('tr:has(:text-is("moves_found")) >> visible=true').last
    assert top1 in shown.inner_text()
    page.wait_for_timeout(2000)
    keep("report.png")
    open_page(page, server, "/settings#CheckpointOptions", "train.learning_rate")
    keep("settings.png")

    form = {"games": games.stem, "minutes": 30.0}
    stopped = server.launch(form)
    wait_for(
        lambda: "train_network" in read_started_steps(server, stopped) and server.run_children(),
        120,
    )
    server.terminate(stopped)
    server.wait_until_ended(stopped, "CANCELED", 60)
    page.goto(server.url, wait_until="domcontentloaded")
    page.locator("text=/stopped: finished work is kept/ >> visible=true").first.wait_for()
    keep("stopped.png")
    events = server.ask(FAILURES, id=stopped)["logsForRun"]["events"]
    errors = [event["error"] for event in events if event.get("error")]
    assert errors
    assert all(not error["stack"] for error in errors), errors


def read_started_steps(server: Server, run: str) -> set[str]:
    """Return the steps of a run that have started."""
    query = """query($id: ID!) { runOrError(runId: $id) { ... on Run {
        stepStats { stepKey startTime } } } }"""
    stats = server.ask(query, id=run)["runOrError"]["stepStats"]
    return {step["stepKey"] for step in stats if step["startTime"]}


def test_a_first_network_is_trained_and_a_second_one_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        prepare_data_folder(Path(folder), monkeypatch)
        games = Path(folder) / "mine.pgn"
        games.write_text(random_pgn(60, first=200))
        with serving() as server, browsing() as page:
            train_from_home_page(page, server, games, kept.append)
    assert len(kept) == 5


def test_a_network_is_trained_on_own_games_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, bytes] = {}
    games = shared_data("pgn/lichess_export_2024-05_blitz.pgn")
    # a short path, because Dagster does not wrap paths, and widens the table for a long one
    with tempfile.TemporaryDirectory() as folder:
        datasets = prepare_data_folder(Path(folder), monkeypatch)
        with serving() as server, browsing() as page:
            take_first_hour(page, server, datasets, games, "fianchetto-xs", 0.2, kept.__setitem__)
    assert set(kept) == {"dump-listed.png", "datasets-chosen.png", "checkpoint.png", "accuracy.png"}
