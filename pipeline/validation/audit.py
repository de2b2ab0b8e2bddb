"""Audit datasets: count rows by column, and duplicate positions and games, in and between splits.

Memory use does not depend on the number of rows: memory holds one row group, one part of the
temporary files (pipeline/dataset/scratch.py) and the counts by bin. Temporary files take at most 16
bytes per row.

Axes: S splits (ALL_SPLITS), K bins.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from engine.encoding.planes import PIECE_PLANES
from engine.progress import Progress, Tick, silent
from pipeline.dataset.dataset import ALL_SPLITS, Dataset
from pipeline.dataset.join import count_games, make_shared_counts, make_split_counts
from pipeline.dataset.position_keys import hash_positions
from pipeline.dataset.scratch import RowPartitions
from pipeline.dataset.strata import (
    TIME_CLASSES,
    assign_rating_bands,
    classify_time_controls,
    name_bands,
)
from pipeline.errors import ConfigError
from pipeline.storage.job_folder import AUDIT_KIND, publish_result
from pipeline.storage.tables import format_markdown_table, format_text_table

Rows = Mapping[str, NDArray[Any]]

AUDITED_COLUMNS = (
    "planes",
    "label",
    "castling",
    "result",
    "ply",
    "plies",
    "elo",
    "base",
    "increment",
    "game",
)
"""Columns that an audit reads; `game` is read only because that checks its range."""
RATING_EDGES = tuple(range(800, 2801, 200))
"""Lower edges of the second and later rating bands."""


class Bins(NamedTuple):
    """The names of a property's bins, and a function that returns each row's bin."""

    names: Sequence[str]
    find_bins: Callable[[Rows], NDArray[Any]]


def _make_bins(edges: Sequence[int], values: Callable[[Rows], NDArray[Any]]) -> Bins:
    """Return the bins below the first edge, between edges, and from the last edge on."""
    bins = name_bands(edges)[:-1]
    return Bins(bins, lambda rows: np.searchsorted(edges, values(rows), side="right"))


def _count_pieces(rows: Rows) -> NDArray[Any]:
    count_R: NDArray[Any] = np.bitwise_count(rows["planes"][:, :PIECE_PLANES]).sum(axis=1)
    return count_R


AUDIT_BINS = {
    "rating": Bins(
        name_bands(RATING_EDGES), lambda rows: assign_rating_bands(rows["elo"], RATING_EDGES)
    ),
    "time_control": Bins(
        TIME_CLASSES, lambda rows: classify_time_controls(rows["base"], rows["increment"])
    ),
    "ply": _make_bins((10, 20, 30, 40, 60, 80, 120), lambda rows: rows["ply"]),
    "plies": _make_bins((20, 40, 60, 80, 100, 150, 200), lambda rows: rows["plies"]),
    "result": Bins(("loss", "draw", "win"), lambda rows: rows["result"].astype(np.int64) + 1),
    "pieces": _make_bins((6, 10, 16, 22, 28), _count_pieces),
}


def audit(directories: Sequence[Path], *, progress: Progress = silent) -> dict[str, Any]:
    """Count the rows of several datasets together, and what other splits share with train.

    Returns counts and tables (lists of rows) by name. Raises DatasetError or ConfigError.
    """
    opened = (part for path in directories for part in Dataset.open(path, progress).parts)
    datasets = list({part.path.resolve(): part for part in opened}.values())
    if not datasets:
        raise ConfigError("name at least one dataset to audit")
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        total = sum(part.manifest["positions"]["total"] for part in datasets)
        positions = RowPartitions(Path(folder), total)
        bins = _count_rows(datasets, positions, progress)
        tables = _count_positions(positions)
    overview = [
        {"dataset": part.name, "games": part.manifest["games"]["used"]}
        | {split: part.count_rows(split) for split in ALL_SPLITS}
        | {"held_out": part.held_out}
        for part in datasets
    ]
    tables["games"] = _count_games(datasets)
    tables["distributions"] = {
        name: _tabulate_distribution(AUDIT_BINS[name].names, counts_SK)
        for name, counts_SK in bins.items()
    }
    return {"datasets": overview, **tables}


def _count_rows(
    datasets: Sequence[Dataset], positions: RowPartitions, progress: Progress
) -> dict[str, NDArray[np.int64]]:
    """Return each property's counts by split and bin, [S, K]; add the keys to `positions`."""
    counts = {
        name: np.zeros((len(ALL_SPLITS), len(bins.names)), dtype=np.int64)
        for name, bins in AUDIT_BINS.items()
    }
    done, total = 0, sum(part.manifest["positions"]["total"] for part in datasets)
    for part in datasets:
        for split, split_name in enumerate(ALL_SPLITS):
            for rows in part.read_rows(split_name, AUDITED_COLUMNS):
                for name, (bins, find_bins) in AUDIT_BINS.items():
                    counts[name][split] += np.bincount(find_bins(rows), minlength=len(bins))
                key = hash_positions(rows["planes"], rows["castling"])
                frame = pl.DataFrame({"key": key, "label": rows["label"]})
                positions.add(frame.with_columns(split=pl.lit(split, pl.UInt8)))
                done += len(frame)
                progress(Tick(done, total, "positions", {}))
    return counts


