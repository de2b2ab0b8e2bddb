"""Write evaluated positions in the formats that Lichess publishes, with python-chess and DuckDB."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chess
import duckdb
import numpy as np
import zstandard

from engine.board.position import to_board
from engine.encoding.planes import TURN_PLANE, move_from_label
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.stored_planes import rows_to_positions
from pipeline.pgn.text import MATE, NO_EVAL

GAME_COLUMNS = (
    "planes",
    "castling",
    "ep_file",
    "halfmove",
    "label",
    "promotion",
    "eval",
    "ply",
    "game",
)
FISHNET_TYPES = {"fen": "VARCHAR", "cp": "INTEGER", "mate": "INTEGER", "move": "VARCHAR"}
LINE_TYPES = {"fen": "VARCHAR", "line": "VARCHAR"} | dict.fromkeys(
    ("depth", "knodes", "cp", "mate"), "BIGINT"
)
STORED = (
    *("planes", "castling", "label", "promotion", "eval"),
    *("halfmove", "ply", "plies", "game", "elo", "opponent_elo", "result", "clock", "repetition"),
)
"""Columns that `read_rows` reads."""


def read_evaluated_rows(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset that have an evaluation, in batches."""
    for split in ("train", "val", "test"):
        for rows in Dataset.open(directory).read_rows(split, GAME_COLUMNS):
            has_eval = rows["eval"] != NO_EVAL
            yield {name: values[has_eval] for name, values in rows.items()}


def list_boards(rows: dict[str, Any]) -> Iterator[tuple[chess.Board, chess.Move, int]]:
    """Yield each row's board, move and White's evaluation in centipawns."""
    positions = rows_to_positions(rows)
    black = rows["planes"][:, TURN_PLANE] != 0
    columns = (rows[name].tolist() for name in ("label", "promotion", "eval"))
    for position, turned, label, promotion, value in zip(
        positions, black.tolist(), *columns, strict=True
    ):
        color = chess.BLACK if turned else chess.WHITE
        yield (
            to_board(position),
            move_from_label(label, promotion, color),
            -value if turned else value,
        )


def score(value: int) -> dict[str, int | None]:
    """Return White's evaluation as Lichess's fields `cp` and `mate`, of which one is None."""
    is_mate = abs(value) == MATE
    return {"cp": None if is_mate else value, "mate": (3 if value > 0 else -3) if is_mate else None}


def fishnet_row(board: chess.Board, move: chess.Move, value: int) -> dict[str, Any]:
    """Return a row of Lichess/fishnet-evals, where castling is written as king takes rook."""
    return {
        "fen": board.fen(en_passant="legal"),
        **score(value),
        "move": board.uci(move, chess960=True),
    }


def json_entry(board: chess.Board, move: chess.Move, value: int, number: int) -> dict[str, Any]:
    """Return an entry of lichess_db_eval.jsonl whose best line has the given move and value.

    `number` changes the nodes and the order of the analyses.
    """
    others = [board.uci(other, chess960=True) for other in list(board.legal_moves)[:2]]
    first = board.uci(move, chess960=True)
    after = board.copy(stack=False)
    after.push(move)
    line = " ".join(
        [first, *(after.uci(reply, chess960=True) for reply in list(after.legal_moves)[:1])]
    )
    best = {key: number for key, number in score(value).items() if number is not None}
    deepest = {
        "pvs": [best | {"line": line}, {"cp": 7, "line": others[0]}],
        "knodes": 900 + number % 7,
        "depth": 30,
    }
    shallow = {"pvs": [{"cp": -20_000, "line": others[-1]}], "knodes": 5_000, "depth": 12}
    fewer = {"pvs": [{"mate": 5, "line": others[0]}], "knodes": 20, "depth": 30}
    evals = [shallow, deepest, fewer] if number % 2 else [fewer, deepest, shallow]
    return {"fen": " ".join(board.fen(en_passant="legal").split()[:4]), "evals": evals}


def list_lines(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of an entry in Lichess/chess-position-evaluations: one for each line."""
    for analysis in entry["evals"]:
        for line in analysis["pvs"]:
            numbers = {name: analysis[name] for name in ("depth", "knodes")}
            yield {"fen": entry["fen"]} | numbers | line


def write_parquet(
    path: Path,
    rows: Iterator[dict[str, Any]],
    types: dict[str, str] = FISHNET_TYPES,
    group: int = 122_880,
) -> None:
    """Write rows as Parquet by DuckDB, from JSON lines; `group` is the size of a row group."""
    lines = path.with_suffix(".jsonl")
    with lines.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with duckdb.connect() as database:
        source = f"read_json('{lines}', format='newline_delimited', columns={types})"
        options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {group}"
        database.execute("SET preserve_insertion_order = true; SET threads = 1")
        database.execute(f"COPY (SELECT {', '.join(types)} FROM {source}) TO '{path}' ({options})")
    lines.unlink()


def write_json_lines(path: Path, entries: Iterator[dict[str, Any]]) -> None:
    """Write entries as JSON lines, compressed by zstd."""
    with path.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as file:
        for entry in entries:
            file.write(json.dumps(entry).encode() + b"\n")


def read_rows(directory: Path) -> dict[str, Any]:
    """Return the rows of a dataset in the order of its games."""
    parts = [
        rows
        for split in ("train", "val", "test")
        for rows in Dataset.open(directory).read_rows(split, STORED)
    ]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in STORED}
    order = np.argsort(rows["game"], kind="stable")
    return {name: values[order] for name, values in rows.items()}
