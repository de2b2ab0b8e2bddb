"""Rows as people and other programs read them: the position as FEN, the move as UCI, and what is known of the game.

Axes: R rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from engine.board.position import COUNTERS, to_fen
from engine.encoding.planes import move_of
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import publish
from pipeline.dataset.files.stored_planes import pack, to_positions
from pipeline.dataset.training_set import ALL_SPLITS, Member, members, row_groups
from pipeline.errors import ConfigError, Stopped
from pipeline.storage.stores import is_local

READ = (
    "planes", "castling", "ep_file", "halfmove", "label", "promotion", "ply", "plies", "game", "result", "eval", "clock",
    "elo", "opponent_elo", "base", "increment",
)  # fmt: skip
KINDS = {
    "split": pa.string(), "game": pa.uint32(), "ply": pa.uint16(), "fen": pa.string(), "uci": pa.string(),
    "result": pa.int8(), "eval": pa.int16(), "clock": pa.uint16(), "elo": pa.uint16(), "opponent_elo": pa.uint16(),
    "base": pa.uint16(), "increment": pa.uint8(),
}  # fmt: skip
"""Columns that are given; `result`, `eval`, `clock` and `elo` are the mover's."""
SUFFIXES = (".csv", ".parquet")


def fen_rows(directory: Path, split: str = "") -> Iterator[pa.Table]:
    """Yield the rows of a dataset or training set, of all its splits or of one, as tables of KINDS in the order of the files.

    The FEN's counters are the row's `halfmove` and `ply`. Raises DatasetError.
    """
    if split and split not in ALL_SPLITS:
        raise ConfigError(f"no split {split!r}: there are {', '.join(ALL_SPLITS)}")
    for member in members(directory):
        for name in (split,) if split else _splits(member):
            for rows in row_groups(member.shards(name), READ):
                yield _table(rows, name)


def _splits(member: Member) -> tuple[str, ...]:
    return ("latest",) if member.held_out else ("train", "val", "test")


def _table(rows: dict[str, Any], split: str) -> pa.Table:
    """Return rows of a batch as a table of KINDS."""
    positions = to_positions(pack(rows["planes"], rows))
    positions[:, COUNTERS] = rows["halfmove"].astype(np.uint64) | rows["ply"].astype(np.uint64) << np.uint64(16)
    white_R = rows["planes"][:, 12] == 0
    found: dict[str, Any] = {
        "split": [split] * len(positions),
        "fen": [to_fen(position) for position in positions],
        "uci": [
            move_of(int(label), int(promotion), chess.WHITE if white else chess.BLACK).uci()
            for label, promotion, white in zip(rows["label"], rows["promotion"], white_R, strict=True)
        ],
    }
    arrays = []
    for name, kind in KINDS.items():
        if name in found:
            arrays.append(pa.array(found[name], kind))
        else:
            unknown = BATCH_SENTINELS.get(name)
            arrays.append(pa.array(rows[name], kind, mask=None if unknown is None else rows[name] == unknown))
    return pa.Table.from_arrays(arrays, names=list(KINDS))


def write_fen_rows(
    directory: Path,
    out: Path,
    *,
    split: str = "",
    count: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> int:
    """Write the first `count` rows, all for 0, as CSV or Parquet by the name's ending, and return how many.

    In bounded memory. Raises ConfigError for another ending or a file that is there, DatasetError and Stopped.
    """
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"{out.name}: rows are written as {' or '.join(SUFFIXES)}")
    if not is_local(out) or out.exists():
        raise ConfigError(f"{out} is there already: choose another --out")
    total = count or sum(member.positions(name) for member in members(directory) for name in _splits(member))
    done = 0

    def write(target: Any) -> None:
        nonlocal done
        schema = pa.schema(list(KINDS.items()))
        make = pa.csv.CSVWriter if out.suffix == ".csv" else pq.ParquetWriter
        with make(target, schema) as writer:
            for table in fen_rows(directory, split):
                rows = table if not count else table.slice(0, count - done)
                writer.write_table(rows.cast(schema))
                done += len(rows)
                progress(Tick(done, total, "rows", {}))
                if stop():
                    raise Stopped(f"stopped; {out} was not written")
                if count and done >= count:
                    return

    out.parent.mkdir(parents=True, exist_ok=True)
    publish(out.parent, out.name, 0, write)
    return done
