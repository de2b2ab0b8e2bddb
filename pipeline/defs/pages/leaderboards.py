"""Metadata of the leaderboard: checkpoints ranked by top-1, and the best of each preset."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.json_files import parse_json
from pipeline.defs.pages.metadata import Metadata, table

COLUMNS = {
    "dataset": "Positions on which the checkpoint was measured.",
    "rule": "Which positions count, as a number; top-1 is comparable on the same dataset under the same rule.",
    "preset": "The network.",
    "checkpoint": "Folder in datasets/checkpoints.",
    "top1": "Share of positions in which the network's first choice is the move that was played.",
    "interval": "95 % confidence interval of top-1, clustered by game; empty for too few games.",
    "by_common_rule": "Top-1 under the rule that all reports share.",
    "positions": "Positions measured.",
    "trained_on_positions": "Positions of all training so far, repetitions included.",
}
Row = Mapping[str, Any]


def describe_leaderboard(folder: Path) -> Metadata:
    """Rank the reports in a folder, `CHECKPOINT/DATASET/report.json`, by dataset and top-1, the best first.

    The best top-1 of each preset is a figure of its own, so that Plots draws a curve per preset. These figures are of the
    dataset and the rule with the most reports.
    """
    rows, unreadable = _read_reports(folder)
    rules = {rule: number for number, rule in enumerate(sorted({row["rule"] for row in rows}), 1)}
    found: Metadata = {
        "reports": len(rows),
        "leaderboard": table([_show(row, rules) for row in rows] or [dict.fromkeys(COLUMNS, "")], COLUMNS),
        "rules": table([{"rule": number, "meaning": rule} for rule, number in rules.items()]),
    }
    if rows:
        (largest, _), *_ = Counter((row["dataset"], row["rule"]) for row in rows).most_common(1)
        compared = [row for row in rows if (row["dataset"], row["rule"]) == largest]
        dataset, rule = largest
        found |= {"compared_on": f"{dataset}, rule {rules[rule]}"}
        best: dict[str, float] = {}
        for row in compared:
            best.setdefault(f"top1 of {row['preset']}", round(row["top1"], 6))
        found |= best
    if unreadable:
        found |= {"unreadable_reports": table([{"file": str(path)} for path in unreadable])}
    return found


def _read_reports(folder: Path) -> tuple[list[Row], list[Path]]:
    """Return the reports in a folder, ranked, and the files that could not be read."""
    rows, unreadable = [], []
    for path in sorted(folder.glob("*/*/report.json")):
        row = {"dataset": path.parent.name, "checkpoint": path.parents[1].name}
        try:
            report = parse_json(path.read_bytes())
            names = ("preset", "rule", "positions", "trained_on_positions", "top1", "top1_low", "top1_high")
            rows.append(
                row | {name: report[name] for name in names} | {"by_common_rule": report["common_rule"]["top1"]}
            )
        except (ValueError, KeyError, TypeError):
            unreadable.append(path)
    return sorted(rows, key=lambda row: (row["dataset"], row["rule"], -row["top1"], row["checkpoint"])), unreadable


def _show(row: Row, rules: Mapping[str, int]) -> Row:
    """Return the row of the table for a report."""
    low, high = row["top1_low"], row["top1_high"]
    shown = {"interval": "" if low is None else f"{low:.4f} to {high:.4f}", "rule": rules[row["rule"]]}
    shown |= {name: round(row[name], 4) for name in ("top1", "by_common_rule")}
    return {name: shown.get(name, row.get(name)) for name in COLUMNS}
