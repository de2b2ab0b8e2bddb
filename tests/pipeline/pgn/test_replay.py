"""Every column of every row of sampled real games, compared with python-chess."""

import re
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pytest

from engine.encoding.views import LAST_MOVES
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.verify import encode_castling, encode_last_moves
from tests.conftest import shared_data
from tests.engine import oracle
from tests.pipeline import by_python_chess, datasets
from tests.pipeline.by_python_chess import Reading

FILES = (
    "pgn/lichess_rapid_eval_train.pgn.zst",
    "pgn/otb_345k.pgn.zst",
    "pgn/lichess_dump_2021-10_999.pgn",
    "pgn/lichess_dump_2013-01_100.pgn",
    "pgn/lichess_export_2016-05.pgn",
    "pgn/lichess_export_2024-05_blitz.pgn",
    "pgn/lichess_export_2022-2026_blitz.pgn",
    "robustness/lichess_from_position_395.pgn",
)
GAMES = 32
"""Games of a file, spread over its first 4 MB."""
PLANES_EVERY = 6
"""Rows whose 77 planes are compared; tests/engine compares every position of 2,000 games."""


def sample(path: Path) -> bytes:
    """Take GAMES games, evenly spread over the beginning of a dump, with their own text."""
    with pa.input_stream(
        str(path), compression="zstd" if path.suffix == ".zst" else None
    ) as stream:
        text = stream.read(4 << 20)
    starts = [match.start() for match in re.finditer(rb"(?m)^\[Event ", text)]
    picked = np.linspace(0, len(starts) - 2, GAMES).astype(int)
    return b"".join(text[starts[at] : starts[at + 1]].rstrip() + b"\n\n" for at in picked)


def made(
    name: str, directory: Path
) -> tuple[list[Reading], list[dict[str, Any]], dict[int, list[dict[str, Any]]]]:
    """Ingest a sample; return python-chess's readings, the games, and the rows by game."""
    dump = directory / "sample.pgn"
    dump.write_bytes(sample(shared_data(name)))
    ingest([str(dump)], directory / "out", IngestConfig(), workers=1)
    readings = by_python_chess.read_file(dump)
    return readings, datasets.games(directory / "out"), datasets.rows_by_game(directory / "out")


def rating(reading: Reading, side: chess.Color) -> int | None:
    """Return a player's rating by the tag."""
    text = reading.headers.get("WhiteElo" if side else "BlackElo", "")
    return int(text) if text.isdigit() and int(text) else None


def expected_rows(reading: Reading) -> list[dict[str, Any]]:
    """Replay a game with python-chess into what its rows must hold, planes for some."""
    assert reading.start is not None
    assert reading.result is not None
    board, seen, rows = reading.start.copy(), {}, []
    base, increment = by_python_chess.time_control(reading)
    for ply, move in enumerate(reading.moves):
        key = board._transposition_key()
        rows.append(
            {
                "label": oracle.label(move, board.turn),
                "promotion": move.promotion or 0,
                "castling": encode_castling(board),
                "ep_file": 255 if board.ep_square is None else chess.square_file(board.ep_square),
                **dict(zip(LAST_MOVES, encode_last_moves(board), strict=True)),
                "halfmove": min(board.halfmove_clock, 255),
                "repetition": seen.get(key, 0),
                "result": reading.result if board.turn else -reading.result,
                "eval": by_python_chess.expected_eval(reading, ply),
                "clock": by_python_chess.expected_clock(reading, ply),
                "ply": ply,
                "plies": len(reading.moves),
                "elo": rating(reading, board.turn),
                "opponent_elo": rating(reading, not board.turn),
                "base": base,
                "increment": increment,
                "visits": None,
                "root_value": None,
            }
        )
        if ply % PLANES_EVERY == 0:
            rows[-1]["planes"] = b"".join(
                word.to_bytes(8, "little") for word in oracle.planes(board)
            )
        seen[key] = seen.get(key, 0) + 1
        board.push(move)
    return rows


@pytest.mark.parametrize("name", FILES)
def test_rows_and_games_hold_what_python_chess_says(name: str, tmp_path: Path) -> None:
    readings, games, rows = made(name, tmp_path)
    assert len(games) == len(readings) == GAMES
    compared = 0
    for number, (reading, game) in enumerate(zip(readings, games, strict=True)):
        tags = reading.headers
        assert (game["dropped"] or "used") == reading.verdict
        assert game["white_elo"] == rating(reading, chess.WHITE)
        assert game["black_elo"] == rating(reading, chess.BLACK)
        for column, tag in (("time_control", "TimeControl"), ("eco", "ECO")):
            assert game[column] == tags.get(tag)
        assert game["termination"] == tags.get("Termination")
        assert game["site"] == tags.get("Site", "").rpartition("/")[2]
        assert game["result"] == reading.result
        if game["dropped"]:
            assert number not in rows
            continue
        expected = expected_rows(reading)
        assert game["plies"] == len(expected)
        for mine, theirs in zip(rows[number], expected, strict=True):
            assert {column: mine[column] for column in theirs} == theirs, (
                f"{name}: game {number}, ply {theirs['ply']}"
            )
        compared += len(expected)
    assert compared > 20 * GAMES
