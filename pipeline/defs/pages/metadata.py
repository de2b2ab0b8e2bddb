"""What a person reads on an asset's page: counts, tables, schema, pictures."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from engine.encoding.views import LAST_MOVES
from engine.json_files import parse_json
from pipeline.dataset.files.columns import columns_of
from pipeline.dataset.files.shard_files import read_games
from pipeline.dataset.files.shards import GAMES, file_hash, read_manifest
from pipeline.defs.pages import pictures
from pipeline.dumps.paths import dumps_of
from pipeline.errors import DatasetError
from pipeline.evaluation.page.links import with_games
from pipeline.evaluation.render import SLICED
from pipeline.training.train import JOURNAL
from pipeline.validation.audit.drift import by_step
from pipeline.validation.verify import sample_rows

Metadata = dict[str, Any]
PROBED = 1024
"""Rows of a dataset that a checkpoint is probed on."""
FIGURES = (
    "positions",
    "top1",
    "top3",
    "top5",
    "cross_entropy",
    "legal_mass",
    "value_brier",
    "hand_written_top1",
    "chance_top1",
)
SHARD_COLUMNS = ("name", "split", "rows", "bytes", "sha256")
JOINED_COLUMNS = ("name", "first_date", "last_date", "held_out")
AT_A_GLANCE = "at_a_glance"
"""Metadata that comes first: a sentence and a small picture, which Dagster shows in place."""
LONGEST_TABLE = 200
"""Rows of a table that a page shows without getting slow."""


def of_positions(directory: Path, manifest: Mapping[str, Any], seconds: float | None) -> Metadata:
    """Describe a positions dataset; `seconds` is how long this run took to make it, None if it was there already."""
    games, rows = manifest["games"], manifest["positions"]["total"]
    dropped = games["dropped"] or {"none": 0}
    speed = {"seconds": round(seconds, 2), "positions_per_second": round(rows / seconds)} if seconds else {}
    files = [file for file in manifest["files"] if file["name"] != GAMES]
    try:
        drawn = [pictures.Drawing(row=row) for row in sample_rows(directory, manifest, 6)]
        boards = pictures.boards(linked(drawn, directory, manifest))
        ratings = elo_of_players(directory, manifest)
        elo = pictures.png(pictures.histogram(ratings, "Elo of the players", "Elo"), "Elo of the players")
        counts = np.histogram(ratings, 24)[0].tolist() if len(ratings) else []
        glance = pictures.thumbnail(counts, "Elo of the players", bars=True)
    except DatasetError as error:  # the checks say what is wrong with the files, each by its name
        boards = elo = str(error)
        glance = ""
    return {
        AT_A_GLANCE: at_a_glance(f"{rows:,} positions of {games['used']:,} games", glance),
        "path": dg.MetadataValue.path(directory),
        "dagster/uri": directory.as_uri(),
        "dagster/row_count": rows,
        "dagster/column_schema": column_schema(manifest),
        "games_read": games["read"],
        "games_used": games["used"],
        "games_dropped": games["read"] - games["used"],
        "dropped_games": table([{"reason": name, "games": count} for name, count in dropped.items()]),
        "positions": table([{"split": name, "positions": count} for name, count in manifest["positions"].items()]),
        **speed,
        "bytes_per_position": manifest["bytes_per_position"],
        "label_collisions": manifest["label_collisions"],
        "shards": table([{name: file[name] for name in SHARD_COLUMNS} for file in files]),
        "elo": dg.MetadataValue.md(elo),
        "sample_of_positions": dg.MetadataValue.md(boards),
    }


def of_training_set(
    directory: Path, page: Mapping[str, Any], audit: Mapping[str, Any] | None, folder: Path
) -> Metadata:
    """Describe a training set by its page, and by its audit, whose files lie in `folder`, if there is one."""
    found: Metadata = {
        "path": dg.MetadataValue.path(directory),
        "dagster/uri": directory.as_uri(),
        "dagster/row_count": page["positions"]["train"],
        "positions": table([{"split": name, "positions": count} for name, count in page["positions"].items()]),
        "datasets": table([{name: f"{entry[name]}" for name in JOINED_COLUMNS} for entry in page["datasets"]]),
    }
    if audit is None:
        return found
    drift = {name: by_step(rows, LONGEST_TABLE) for name, rows in audit["drift"].items() if rows}
    shares = [row["train"] for row in audit["distributions"]["rating"]]
    steps = [row for rows in drift.values() for row in rows]
    moved = f", drift of {steps[-1]['to']}: {steps[-1]['moved most']}" if steps else ""
    words = f"{page['positions']['train']:,} positions, {audit['copies']['copies_share']:.1%} copies{moved}"
    return (
        {AT_A_GLANCE: at_a_glance(words, pictures.thumbnail(shares, "train by rating", bars=True))}
        | found
        | {
            "copies_share": audit["copies"]["copies_share"],
            "test_positions_in_train": table(audit["in_train"]),
            "labels": table([{"what": name, "value": float(value)} for name, value in audit["labels"].items()]),
            **{f"drift_{name}": table(rows) for name, rows in drift.items()},
            "audit": dg.MetadataValue.md(pictures.png(folder / "audit.png", "what is in the training set")),
            "audit_page": dg.MetadataValue.path(folder / "AUDIT.md"),
        }
    )


def of_checkpoint(directory: Path, card: Mapping[str, Any]) -> Metadata:
    """Describe a checkpoint by its card, its last figures and its curves."""
    curves = directory / "curves.png"
    figures = {name: card[name] for name in ("step", "positions", "seconds", "parameters")} | card["metrics"]
    pictured = {"curves": dg.MetadataValue.md(pictures.png(curves, "loss and top-1"))} if curves.exists() else {}
    losses = losses_of(directory)
    words = f"{card['step']:,} steps, {card['positions']:,} positions" + (f", loss {losses[-1]:.3f}" if losses else "")
    return {
        AT_A_GLANCE: at_a_glance(words, pictures.thumbnail(losses, "loss by step") if losses else ""),
        "path": dg.MetadataValue.path(directory),
        "dagster/uri": directory.as_uri(),
        "card_sha256": file_hash(directory / "checkpoint.json"),
        **pictured,
        **figures,
        "card": dg.MetadataValue.json(dict(card)),
    }


def losses_of(directory: Path) -> list[float]:
    """Return the losses of a training by step; not by the model's reader, which loads torch."""
    journal = directory / JOURNAL
    rows = [parse_json(line) for line in journal.read_bytes().splitlines()] if journal.exists() else []
    return [row["loss"] for row in rows if row.get("loss") is not None]


