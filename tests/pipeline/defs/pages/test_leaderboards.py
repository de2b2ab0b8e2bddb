"""The leaderboard ranks checkpoints, compares presets under one rule, and names unreadable
reports."""

import json
from pathlib import Path

from pipeline.defs.pages.metadata import describe_leaderboard


def report(folder: Path, checkpoint: str, dataset: str, **more: object) -> None:
    """Write what the leaderboard reads of a report."""
    figures = {"preset": "xs", "rule": "every ply", "positions": 100, "trained_on_positions": 5000}
    figures |= {"top1": 0.25, "top1_low": 0.05, "top1_high": 0.95, "common_rule": {"top1": 0.26}}
    (folder / checkpoint / dataset).mkdir(parents=True)
    (folder / checkpoint / dataset / "report.json").write_text(json.dumps(figures | more))


def test_checkpoints_are_ranked_and_presets_compared_on_what_most_reports_are_of(
    tmp_path: Path,
) -> None:
    report(tmp_path, "weaker", "small", top1=0.1, top1_low=None, top1_high=None)
    report(tmp_path, "stronger", "small", top1=0.4)
    report(tmp_path, "large", "small", top1=0.3, preset="l")
    report(tmp_path, "selective", "small", top1=0.9, rule="from ply 10 on")
    report(tmp_path, "elsewhere", "other", top1=0.8)
    (tmp_path / "broken" / "small").mkdir(parents=True)
    (tmp_path / "broken" / "small" / "report.json").write_text("{}")
    said = describe_leaderboard(tmp_path)
    rows = [row.data for row in said["leaderboard"].records]
    ranked = [(row["dataset"], row["rule"], row["checkpoint"]) for row in rows]
    assert ranked == [
        ("other", "every ply", "elsewhere"),
        ("small", "every ply", "stronger"),
        ("small", "every ply", "large"),
        ("small", "every ply", "weaker"),
        ("small", "from ply 10 on", "selective"),
    ]
    assert [row["top1_low"] for row in rows[2:4]] == [0.05, ""], "no interval of too few games"
    assert (said["top1 of xs"], said["top1 of l"]) == (0.4, 0.3), (
        "0.9 is by another rule, 0.8 on another dataset"
    )
    assert said["compared_on"] == "small, every ply"
    assert said["reports"] == 5
    (broken,) = said["unreadable_reports"].records
    assert broken.data["file"].endswith("broken/small/report.json")
    assert all(column.description for column in said["leaderboard"].schema.columns)


def test_no_reports_are_an_empty_leaderboard(tmp_path: Path) -> None:
    said = describe_leaderboard(tmp_path)
    assert said["reports"] == 0
    assert not [
        value for row in said["leaderboard"].records for value in row.data.values() if value
    ]
