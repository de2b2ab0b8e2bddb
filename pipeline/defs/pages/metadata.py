"""Metadata of assets, which Dagster shows on their pages: counts, tables, schemas and pictures."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg
import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from engine.encoding.planes import ENCODING_VERSION
from engine.encoding.views import LAST_MOVES
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.columns import COLUMN_MEANINGS, FORMAT_VERSION, GAMES, list_columns
from pipeline.dataset.files.games import read_games
from pipeline.defs.pages import pictures
from pipeline.defs.resources import DataFolder
from pipeline.errors import DatasetError
from pipeline.evaluation import charts
from pipeline.validation.verify import sample_rows

Metadata = dict[str, Any]
CODE_VERSION = f"encoding {ENCODING_VERSION}, format {FORMAT_VERSION}"
"""Dagster's `code_version` of assets that depend on how positions are encoded and stored."""
PROBE_ROWS = 1024
"""Number of rows on which the checks measure a checkpoint's loss."""
NUM_BOARDS = 6
"""Number of sample positions that are drawn."""
MAX_COMPARED_CURVES = 4
"""Maximum number of checkpoints in one picture of training curves."""
REPORT_FIGURES = (
    "positions", "top3", "top5", "cross_entropy", "legal_mass", "value_brier",
    "hand_written_top1", "chance_top1",
)  # fmt: skip
"""Figures of a report that are shown as numbers."""
SHARD_TABLE_COLUMNS = ("name", "split", "rows", "bytes")
LEAK_TABLE_COLUMNS = ("split", "positions", "in_train", "in_train_share")
MAX_TABLE_ROWS = 200
"""Maximum number of rows in a table, since longer tables make the page slow."""


def describe_path(path: Path) -> Metadata:
    """Return metadata with a result's path, also as a URI."""
    return {"path": dg.MetadataValue.path(path), "dagster/uri": path.as_uri()}


def describe_positions(directory: Path, manifest: Mapping[str, Any]) -> Metadata:
    """Return metadata of positions: counts, dropped games, shards, ratings and sample boards."""
    games, examples = manifest["games"], manifest.get("examples", {})
    dropped = [
        {
            "reason": name,
            "games": count,
            "first example": "{where}: {text}".format(**examples[name]) if name in examples else "",
        }
        for name, count in (games["dropped"] or {"none": 0}).items()
    ]
    files = [file for file in manifest["files"] if file["name"] != GAMES]
    title = "Elo of the players"
    try:
        rows = sample_rows(Dataset(directory, dict(manifest), ""), NUM_BOARDS)
        boards = pictures.make_table([pictures.draw_board(row) for row in rows])
        ratings = pictures.draw_histogram(read_ratings(directory, manifest), title, "Elo")
        elo = pictures.publish_picture(ratings, ".png", title)
    except DatasetError as error:  # the checks list damaged files
        boards = elo = str(error)
    return {
        **describe_path(directory),
        "dagster/row_count": manifest["positions"]["total"],
        "dagster/column_schema": make_column_schema(manifest),
        "games_read": games["read"],
        "games_used": games["used"],
        "dropped_games": make_table(dropped),
        "positions": _count_splits(manifest),
        "bytes_per_position": manifest["bytes_per_position"],
        "shards": make_table(
            [{name: file[name] for name in SHARD_TABLE_COLUMNS} for file in files]
        ),
        "elo": dg.MetadataValue.md(elo),
        "sample_of_positions": dg.MetadataValue.md(boards),
    }


def describe_training_set(
    directory: Path, page: Mapping[str, Any], audit: Mapping[str, Any] | None, folder: Path
) -> Metadata:
    """Return metadata of a training set, and of its audit in `folder` unless `audit` is None."""
    # a list, because Dagster does not wrap text in tables
    members = "\n".join(
        "- `{name}`: games of {first_date} to {last_date}. Held out: {held_out} ({why})".format(
            **entry
        )
        for entry in page["datasets"]
    )
    metadata: Metadata = {
        **describe_path(directory),
        "dagster/row_count": page["positions"]["train"],
        "positions": _count_splits(page),
        "datasets": dg.MetadataValue.md(members),
    }
    if audit is None:
        return metadata
    return metadata | {
        "copies_share": audit["copies"]["copies_share"],
        "test_positions_in_train": make_table(
            [{name: row[name] for name in LEAK_TABLE_COLUMNS} for row in audit["in_train"]]
        ),
        "audit_page": dg.MetadataValue.path(folder / "AUDIT.md"),
    }


def _count_splits(page: Mapping[str, Any]) -> dg.TableMetadataValue:
    return make_table(
        [{"split": name, "positions": count} for name, count in page["positions"].items()]
    )


def describe_checkpoint(directory: Path, card: Mapping[str, Any]) -> Metadata:
    """Return metadata of a checkpoint: final metrics, training curves and card."""
    return {
        **describe_path(directory),
        **_draw_curves(directory),
        **{name: card[name] for name in ("step", "positions", "seconds", "parameters")},
        **card["metrics"],
        "card": dg.MetadataValue.json(dict(card)),
    }