def _count_games(datasets: Sequence[Dataset]) -> dict[str, int]:
    """Count duplicate games, and the games of each other split that also occur in train."""
    found = count_games(datasets)
    total = sum(found[name] for name in ALL_SPLITS)
    counts = {"games": total, "distinct": found["distinct"], "copies": total - found["distinct"]}
    return counts | {f"{name}_games_in_train": found[f"{name}_in_train"] for name in ALL_SPLITS[1:]}


def _tabulate_distribution(
    bins: Sequence[str], counts_SK: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Return a row for each bin: its positions in all splits, and its share of each split."""
    splits = [(name, counts_SK[at]) for at, name in enumerate(ALL_SPLITS) if counts_SK[at].sum()]
    return [
        {"bin": name, "positions": int(counts_SK[:, at].sum())}
        | {split: round(float(mine[at] / mine.sum()), 6) for split, mine in splits}
        for at, name in enumerate(bins)
    ]


def _count_positions(positions: RowPartitions) -> dict[str, Any]:
    """Return the counts `copies` and the table `in_train`, from the keys and labels of all rows."""
    sums = []
    most_played = pl.col("rows").max().alias("most_played")
    for part in positions.read_parts():
        moves = part.group_by("key", "label").agg(pl.len().alias("rows"), *make_split_counts())
        by_move = moves.collect(engine="streaming")
        by_key = by_move.group_by("key").agg(most_played, pl.col("rows", *ALL_SPLITS).sum())
        position_counts = by_key.select(
            pl.len().alias("distinct"),
            pl.col("rows", "most_played").filter(pl.col("rows") > 1).sum(),
            pl.col(ALL_SPLITS).sum(),
            *make_shared_counts(),
        )
        move_counts = by_move.select(make_shared_counts("moves_in_train"))
        sums.append(pl.concat([position_counts, move_counts], how="horizontal"))
    found = pl.concat(sums).cast(pl.Int64).sum().row(0, named=True)
    rows = sum(found[name] for name in ALL_SPLITS)
    copies = rows - found["distinct"]
    return {
        "copies": {
            "positions": rows,
            "distinct": found["distinct"],
            "copies": copies,
            "copies_share": _round_share(copies, rows),
            "most_played_move_share_there": _round_share(found["most_played"], found["rows"]),
        },
        "in_train": [
            {
                "split": name,
                "positions": found[name],
                "in_train": found[f"{name}_in_train"],
                "in_train_share": _round_share(found[f"{name}_in_train"], found[name]),
                "with_the_same_move": found[f"{name}_moves_in_train"],
            }
            for name in ALL_SPLITS[1:]
            if found[name]
        ],
    }


def _round_share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


# ---------------------------------------------------------------- text and Markdown


def list_sections(result: Mapping[str, Any]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return the title, sentence and table of each section of an audit, in order."""
    copies, games = result["copies"], result["games"]
    tests = [f"{games[f'{name}_games_in_train']:,} of {name}" for name in ALL_SPLITS[1:]]
    position_summary = (
        f"{copies['copies']:,} of {copies['positions']:,} positions ({copies['copies_share']:.2%}) "
        f"are duplicates; {copies['distinct']:,} are distinct. Where a position occurs more "
        f"than once, its most played move is {copies['most_played_move_share_there']:.2%} of the "
        "moves played there."
    )
    game_summary = (
        f"{games['copies']:,} of {games['games']:,} games have the same moves as another. Games "
        f"whose moves occur in train: {', '.join(tests)}."
    )
    return [
        ("Datasets", "", result["datasets"]),
        ("Copies of positions", position_summary, []),
        ("Test positions that occur in train", "Compared by 64-bit keys.", result["in_train"]),
        ("Games", game_summary, []),
        *(
            (f"By {name.replace('_', ' ')}", "", rows)
            for name, rows in result["distributions"].items()
        ),
    ]


def format_audit_text(result: Mapping[str, Any]) -> str:
    """Format an audit as text."""
    parts = [
        (title.upper(), sentence, format_text_table(rows) if rows else "")
        for title, sentence, rows in list_sections(result)
    ]
    return "\n\n".join("\n".join(filter(None, part)) for part in parts)


def format_audit_markdown(result: Mapping[str, Any]) -> str:
    """Format an audit as Markdown."""
    parts = [f"# Audit of {result['copies']['positions']:,} positions"]
    for title, sentence, rows in list_sections(result):
        table = format_markdown_table(rows) if rows else ""
        parts += filter(None, (f"## {title}", sentence, table))
    return "\n\n".join(parts) + "\n"


def write_audit(result: Mapping[str, Any], out: Path) -> None:
    """Write `audit.json` and `AUDIT.md` to a folder."""
    files = {"AUDIT.md": format_audit_markdown(result).encode()}
    publish_result(out, AUDIT_KIND, "audit.json", result, files)
