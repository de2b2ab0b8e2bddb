"""Compare every column of the rows of real games with python-chess."""

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
"""Games to take from a file, spread over its first 4 MB."""
PLANES_EVERY = 6
"""Distance between rows whose planes are compared; tests/engine compares all of 2,000 games."""


def sample_games(name: str, size: int, count: int, together: int) -> list[bytes]:
    """Return `count` runs of `together` games, spread over the first `size` bytes of a dump."""
    path = shared_data(name)
    compression = "zstd" if path.suffix == ".zst" else None
    with pa.input_stream(str(path), compression=compression) as stream:
        text = stream.read(size)
    starts = [match.start() for match in re.finditer(rb"(?m)^\[Event ", text)]
    first_games = np.linspace(0, len(starts) - 1 - together, count).astype(int)
    return [text[starts[at] : starts[at + together]] for at in first_games]


def read_rating(reading: Reading, side: chess.Color) -> int | None:
    text = reading.headers.get("WhiteElo" if side else "BlackElo", "")
    return int(text) if text.isdigit() and int(text) else None


def expected_rows(reading: Reading) -> list[dict[str, Any]]:
    """Return the columns of each row of a game by python-chess, with planes in some rows."""
    assert reading.start is not None
    assert reading.result is not None
    board, seen, rows = reading.start.copy(), {}, []
    base, increment = by_python_chess.read_time_control(reading)
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
                "elo": read_rating(reading, board.turn),
                "opponent_elo": read_rating(reading, not board.turn),
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
def test_all_columns_of_rows_and_games_agree_with_python_chess(name: str, tmp_path: Path) -> None:
    dump, out = tmp_path / "sample.pgn", tmp_path / "out"
    texts = sample_games(name, 4 << 20, GAMES, together=1)
    dump.write_bytes(b"".join(text.rstrip() + b"\n\n" for text in texts))
    ingest([str(dump)], out, IngestConfig(), workers=1)
    readings = by_python_chess.read(dump.read_bytes())
    games, rows = datasets.games(out), datasets.rows_by_game(out)
    assert len(games) == len(readings) == GAMES
    compared = 0
    for number, (reading, game) in enumerate(zip(readings, games, strict=True)):
        tags = reading.headers
        assert (game["dropped"] or "used") == reading.status
        assert game["white_elo"] == read_rating(reading, chess.WHITE)
        assert game["black_elo"] == read_rating(reading, chess.BLACK)
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
        for row, expected_row in zip(rows[number], expected, strict=True):
            assert {column: row[column] for column in expected_row} == expected_row, (
                f"{name}: game {number}, ply {row['ply']}"
            )
        compared += len(expected)
    assert compared > 20 * GAMES
