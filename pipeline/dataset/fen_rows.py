"""Export rows as FEN and UCI move, with columns of the game, as CSV, Parquet or Arrow tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from engine.board.position import to_fen
from engine.encoding.planes import TURN_PLANE, move_from_label
from engine.encoding.views import NO_LABEL
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.dataset import ALL_SPLITS, Dataset
from pipeline.dataset.files.columns import BATCH_SENTINELS, COLUMNS_BY_NAME
from pipeline.dataset.files.stored_planes import rows_to_positions
from pipeline.errors import ConfigError, Stopped
from pipeline.storage.stores import is_local, publish

PLACE_COLUMNS = ("game", "ply")
"""Columns that say where a row is in its dataset."""
EXPORTED_COLUMNS = ("result", "eval", "clock", "elo", "opponent_elo", "base", "increment")
"""Other exported columns; `result`, `eval`, `clock` and `elo` are those of the side to move."""
READ_COLUMNS = ("planes", "castling", "ep_file", "halfmove", "label", "promotion", "plies")
"""Columns from which `fen` and `uci` are made and checked; they are not exported."""
TEXT_COLUMNS = ("split", "fen", "uci")
SCHEMA = pa.schema(
    [
        (name, pa.string() if name in TEXT_COLUMNS else COLUMNS_BY_NAME[name].type)
        for name in ("split", *PLACE_COLUMNS, "fen", "uci", *EXPORTED_COLUMNS)
    ]
)
SUFFIXES = (".csv", ".parquet")


def fen_rows(dataset: Path | Dataset, split: str = "", count: int = 0) -> Iterator[pa.Table]:
    """Yield the first `count` rows (0: all) of a split ("": of all splits) as tables of SCHEMA.

    Rows are in file order. The counters of the FEN come from the columns `halfmove` and `ply`.
    Raises DatasetError for an unknown or empty split, ConfigError for an invalid count.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ConfigError(f"count must be a whole number of rows, or 0 for all, got {count!r}")
    opened = Dataset.open(dataset)
    if split and not opened.has_rows(split):
        opened.require_shards(split)  # raises the error for an empty split
    for part in opened.parts:
        for name in (split,) if split else ALL_SPLITS:
            for rows in part.read_rows(name, (*READ_COLUMNS, *PLACE_COLUMNS, *EXPORTED_COLUMNS)):
                table = _make_table(rows, name)
                yield table.slice(0, count) if count else table
                if 0 < count <= len(table):
                    return
                count -= min(count, len(table))


def _make_table(rows: dict[str, Any], split: str) -> pa.Table:
    positions = rows_to_positions(rows)
    colors = np.where(rows["planes"][:, TURN_PLANE] == 0, chess.WHITE, chess.BLACK).tolist()
    moves = zip(rows["label"].tolist(), rows["promotion"].tolist(), colors, strict=True)
    columns: dict[str, Any] = {
        "split": [split] * len(positions),
        "fen": [to_fen(position) for position in positions],
        "uci": [
            None if label == NO_LABEL else move_from_label(label, promotion, color).uci()
            for label, promotion, color in moves
        ],
    }
    for name in (*PLACE_COLUMNS, *EXPORTED_COLUMNS):
        sentinel = BATCH_SENTINELS.get(name)
        mask = None if sentinel is None else rows[name] == sentinel
        columns[name] = pa.array(rows[name], SCHEMA.field(name).type, mask=mask)
    return pa.table(columns, schema=SCHEMA)


def write_fen_rows(
    directory: Path,
    out: Path,
    *,
    split: str = "",
    count: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> int:
    """Write the first `count` rows (0: all) as CSV or Parquet, by the suffix; return their number.

    Memory is bounded for any number of rows. Raises ConfigError for another suffix or an existing
    file, DatasetError for an unknown or empty split, and Stopped.
    """
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"{out}: the name must end in {' or '.join(SUFFIXES)}")
    if not is_local(out) or out.exists():
        raise ConfigError(f"{out}: --out must name a new file on this machine")
    names = (split,) if split else ALL_SPLITS
    dataset = Dataset.open(directory)
    total = sum(map(dataset.count_rows, names))
    total = min(count, total) if count else total
    done = 0

    def write_tables(target: Any) -> None:
        nonlocal done
        open_writer = pa.csv.CSVWriter if out.suffix == ".csv" else pq.ParquetWriter
        with open_writer(target, SCHEMA) as writer:
            for rows in fen_rows(dataset, split, count):
                writer.write_table(rows)
                done += len(rows)
                progress(Tick(done, total, "rows", {}))
                if stop():
                    raise Stopped(f"stopped; {out} was not written")

    out.parent.mkdir(parents=True, exist_ok=True)
    publish(out.parent, out.name, 0, write_tables)
    return done
