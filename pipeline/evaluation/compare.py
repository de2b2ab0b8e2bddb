"""Compare presets: train each for as long on the same data, and measure all on the same unseen games."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.progress import Progress, Stop, never, silent
from pipeline.errors import ConfigError, Stopped
from pipeline.evaluation.page.page import report_page
from pipeline.evaluation.render import interval_text, markdown, publish_bytes, publish_table
from pipeline.evaluation.report import Rule, reports
from pipeline.storage.claims import CHECKPOINT, COMPARISON, is_free, is_of, require_apart, require_own
from pipeline.storage.preflight import require_folder
from pipeline.training.train import BEGUN, JOURNAL, has, train_on

if TYPE_CHECKING:
    from model.training.config import TrainConfig

KEPT = ("top1", "top1_low", "top1_high", "top3", "top5", "cross_entropy", "value_brier", "value_calibration_error")


def compare(
    positions: Sequence[Path],
    presets: Sequence[str],
    config: "TrainConfig",
    out: Path,
    *,
    rule: Rule | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Train every preset with one configuration; return `rows`, best top-1 first, and the table as `text`.

    All are measured on the first dataset's test split, and `report.html` in `out` shows them side by side with paired
    differences. Each preset has a directory in `out`; one that is trained already is not trained again. Raises
    UnknownPresetError and ConfigError before any training, and Stopped, after which the same call continues.
    """
    from model.network.presets import preset

    if not presets:
        raise ConfigError("name at least one preset to compare")
    for name in presets:
        preset(name)
    if not positions or not has(positions[:1], "test"):
        raise ConfigError("presets are compared on the first dataset's test split: name one that has test positions")
    require_folder(out)
    require_own(out, COMPARISON, ConfigError, ours=lambda entry: is_of(entry, CHECKPOINT) or _begun(entry))
    require_apart(out, positions, ConfigError)
    if config.optimizer == "auto":
        config = replace(config, optimizer="adamw")  # one for all
    cards, names = [], list(dict.fromkeys(presets))
    for name in names:
        card = train_on(positions, name, config, out / name, progress, stop)
        if not card["finished"]:
            raise Stopped(f"stopped in {out / name}; run the same command to continue")
        cards.append(card)
    found = reports([out / name for name in names], positions=positions[0], rule=rule, progress=progress)
    rows = [
        {
            "preset": name,
            "parameters": card["parameters"],
            "positions": card["positions"],
            "positions_per_second": round(card["positions"] / max(card["seconds"], 1e-9), 1),
            "valued": preset(name).value != "none",
            **{figure: one[figure] for figure in KEPT},
            "common_rule_top1": one["common_rule"].get("top1"),
            "rule": one["rule"],
        }
        for name, card, one in zip(names, cards, found["reports"], strict=True)
    ]
    rows.sort(key=lambda row: -row["top1"])
    result = publish_table(out, "comparison", rows, table_of(rows))
    publish_bytes(out, "report.html", report_page(names, found["reports"], found["differences"]))
    return result


def _begun(entry: Path) -> bool:
    """Return whether a folder is a training that was stopped before its first checkpoint."""
    from model.network.presets import presets

    return entry.name in presets() and is_free(entry, JOURNAL, *BEGUN)


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown: positions seen in training, positions a second, and the figures on unseen games."""
    return markdown(
        "preset|parameters|positions seen|a second|top-1 (95 %)|top-3|top-5|cross-entropy|Brier",
        (
            (
                row["preset"],
                *(f"{row[name]:,.0f}" for name in ("parameters", "positions", "positions_per_second")),
                f"{row['top1']:.4f} ({interval_text(row, 'games')})",
                *(f"{row[name]:.4f}" for name in ("top3", "top5", "cross_entropy")),
                f"{row['value_brier']:.4f}" if row["valued"] else "no value",
            )
            for row in rows
        ),
    )
