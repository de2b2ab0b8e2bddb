"""Metadata of the leaderboard: checkpoints ranked by top-1, and the best of each preset."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.json_files import parse_json
from pipeline.defs.pages.metadata import Metadata, table

COLUMNS = {
    "dataset": "Positions on which the checkpoint was measured.",
    "rule": "Which positions count; top-1 is comparable on the same dataset under the same rule.",
    "preset": "The network.",
    "checkpoint": "Folder in datasets/checkpoints.",
    "top1": "Share of positions in which the network's first choice is the move that was played.",
    "top1_low": "Lower end of the 95 % confidence interval of top-1, clustered by game; empty for too few games.",
    "top1_high": "Upper end of the interval.",
    "common_rule_top1": "Top-1 under the rule that all reports share.",
    "positions": "Positions measured.",
    "trained_on_positions": "Positions of all training so far, repetitions included.",
}


def describe_leaderboard(folder: Path) -> Metadata:
    """Rank the reports in a folder, `CHECKPOINT/DATASET/report.json`, by dataset and top-1, the best first.

    The best top-1 of each preset is a figure of its own, so that Plots draws a curve per preset. These figures are of the
    dataset and the rule with the most reports.
    """
    rows, unreadable = [], []
    for path in sorted(folder.glob("*/*/report.json")):
        try:
            rows.append(_read_row(path))
        except (ValueError, KeyError, TypeError):
            unreadable.append({"file": str(path)})
    rows.sort(key=lambda row: (row["dataset"], row["rule"], -row["top1"], row["checkpoint"]))
    found: Metadata = {
        "reports": len(rows),
        "leaderboard": table(rows or [dict.fromkeys(COLUMNS, "")], COLUMNS),
        **({"unreadable_reports": table(unreadable)} if unreadable else {}),
    }
    if rows:
        (largest, _), *_ = Counter((row["dataset"], row["rule"]) for row in rows).most_common(1)
        found["compared_on"] = ", ".join(largest)
        for row in rows:
            if (row["dataset"], row["rule"]) == largest:
                found.setdefault(f"top1 of {row['preset']}", row["top1"])
    return found


def _read_row(path: Path) -> Mapping[str, Any]:
    """Return the row of a report; raises ValueError, KeyError or TypeError if it cannot be read."""
    report = parse_json(path.read_bytes())
    row = {name: report.get(name) for name in COLUMNS} | {"top1": round(report["top1"], 4)}
    row |= {"dataset": path.parent.name, "checkpoint": path.parents[1].name, "rule": report["rule"]}
    row |= {"common_rule_top1": round(report["common_rule"]["top1"], 4)}
    return {name: "" if value is None else value for name, value in row.items()}
