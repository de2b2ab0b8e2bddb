"""Write rows as Lichess publishes evaluated positions, with python-chess and DuckDB."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chess
import duckdb
import numpy as np
import zstandard

from engine.board.position import to_board
from engine.encoding.planes import TURN_PLANE, move_of
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.pgn.text import MATE, NO_EVAL

READ = ("planes", "castling", "ep_file", "halfmove", "label", "promotion", "eval", "ply", "game")
FISHNET = {"fen": "VARCHAR", "cp": "INTEGER", "mate": "INTEGER", "move": "VARCHAR"}
STORED = (
    *("planes", "castling", "label", "promotion", "eval"),
    *("halfmove", "ply", "plies", "game", "elo", "opponent_elo", "result", "clock", "repetition"),
)
"""Columns that `read_rows` reads."""


def evaluated_rows(
    directory: Path, splits: tuple[str, ...] = ("train", "val", "test")
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset that have an evaluation, in batches of columns."""
    for split in splits:
        for rows in Dataset.open(directory).read_rows(split, READ):
            known = rows["eval"] != NO_EVAL
            yield {name: values[known] for name, values in rows.items()}


def boards(rows: dict[str, Any]) -> Iterator[tuple[chess.Board, chess.Move, int]]:
    """Yield each row's board, move and White's evaluation in centipawns."""
    positions = row_positions(rows)
    black = rows["planes"][:, TURN_PLANE] != 0
    columns = (rows[name].tolist() for name in ("label", "promotion", "eval"))
    for position, turned, label, promotion, value in zip(
        positions, black.tolist(), *columns, strict=True
    ):
        color = chess.BLACK if turned else chess.WHITE
        yield to_board(position), move_of(label, promotion, color), -value if turned else value


def score(value: int) -> dict[str, int | None]:
    """Return an evaluation as `cp` or `mate`, White's."""
    mate = abs(value) == MATE
    return {"cp": None if mate else value, "mate": (3 if value > 0 else -3) if mate else None}


def fishnet_row(board: chess.Board, move: chess.Move, value: int) -> dict[str, Any]:
    """Return a row of Lichess/fishnet-evals; castling is king takes rook."""
    return {
        "fen": board.fen(en_passant="legal"),
        **score(value),
        "move": board.uci(move, chess960=True),
    }


def analyses(board: chess.Board, move: chess.Move, value: int, number: int) -> dict[str, Any]:
    """Return an entry of lichess_db_eval.jsonl whose deepest analysis is that of the row."""
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


def write_analyses(fishnet: Path, path: Path) -> None:
    """Write a table of fishnet-evals as Lichess/chess-position-evaluations, by DuckDB: four lines
    each, one of which is right.

    It is the first of the deepest analysis with most nodes, between others that have no legal move.
    A position that follows itself is written once.
    """
    deepest = ["30, 900 + n % 7, cp, mate, move || ' a1a1'", "30, 900 + n % 7, 7, NULL, 'a1a1'"]
    others = ["12, 5000, -20000, NULL, 'a1a1'", "30, 20, NULL, 5, 'a1a1'"]
    orders = ([others[0], *deepest, others[1]], [others[1], *deepest, others[0]])
    even, odd = (
        "[" + ", ".join(f"row({at}, {row})" for at, row in enumerate(order)) + "]"
        for order in orders
    )
    query = f"""
        WITH short AS (SELECT * REPLACE (array_to_string(split(fen, ' ')[:4], ' ') AS fen),
                              file_row_number AS n
                       FROM read_parquet('{fishnet}', file_row_number = true)),
             kept AS (FROM short QUALIFY fen IS DISTINCT FROM lag(fen) OVER (ORDER BY n)),
             items AS (SELECT n, fen, unnest(CASE WHEN n % 2 = 0 THEN {even} ELSE {odd} END) AS item
                       FROM kept)
        SELECT fen, item[6] AS line, item[2]::BIGINT AS depth, item[3]::BIGINT AS knodes,
               item[4]::BIGINT AS cp, item[5]::BIGINT AS mate
        FROM items ORDER BY n, item[1]"""
    with duckdb.connect() as database:
        database.execute("SET preserve_insertion_order = true; SET threads = 1")
        database.execute(
            f"COPY ({query}) TO '{path}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 122880)"
        )


def write_parquet(path: Path, rows: Iterator[dict[str, Any]], group: int = 122_880) -> None:
    """Write rows of fishnet-evals as Parquet by DuckDB, from JSON lines beside the file."""
    lines = path.with_suffix(".jsonl")
    with lines.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with duckdb.connect() as database:
        source = f"read_json('{lines}', format='newline_delimited', columns={FISHNET})"
        options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {group}"
        database.execute("SET preserve_insertion_order = true; SET threads = 1")
        database.execute(
            f"COPY (SELECT {', '.join(FISHNET)} FROM {source}) TO '{path}' ({options})"
        )
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
