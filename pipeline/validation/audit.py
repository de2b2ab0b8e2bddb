"""Audit datasets: count rows by column and positions by key in one pass, then compare splits.

Memory use does not depend on the number of rows: it holds one row group, one part of the temporary
files (pipeline/dataset/scratch.py) and the counts by bin. Temporary files take at most 16 bytes per
row.

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
from pipeline.dataset.join import count_games, rows_by_split, shared_with_train
from pipeline.dataset.position_keys import position_keys
from pipeline.dataset.scratch import Scratch
from pipeline.dataset.strata import CLASSES, band_names, rating_band, time_class
from pipeline.errors import ConfigError
from pipeline.evaluation.render import publish_result
from pipeline.storage.job_folder import AUDIT, JobFolder
from pipeline.storage.tables import markdown_table, text_table

Rows = Mapping[str, NDArray[Any]]

READ = ("planes", "label", "castling", "result", "ply", "plies", "elo", "base", "increment", "game")
"""The columns of a shard that an audit reads; `game` only for its range check."""

RATING = tuple(range(800, 2801, 200))


class Column(NamedTuple):
    """Names of a column's bins, and a function that returns each row's bin."""

    bins: Sequence[str]
    bin_rows: Callable[[Rows], NDArray[Any]]


def _by_edges(edges: Sequence[int], values: Callable[[Rows], NDArray[Any]]) -> Column:
    """Return a column with bins below the first edge, between edges, and from the last edge on."""
    bins = band_names(edges)[:-1]
    return Column(bins, lambda rows: np.searchsorted(edges, values(rows), side="right"))


def _count_pieces(rows: Rows) -> NDArray[Any]:
    count_R: NDArray[Any] = np.bitwise_count(rows["planes"][:, :PIECE_PLANES]).sum(axis=1)
    return count_R


COLUMNS = {
    "rating": Column(band_names(RATING), lambda rows: rating_band(rows["elo"], RATING)),
    "time_control": Column(CLASSES, lambda rows: time_class(rows["base"], rows["increment"])),
    "ply": _by_edges((10, 20, 30, 40, 60, 80, 120), lambda rows: rows["ply"]),
    "plies": _by_edges((20, 40, 60, 80, 100, 150, 200), lambda rows: rows["plies"]),
    "result": Column(("loss", "draw", "win"), lambda rows: rows["result"].astype(np.int64) + 1),
    "pieces": _by_edges((6, 10, 16, 22, 28), _count_pieces),
}


def audit(directories: Sequence[Path], *, progress: Progress = silent) -> dict[str, Any]:
    """Count the rows of several datasets together, and the overlap of each split with train.

    Returns tables (lists of rows) by name. Raises DatasetError and ConfigError.
    """
    found = (part for path in directories for part in Dataset.open(path, progress).parts)
    datasets = list({part.path.resolve(): part for part in found}.values())
    if not datasets:
        raise ConfigError("name at least one dataset to audit")
    with tempfile.TemporaryDirectory(prefix="fianchetto-audit-") as folder:
        expected = sum(part.page["positions"]["total"] for part in datasets)
        positions = Scratch(Path(folder), expected)
        bins = _count_rows(datasets, positions, progress)
        tables = _count_positions(positions)
    names = [
        {"dataset": part.name, "games": part.page["games"]["used"]}
        | {split: part.count(split) for split in ALL_SPLITS}
        | {"held_out": part.held_out}
        for part in datasets
    ]
    tables["games"] = _count_games(datasets)
    tables["distributions"] = {
        name: _distribution(COLUMNS[name].bins, counts_SK) for name, counts_SK in bins.items()
    }
    return {"datasets": names, **tables}


def _count_rows(
    datasets: Sequence[Dataset], positions: Scratch, progress: Progress
) -> dict[str, NDArray[np.int64]]:
    """Return the row counts of each column by split and bin, [S, K]; add the keys of positions."""
    counts = {
        name: np.zeros((len(ALL_SPLITS), len(column.bins)), dtype=np.int64)
        for name, column in COLUMNS.items()
    }
    done, total = 0, sum(part.page["positions"]["total"] for part in datasets)
    for part in datasets:
        for split, name in enumerate(ALL_SPLITS):
            for rows in part.rows(name, READ):
                for column, (bins, bin_rows) in COLUMNS.items():
                    counts[column][split] += np.bincount(bin_rows(rows), minlength=len(bins))
                key = position_keys(rows["planes"], rows["castling"])
                frame = pl.DataFrame({"key": key, "label": rows["label"]})
                positions.add(frame.with_columns(split=pl.lit(split, pl.UInt8)))
                done += len(frame)
                progress(Tick(done, total, "positions", {}))
    return counts


def _count_games(datasets: Sequence[Dataset]) -> dict[str, int]:
    """Count duplicate games, and the games of other splits that also occur in train."""
    found = count_games(datasets)
    total = sum(found[name] for name in ALL_SPLITS)
    copies = {"games": total, "distinct": found["distinct"], "copies": total - found["distinct"]}
    return copies | {f"{name}_games_in_train": found[f"{name}_in_train"] for name in ALL_SPLITS[1:]}


def _distribution(bins: Sequence[str], counts_SK: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return a row for each bin: its total positions, and its share of each split."""
    splits = [(name, counts_SK[at]) for at, name in enumerate(ALL_SPLITS) if counts_SK[at].sum()]
    return [
        {"bin": name, "positions": int(counts_SK[:, at].sum())}
        | {split: round(float(mine[at] / mine.sum()), 6) for split, mine in splits}
        for at, name in enumerate(bins)
    ]