def drawings(directory: Path, split: str, choices: Sequence[Sequence[tuple[int, float]]]) -> list[pictures.Drawing]:
    """Draw the rows of a split that the `probe` task gave the network's first choices of."""
    manifest = read_manifest(directory)
    rows = sample_rows(directory, manifest, PROBED, split)
    drawn = [pictures.Drawing(row=row, choices=chosen) for row, chosen in zip(rows, choices, strict=False)]
    return linked(drawn, directory, manifest)


def of_report(
    network: Path, reports: Mapping[str, Mapping[str, Any]], folder: Path, drawings: Sequence[pictures.Drawing]
) -> Metadata:
    """Describe the accuracy on each dataset and over all, with boards of what the network would play.

    `folder` holds a subfolder with the files of `write_report` for each dataset.
    """
    numbers = [{"dataset": name} | {figure: report[figure] for figure in FIGURES} for name, report in reports.items()]
    drawn = [pictures.png(folder / name / "report.png", f"accuracy on {name}") for name in reports]
    first = next(iter(reports.values()))
    slices = {f"by_{name.replace(' ', '_')}": table(plain(rows)) for name, rows in first["slices"].items()}
    bands = [row["top1"] for row in first["slices"]["rating"]]
    words = f"top-1 {first['top1']:.1%}{_interval(first)}, hand-written {first['hand_written_top1']:.1%}"
    return {
        AT_A_GLANCE: at_a_glance(words, pictures.thumbnail(bands, "top-1 by rating, the lowest first", bars=True)),
        "checkpoint": dg.MetadataValue.path(network),
        **overall(reports),
        **(honest(first) if len(reports) == 1 else {}),
        "rule": "; ".join(report["rule"] for report in reports.values()),
        "report": dg.MetadataValue.md("\n\n".join(drawn)),
        "first_choices": dg.MetadataValue.md(pictures.boards(drawings)),
        "datasets": table(numbers),
        **(slices if len(reports) == 1 else {}),
        "page": dg.MetadataValue.path(folder / next(iter(reports)) / "report.html"),
        "path": dg.MetadataValue.path(folder),
    }