def _draw_curves(directory: Path) -> Metadata:
    """Draw the training curves of a checkpoint and of the newest others; {} without any."""
    from model.training.monitor import METRICS_FILE, read_metrics

    others = [path.parent for path in directory.parent.glob(f"*/{METRICS_FILE}")]
    newest = sorted(others, key=lambda path: -(path / METRICS_FILE).stat().st_mtime)
    shown = [directory, *(path for path in newest if path != directory)][:MAX_COMPARED_CURVES]
    runs = {path.name: read_metrics(path) for path in shown}
    runs = {name: entries for name, entries in runs.items() if entries}
    if not runs:
        return {}
    drawing = charts.draw_training(runs, on_page=False).encode()
    picture = pictures.publish_picture(drawing, ".svg", "loss and top-1")
    return {"curves": dg.MetadataValue.md(picture)}


def describe_report(network: Path, data: Path, report: Mapping[str, Any], folder: Path) -> Metadata:
    """Return metadata of a report in `folder`: headline, link, figures and pictures."""
    by_rating = {report["name"]: report["slices"]["rating"]}
    chart = charts.draw_bars(by_rating, on_page=False).encode()
    shown = [rows[0] for rows in report["details"]["boards"].values() if rows]
    boards = [
        (charts.draw_position(row, pictures.BOARD_PIXELS), charts.make_caption(row))
        for row in shown
    ]
    return {
        **describe_accuracy(report),  # first, because a run's page truncates long lists
        "headline": report["headline"],
        "compared": report["compared"],
        "measured_on": dg.MetadataValue.path(data),
        "page": link_report(folder),
        "accuracy": dg.MetadataValue.md(
            pictures.publish_picture(chart, ".svg", "accuracy by rating")
        ),
        "boards": dg.MetadataValue.md(pictures.make_table(boards)),
        # the value's figures are None for puzzles, which have no results
        **{name: round(report[name], 4) for name in REPORT_FIGURES if report[name] is not None},
        "rule": report["rule"],
        "seen_in_training": report["seen_in_training"],
        "checkpoint": dg.MetadataValue.path(network),
        "path": dg.MetadataValue.path(folder),
    }


def describe_accuracy(report: Mapping[str, Any]) -> Metadata:
    """Return a report's top-1 accuracy: as text with its interval, and as a number to plot."""
    text = f"{100 * report['top1']:.1f} %"
    if report.get("top1_low") is not None:
        text += f" ({100 * report['top1_low']:.1f} to {100 * report['top1_high']:.1f})"
    return {"moves_found": text, "top1": round(report["top1"], 4)}


def link_report(folder: Path) -> dg.UrlMetadataValue:
    """Return a link to the HTML page of a report, which ui.py serves."""
    path = folder.relative_to(DataFolder().path / "reports").as_posix()
    return dg.MetadataValue.url(f"/reports/{quote(path)}/report.html")


def make_table(records: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return a table of the first MAX_TABLE_ROWS records; the first record names the columns."""
    column_types = {int: "int", float: "float", bool: "bool"}
    rows = []
    for record in records[:MAX_TABLE_ROWS]:
        floats = {name: round(it, 6) for name, it in record.items() if isinstance(it, float)}
        rows.append(dg.TableRecord({**record, **floats}))
    columns = records[0] if records else {"nothing": ""}
    schema = [
        dg.TableColumn(name, column_types.get(type(value), "string"))
        for name, value in columns.items()
    ]
    return dg.MetadataValue.table(rows, dg.TableSchema(schema))


def make_column_schema(manifest: Mapping[str, Any]) -> dg.TableSchema:
    """Return the schema of a dataset's shards, with a description of each column."""
    history = (manifest.get("config") or {}).get("history", 1)
    columns = []
    for column in list_columns(manifest["planes"], LAST_MOVES[:history]):
        optional = dg.TableColumnConstraints(nullable=column.null is not None)
        text = COLUMN_MEANINGS[column.name]
        columns.append(dg.TableColumn(column.name, str(column.type), text, constraints=optional))
    return dg.TableSchema(columns)


def read_ratings(directory: Path, manifest: Mapping[str, Any]) -> NDArray[Any]:
    """Return the known ratings of both players in all games (int, `[N]`). Raises DatasetError."""
    columns = read_games(directory, manifest, ("white_elo", "black_elo"))
    values = np.concatenate([np.asarray(column.drop_null()) for column in columns.itercolumns()])
    return values[values > 0]


def hash_data_version(*inputs: Any) -> dg.DataVersion:
    """Return a hash of an asset's inputs and options: equal versions mean equal data."""
    text = json.dumps(to_jsonable_python(inputs), sort_keys=True)
    return dg.DataVersion(hashlib.sha256(text.encode()).hexdigest()[:16])