def _count_positions(positions: Scratch) -> dict[str, Any]:
    """Count positions by key: return the tables `copies` and `in_train`."""
    sums = []
    most = pl.col("rows").max().alias("most_played")
    for part in positions.parts():
        moves = part.group_by("key", "label").agg(pl.len().alias("rows"), *rows_by_split())
        by_move = moves.collect(engine="streaming")
        by_key = by_move.group_by("key").agg(most, pl.col("rows", *ALL_SPLITS).sum())
        of_keys = by_key.select(
            pl.len().alias("distinct"),
            pl.col("rows", "most_played").filter(pl.col("rows") > 1).sum(),
            pl.col(ALL_SPLITS).sum(),
            *shared_with_train(),
        )
        of_moves = by_move.select(shared_with_train("moves_in_train"))
        sums.append(pl.concat([of_keys, of_moves], how="horizontal"))
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
    """Return part / whole to six decimals, 0 if the whole is 0."""
    return round(part / whole, 6) if whole else 0.0


# ---------------------------------------------------------------- text and Markdown


def sections(result: Mapping[str, Any]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return the title, sentence and table of each section of an audit, in order."""
    copies, games, tests = result["copies"], result["games"], ALL_SPLITS[1:]
    in_train = ", ".join(f"{games[f'{name}_games_in_train']:,} of {name}" for name in tests)
    of_positions = (
        f"{copies['copies']:,} of {copies['positions']:,} positions ({copies['copies_share']:.2%}) "
        f"are duplicates; {copies['distinct']:,} are distinct. Where a position occurs more "
        f"than once, its most played move is {copies['most_played_move_share_there']:.2%} of the "
        "moves played there."
    )
    of_games = (
        f"{games['copies']:,} of {games['games']:,} games have the same moves as another. Games "
        f"whose moves occur in train: {in_train}."
    )
    compared = "All positions were compared, by 64-bit keys."
    return [
        ("Datasets", "", result["datasets"]),
        ("Copies of positions", of_positions, []),
        ("Test positions that occur in train", compared, result["in_train"]),
        ("Games", of_games, []),
        *(
            (f"By {name.replace('_', ' ')}", "", rows)
            for name, rows in result["distributions"].items()
        ),
    ]


def audit_text(result: Mapping[str, Any]) -> str:
    """Return an audit as text."""
    parts = [
        (title.upper(), sentence, text_table(rows) if rows else "")
        for title, sentence, rows in sections(result)
    ]
    return "\n\n".join("\n".join(filter(None, part)) for part in parts)


def audit_markdown(result: Mapping[str, Any]) -> str:
    """Return an audit as Markdown."""
    parts = [f"# Audit of {result['copies']['positions']:,} positions"]
    for title, sentence, rows in sections(result):
        table = markdown_table(rows) if rows else ""
        parts += filter(None, (f"## {title}", sentence, table))
    return "\n\n".join(parts) + "\n"


def write_audit(result: Mapping[str, Any], out: Path) -> None:
    """Write `audit.json` and `AUDIT.md` to a folder."""
    JobFolder(out, AUDIT, ConfigError).check()
    publish_result(out, AUDIT, "audit.json", result, {"AUDIT.md": audit_markdown(result).encode()})