def plain(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns of a slice that a table shows."""
    return [{name: row[name] for name in SLICED} for row in rows]


def _interval(report: Mapping[str, Any]) -> str:
    """Return the interval of top-1 in brackets, or nothing where there is none."""
    return "" if report["top1_low"] is None else f" ({report['top1_low']:.1%} to {report['top1_high']:.1%})"


def honest(report: Mapping[str, Any]) -> Metadata:
    """Say what makes a report's top-1 comparable: its interval, the figure by the common rule, and what train holds of it."""
    low, high = report["top1_low"], report["top1_high"]
    rows = report["slices"].get("in train", [])
    held = sum(row["positions"] for row in rows if row["band"] != "not in train")
    return {
        "top1_interval": report["top1_interval"] if low is None else f"{low:.4f} to {high:.4f} (95 %)",
        "top1_by_common_rule": report["common_rule"]["top1"],
        "common_rule": report["common_rule"]["rule"],
        "seen_in_training": report["seen_in_training"],
        **({"share_of_positions_in_train": round(held / report["positions"], 6)} if rows else {}),
    }


def overall(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Add positions up over the datasets, and average the other figures weighted by them."""
    total = sum(report["positions"] for report in reports.values())
    means = {}
    for name in FIGURES:
        known = [
            report for report in reports.values() if report[name] is not None
        ]  # positions of no game have no results
        if name != "positions" and known:
            weights = [report["positions"] for report in known]
            means[name] = round(float(np.average([report[name] for report in known], weights=weights)), 6)
    return {"positions": total} | means


def table(records: Sequence[Mapping[str, Any]], descriptions: Mapping[str, str] | None = None) -> dg.TableMetadataValue:
    """Show records as a table, the first ones if there are too many for a page, with `descriptions` of its columns."""
    kinds = {int: "int", float: "float", bool: "bool"}
    shown = [
        dg.TableRecord({name: round(value, 6) if isinstance(value, float) else value for name, value in record.items()})
        for record in records[:LONGEST_TABLE]
    ]
    columns = list(records[0].items()) if records else [("nothing", "")]
    words = descriptions or {}
    schema = dg.TableSchema(
        [dg.TableColumn(name, kinds.get(type(value), "string"), words.get(name)) for name, value in columns]
    )
    return dg.MetadataValue.table(shown, schema)


def column_schema(manifest: Mapping[str, Any]) -> dg.TableSchema:
    """Describe the columns of a dataset's shards, those of the planes as the manifest says that they are stored."""
    history = (manifest.get("config") or {}).get("history", 1)
    return dg.TableSchema(
        [
            dg.TableColumn(
                column.name, str(column.type), column.meaning, dg.TableColumnConstraints(column.null is not None)
            )
            for column in columns_of(manifest["planes"], LAST_MOVES[:history])
        ]
    )


def at_a_glance(words: str, picture: str) -> dg.MarkdownMetadataValue:
    """Return words and a thumbnail as Dagster shows them in place."""
    return dg.MetadataValue.md(pictures.inline(words, picture))


def linked(
    drawings: Sequence[pictures.Drawing], directory: Path, manifest: Mapping[str, Any]
) -> list[pictures.Drawing]:
    """Return the drawings with links to their games, where the dump of the dataset is there and has them."""
    rows = {"rows": [{"game": drawing.row["game"]} for drawing in drawings]}
    found = with_games(rows, directory, dumps_of(directory, manifest) or [])["rows"]
    return [replace(drawing, link=row.get("link", "")) for drawing, row in zip(drawings, found, strict=True)]


def elo_of_players(directory: Path, manifest: Mapping[str, Any]) -> NDArray[Any]:
    """Return the Elo of both players over all games of a dump, where it is known; raises DatasetError."""
    columns = read_games(directory, manifest, ("white_elo", "black_elo"))
    values = np.concatenate([np.asarray(column.drop_null()) for column in columns.itercolumns()])
    return values[values > 0]


def data_version(*inputs: Any) -> dg.DataVersion:
    """Hash inputs and options: the same version means the same data."""
    text = json.dumps(to_jsonable_python(inputs), sort_keys=True)
    return dg.DataVersion(hashlib.sha256(text.encode()).hexdigest()[:16])
