"""The list of runs and its page: checkpoints, a report, a match, and damaged files."""

import json
import os
from pathlib import Path

import pytest

from engine.match.arena import DRAW_RESULT
from engine.match.sprt import SprtConfig
from pipeline.errors import ConfigError
from pipeline.evaluation.runs import list_runs, write_runs
from pipeline.matches.match import format_summary, summarize_match
from pipeline.storage.job_folder import MATCH_KIND, REPORT_KIND, publish_result
from tests.model.test_checkpoint import make
from tests.pipeline.cli.conftest import invoke
from tests.pipeline.matches.test_arena import make_record

HEADLINE = "mine finds 53.0 % of the moves of <b>unseen</b> games."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make two checkpoints with curves, a report, a match, and a damaged card."""
    for number, name in enumerate(("old", "new")):
        place = tmp_path / "checkpoints" / name
        make(place, step=1200)
        steps = [
            {"step": step, "positions": 256 * step, "policy_loss": 3 - step / 100, "top1": 0.2}
            for step in (10, 20)
        ]
        validated = {"step": 20, "positions": 5120, "validation_top1": 0.31}
        validated["validation_cross_entropy"] = 2.5
        lines = [json.dumps(line) for line in (*steps, validated)]
        (place / "metrics.jsonl").write_text("\n".join(lines))
        os.utime(place / "checkpoint.json", (1e9 + number, 1e9 + number))
    report = {"headline": HEADLINE, "positions": 20000, "games": 3012}
    report["measured_on"] = "the test split of rapid"
    publish_result(tmp_path / "reports" / "new", REPORT_KIND, "report.json", report, {})
    games = [
        make_record(game, result)
        for game, result in enumerate(("1-0", "0-1", DRAW_RESULT, DRAW_RESULT))
    ]
    summary = summarize_match(games, ("new", "old"), SprtConfig()) | {"ended_by_test": False}
    summary["text"] = format_summary(summary)
    publish_result(tmp_path / "matches" / "first", MATCH_KIND, "summary.json", summary, {})
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "checkpoint.json").write_text("{")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text("{}")
    return tmp_path


def test_every_run_is_listed_with_its_data_and_result(folder: Path) -> None:
    runs = list_runs(folder)
    assert [run["date"] for run in runs] == sorted((run["date"] for run in runs), reverse=True)
    assert [run["name"] for run in runs[-2:]] == ["checkpoints/new", "checkpoints/old"]
    by_name = {run["name"]: run for run in runs}
    assert by_name.keys() == {
        *("checkpoints/new", "checkpoints/old", "damaged", "matches/first", "reports/new")
    }
    new = by_name["checkpoints/new"]
    assert new["date"] == "2001-09-09T01:46:41+00:00"
    assert new["length"] == "1,200 steps, 70 positions, 0.0 min"
    assert Path(new["path"]) == folder / "checkpoints" / "new"
    report = by_name["reports/new"]
    assert (report["headline"], report["data"]) == (HEADLINE, "the test split of rapid")
    assert report["length"] == "20,000 positions of 3,012 games"
    match = by_name["matches/first"]
    assert (match["data"], match["length"]) == ("new against old", "4 games")
    assert "+2 =2 -0" in match["headline"]
    assert match["headline"].startswith("Elo ")
    assert "cannot be read" in by_name["damaged"]["headline"]
    assert list_runs(folder / "checkpoints" / "new")[0]["name"] == "new"


def test_the_page_draws_the_curves_in_one_chart(folder: Path) -> None:
    page = folder / "pages" / "runs.html"
    write_runs(list_runs(folder), page)
    html = page.read_text()
    assert html.count("<svg") == 1
    for name in ("checkpoints/new", "checkpoints/old"):
        assert f">{name}<" in html.partition("All runs")[0], "the chart's legend lacks a name"
    assert {"var(--series-1)", "var(--series-2)"} <= set(html.replace(";", " ").split())
    assert "&lt;b&gt;unseen" in html
    assert "<b>unseen" not in html
    with pytest.raises(ConfigError, match=r"must end in \.html"):
        write_runs([], folder / "runs.txt")


def test_the_command_lists_and_says_what_to_do_next(folder: Path) -> None:
    code, out, error = invoke("runs", str(folder / "checkpoints"))
    assert (code, error) == (0, "")
    assert out.splitlines()[-1].startswith("next: fianchetto runs ")
    page = folder / "compared.html"
    code, out, _ = invoke("runs", str(folder), "--out", str(page))
    assert str(page) in out.splitlines()[-1]
    assert page.exists()
    found = json.loads(invoke("runs", str(folder), "--json")[1])
    assert found["runs"] == list_runs(folder)
    code, out, error = invoke("runs", str(folder / "nowhere"))
    assert (code, out) == (2, "")
    assert "is not a directory" in error
