"""The UI in a real browser: train by the first form, stop a run, and train step by step."""

import tempfile
from pathlib import Path

import pytest

from tests.conftest import shared_data
from tests.pipeline.defs.conftest import prepare_data_folder, random_pgn
from tests.pipeline.defs.served import browser
from tests.pipeline.defs.served.first_hour import take_first_hour
from tests.pipeline.defs.served.server import Server, serving, wait_for

pytestmark = browser.MARKS


def test_a_network_is_trained_from_the_home_page_and_a_run_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepare_data_folder(Path(folder), monkeypatch)
        games = Path(folder) / "mine.pgn"
        games.write_text(random_pgn(60, first=200))
        with serving() as server, browser.browsing() as page:
            page.set_viewport_size({"width": 1440, "height": 900})
            page.goto(server.url, wait_until="domcontentloaded")
            browser.find_visible(page, "No errors").wait_for()
            assert page.url.endswith("/jobs/first_network/playground")
            form = f"games: {games}\nminutes: 0.2\nstart_from_embedded: true\nreport: true\n"
            browser.write_config(page, form)
            page.locator('button:has-text("Launch Run")').last.click()
            run = browser.wait_for_run(server, "")
            server.wait_until_ended(run)
            page.goto(server.url, wait_until="domcontentloaded")
            page.locator("text=measure_network >> visible=true").first.wait_for()
            assert page.url.endswith(run)
            browser.open_page(page, server, "/assets/accuracy_report", "moves_found")
            entry = page.locator('tr:has(:text-is("moves_found")) >> visible=true').last
            assert read_tags(server, run)["top1"] in entry.inner_text()
            settings = "/settings#CheckpointOptions"
            browser.open_page(page, server, settings, "train.learning_rate")

            stopped = server.launch({"games": games.stem, "minutes": 30.0})
            wait_for(lambda: is_training(server, stopped), 120)
            server.terminate(stopped)
            server.wait_until_ended(stopped, "CANCELED", 60)
            page.goto(server.url, wait_until="domcontentloaded")
            text = "text=/stopped: finished work is kept/ >> visible=true"
            page.locator(text).first.wait_for()
            errors = [event["error"] for event in server.failures(stopped) if event.get("error")]
            assert errors
            assert all(not error["stack"] for error in errors), errors


def read_tags(server: Server, run: str) -> dict[str, str]:
    query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { tags { key value } } } }"
    tags = server.ask(query, id=run)["runOrError"]["tags"]
    return {tag["key"]: tag["value"] for tag in tags}


def is_training(server: Server, run: str) -> bool:
    """Return whether the step `train_network` of a run has started its child process."""
    query = """query($id: ID!) { runOrError(runId: $id) { ... on Run {
        stepStats { stepKey startTime } } } }"""
    stats = server.ask(query, id=run)["runOrError"]["stepStats"]
    started = {step["stepKey"] for step in stats if step["startTime"]}
    return "train_network" in started and bool(server.run_children())


def test_a_network_is_trained_on_own_games_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    screenshots: dict[str, bytes] = {}
    games = shared_data("pgn/lichess_export_2024-05_blitz.pgn")
    # a short path, because Dagster does not wrap paths, and widens the table for a long one
    with tempfile.TemporaryDirectory() as folder:
        datasets = prepare_data_folder(Path(folder), monkeypatch)
        with serving() as server, browser.browsing() as page:
            training = ("fianchetto-xs", 0.2)
            take_first_hour(page, server, datasets, games, *training, screenshots.__setitem__)
    names = {"dump-listed.png", "datasets-chosen.png", "checkpoint.png", "accuracy.png"}
    assert set(screenshots) == names
