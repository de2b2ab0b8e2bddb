"""The page of the leaderboard: checkpoints ranked, presets compared, and what makes two figures comparable."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from engine.json_files import parse_json
from pipeline.defs.pages import pictures
from pipeline.defs.pages.metadata import Metadata, table

COLUMNS = {
    "dataset": "Positions that the checkpoint was measured on.",
    "rule": "Which positions count, by letter; figures of one dataset and one rule compare.",
    "preset": "The network.",
    "checkpoint": "Folder in datasets/checkpoints.",
    "top1": "Share of positions whose human move is the network's first choice.",
    "interval": "95 % interval of top-1, by games; empty where there are too few games for one.",
    "by_common_rule": "Top-1 by the common rule, which is the same in all reports.",
    "positions": "Positions measured.",
    "trained_on_positions": "Positions that the network has seen, repetitions and the runs that it began with counted.",
}
DRAWN = 24
"""Checkpoints in the picture at most, the best ones."""
Row = Mapping[str, Any]


def of_leaderboard(folder: Path) -> Metadata:
    """Rank the reports that lie in a folder, `CHECKPOINT/DATASET/report.json`, by dataset and top-1, the best first.

    The best checkpoint of each preset is a figure of its own, so that Plots draws a curve for each preset: of the dataset
    and rule that most reports are of.
    """
    rows, broken = _read(folder)
    letters = {rule: _letter(number) for number, rule in enumerate(sorted({row["rule"] for row in rows}))}
    shown = [_shown(row, letters) for row in rows]
    found: Metadata = {
        "reports": len(rows),
        "leaderboard": table(shown or [dict.fromkeys(COLUMNS, "")], COLUMNS),
        "rules": dg.MetadataValue.md("\n".join(f"- **{letter}**: {rule}" for rule, letter in letters.items())),
    }
    if rows:
        compared = _comparable(rows)
        found |= {"compared_on": f"{compared[0]['dataset']}, rule {letters[compared[0]['rule']]}"}
        found |= {f"top1 of {preset}": top1 for preset, top1 in _best(compared).items()}
        bars = [
            (f"{row['checkpoint']} ({row['preset']})", *(row[name] for name in FIGURES)) for row in compared[:DRAWN]
        ]
        drawn = pictures.intervals(bars, f"top-1 on {compared[0]['dataset']}", "top-1 with its 95 % interval")
        found |= {"comparison": dg.MetadataValue.md(pictures.png(drawn, "checkpoints compared"))}
    if broken:
        found |= {"no_reports": dg.MetadataValue.md("\n".join(f"- {path} is no report" for path in broken))}
    return found


FIGURES = ("top1", "top1_low", "top1_high")


def _read(folder: Path) -> tuple[list[Row], list[Path]]:
    """Return the reports in a folder, ranked, and the files that are none."""
    rows, broken = [], []
    for path in sorted(folder.glob("*/*/report.json")):
        row = {"dataset": path.parent.name, "checkpoint": path.parents[1].name}
        try:
            report = parse_json(path.read_bytes())
            figures = {name: report[name] for name in ("preset", "rule", "positions", "trained_on_positions", *FIGURES)}
            rows.append(row | figures | {"by_common_rule": report["common_rule"]["top1"]})
        except (ValueError, KeyError, TypeError):
            broken.append(path)
    return sorted(rows, key=lambda row: (row["dataset"], row["rule"], -row["top1"], row["checkpoint"])), broken


def _comparable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the dataset and rule that most reports are of."""
    (most, _), *_ = Counter((row["dataset"], row["rule"]) for row in rows).most_common(1)
    return [row for row in rows if (row["dataset"], row["rule"]) == most]


def _best(rows: Sequence[Row]) -> dict[str, float]:
    """Return the highest top-1 of each preset."""
    best: dict[str, float] = {}
    for row in rows:
        best[row["preset"]] = max(best.get(row["preset"], 0.0), row["top1"])
    return {preset: round(best[preset], 6) for preset in sorted(best)}


def _letter(number: int) -> str:
    """Return A, B ... Z, A1, B1 ..."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def _shown(row: Row, letters: Mapping[str, str]) -> Row:
    """Return what the table shows of a report."""
    low, high = row["top1_low"], row["top1_high"]
    told = {"interval": "" if low is None else f"{low:.4f} to {high:.4f}", "rule": letters[row["rule"]]}
    rounded = {name: round(row[name], 4) for name in ("top1", "by_common_rule")}
    return {name: (dict(row) | told | rounded)[name] for name in COLUMNS}
