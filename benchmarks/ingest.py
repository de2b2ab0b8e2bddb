"""Benchmark PGN ingest on one core against a straightforward python-chess pipeline."""

import io
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import chess
import chess.engine
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import one_core
from engine.encoding.planes import PLANE_BYTES, label_from_move
from engine.encoding.views import LAST_MOVES
from pipeline.dataset.files.columns import PLANE_COLUMNS, make_schema
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest

COMPARED_BYTES = 16 << 20
"""Bytes of PGN that both pipelines read: 7,000 games, one or two minutes for python-chess."""
RUNS = 3
"""Number of runs; the fastest counts, since machines are shared."""


def _measure_ingest(pgn: Path, config: IngestConfig, runs: int) -> tuple[float, dict[str, Any]]:
    """Ingest a dump in this process; return the best positions per second, and the manifest."""
    seconds = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
            began = time.perf_counter()
            manifest = ingest([str(pgn)], Path(folder), config, workers=1)
            seconds.append(time.perf_counter() - began)
    return manifest["positions"]["total"] / min(seconds), manifest


def _draw_planes(board: chess.Board) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the 77 planes, built with python-chess by a loop over pieces and one over moves."""
    planes = np.zeros((77, 8, 8), dtype=np.uint8)
    mover = board.turn
    for square, piece in board.piece_map().items():
        row = 7 - chess.square_rank(square) if mover else chess.square_rank(square)
        plane = 2 * (piece.piece_type - 1) + (piece.color != mover)
        planes[plane, row, chess.square_file(square)] = 1
    planes[12] = mover == chess.BLACK
    for move in board.legal_moves:
        kind, square = divmod(label_from_move(move, mover), 64)
        planes[13 + kind, square // 8, square % 8] = 1
    return planes


def _iterate_rows(game: chess.pgn.Game, number: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a game with all columns of a shard."""
    board, nodes = game.board(), list(game.mainline())
    result = {"1-0": 1, "0-1": -1}.get(game.headers.get("Result", "*"), 0)
    base, _, increment = game.headers.get("TimeControl", "-").partition("+")
    elos = [_parse_number(game.headers.get(f"{side}Elo", "")) for side in ("White", "Black")]
    seen: Counter[str] = Counter()
    last_moves: list[int] = []
    score: chess.engine.PovScore | None = None
    clocks: list[float | None] = [None, None]
    for ply, node in enumerate(nodes):
        mover, epd = int(not board.turn), board.epd()
        planes = _draw_planes(board).reshape(77, 64)
        clock = clocks[mover]
        own = None if score is None else score.pov(board.turn).score(mate_score=32000)
        yield {
            "planes": np.packbits(planes, axis=-1, bitorder="little").tobytes(),
            "label": label_from_move(node.move, board.turn),
            "promotion": node.move.promotion or 0,
            "castling": board.castling_rights.bit_count(),
            "ep_file": 255 if board.ep_square is None else chess.square_file(board.ep_square),
            **dict(zip_longest(LAST_MOVES, reversed(last_moves))),
            "halfmove": min(board.halfmove_clock, 255),
            "repetition": seen[epd],
            "result": -result if mover else result,
            "eval": None if own is None else max(-32000, min(32000, own)),
            "clock": None if clock is None else int(clock),
            "ply": ply,
            "plies": len(nodes),
            "elo": elos[mover],
            "opponent_elo": elos[1 - mover],
            "base": _parse_number(base),
            "increment": _parse_number(increment),
            "game": number,
        }
        last_moves.append(node.move.from_square * 64 + node.move.to_square)
        del last_moves[: -len(LAST_MOVES)]
        seen[epd] += 1
        score = node.eval()
        clocks[mover] = node.clock()
        board.push(node.move)


def _parse_number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _measure_python_chess(text: bytes, out: Path, history: int) -> float:
    """Write the same columns with python-chess and pyarrow, and return positions per second.

    To save work, castling is stored as a count, the moves of both sides are in one view, and the
    planes are one column of bytes.
    """
    began, planes = time.perf_counter(), pa.field("planes", pa.binary(PLANE_BYTES), False)
    others = list(make_schema("all", LAST_MOVES[:history]))[len(PLANE_COLUMNS["all"]) :]
    rows: list[dict[str, Any]] = []
    stream = io.StringIO(text.decode("utf-8", "replace"))
    for number, game in enumerate(iter(lambda: chess.pgn.read_game(stream), None)):
        rows.extend(_iterate_rows(game, number))
    table = pa.Table.from_pylist(rows, schema=pa.schema([planes, *others]))
    pq.write_table(table, out / "python-chess.parquet", compression="zstd")
    return len(rows) / (time.perf_counter() - began)


def measure(pgn: Path, config: IngestConfig) -> dict[str, Any]:
    """Measure ingest on one core, and python-chess on the first games of the dump.

    `ratio_python_chess` compares both on the same games; `positions_per_second` covers the whole
    dump.
    """
    text = bytes(next(read_chunks([Source(str(pgn))], COMPARED_BYTES)).text)
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder, one_core():
        same = Path(folder) / "same.pgn"
        same.write_bytes(text)
        _measure_ingest(same, config, 1)  # warm-up: compile, or load compiled code from the cache
        same_rate, _ = _measure_ingest(same, config, RUNS)
        rate, manifest = _measure_ingest(pgn, config, 2)
        chess_rate = _measure_python_chess(text, Path(folder), config.history)
    return {
        "games": manifest["games"]["read"],
        "positions": manifest["positions"]["total"],
        "positions_per_second": round(rate),
        "same_games_positions_per_second": round(same_rate),
        "python_chess_positions_per_second": round(chess_rate),
        "ratio_python_chess": round(same_rate / chess_rate, 1),
        "bytes_per_position": round(manifest["bytes_per_position"], 2),
    }
