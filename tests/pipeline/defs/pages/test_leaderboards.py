"""The leaderboard: checkpoints ranked, presets compared where the figures are comparable, and what is no report named."""

import base64
import io
import json
import re
from pathlib import Path

from PIL import Image

from pipeline.defs.pages.leaderboards import of_leaderboard


def report(folder: Path, checkpoint: str, dataset: str, **more: object) -> None:
    """Write what the leaderboard reads of a report."""
    figures = {"preset": "xs", "rule": "every ply", "positions": 100, "trained_on_positions": 5000}
    figures |= {"top1": 0.25, "top1_low": 0.05, "top1_high": 0.95, "common_rule": {"top1": 0.26}}
    (folder / checkpoint / dataset).mkdir(parents=True)
    (folder / checkpoint / dataset / "report.json").write_text(json.dumps(figures | more))


def test_checkpoints_are_ranked_and_presets_compared_on_what_most_reports_are_of(tmp_path: Path) -> None:
    report(tmp_path, "weaker", "small", top1=0.1, top1_low=None, top1_high=None)
    report(tmp_path, "stronger", "small", top1=0.4)
    report(tmp_path, "large", "small", top1=0.3, preset="l")
    report(tmp_path, "selective", "small", top1=0.9, rule="from ply 10 on")
    report(tmp_path, "elsewhere", "other", top1=0.8)
    (tmp_path / "broken" / "small").mkdir(parents=True)
    (tmp_path / "broken" / "small" / "report.json").write_text("{}")
    said = of_leaderboard(tmp_path)
    rows = [row.data for row in said["leaderboard"].records]
    ranked = [(row["dataset"], row["rule"], row["checkpoint"]) for row in rows]
    assert ranked == [
        ("other", "A", "elsewhere"),
        ("small", "A", "stronger"),
        ("small", "A", "large"),
        ("small", "A", "weaker"),
        ("small", "B", "selective"),
    ]
    assert [row["interval"] for row in rows[2:4]] == ["0.0500 to 0.9500", ""], "no interval of too few games"
    assert said["rules"].value == "- **A**: every ply\n- **B**: from ply 10 on"
    assert (said["top1 of xs"], said["top1 of l"]) == (0.4, 0.3), "0.9 is by another rule, 0.8 on another dataset"
    assert said["compared_on"] == "small, rule A"
    assert said["reports"] == 5
    assert "broken/small/report.json is no report" in said["no_reports"].value
    assert all(column.description for column in said["leaderboard"].schema.columns)
    picture = re.search(r"base64,([^)]+)\)", said["comparison"].value)
    assert picture is not None
    with Image.open(io.BytesIO(base64.b64decode(picture[1]))) as image:
        assert image.width > 300
    assert len(said["comparison"].value) < 100_000


def test_no_reports_are_an_empty_leaderboard(tmp_path: Path) -> None:
    said = of_leaderboard(tmp_path)
    assert said["reports"] == 0
    assert not [value for row in said["leaderboard"].records for value in row.data.values() if value]
    assert "comparison" not in said
