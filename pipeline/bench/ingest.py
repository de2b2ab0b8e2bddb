"""PGN to shards: the whole job, beside the straightforward python-chess pipeline on the same games."""

import io
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.encoding import label_of, steps
from pipeline.ingest import ingest
from pipeline.shards import read_manifest
from pipeline.sources import Source, chunks

BESIDE_GAMES = 500
"""Games that python-chess gets: about 37,000 positions, 10 s."""


def _timed(pgn: Path, workers: int) -> tuple[float, dict[str, Any], dict[str, float]]:
    """Ingest a dump into a folder that is thrown away: give seconds, manifest, and stored bytes a position by column."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        began = time.perf_counter()
        manifest = ingest([str(pgn)], Path(folder), workers=workers)
        seconds = time.perf_counter() - began
        stored: Counter[str] = Counter()
        for entry in read_manifest(Path(folder))["files"]:
            if entry["split"] is None:
                continue
            metadata = pq.read_metadata(Path(folder) / entry["name"])
            for group in range(metadata.num_row_groups):
                for column in range(metadata.num_columns):
                    chunk = metadata.row_group(group).column(column)
                    stored[chunk.path_in_schema] += chunk.total_compressed_size
        total = manifest["positions"]["total"]
        return seconds, manifest, {name: size / total for name, size in stored.items()}


def first_games(pgn: Path, count: int) -> bytes:
    """Give the text of a dump's first games."""
    chunk = next(chunks([Source(str(pgn))], 1 << 22))
    end = int(chunk.starts[count]) if len(chunk.starts) > count else len(chunk.text)
    return chunk.text[:end]


def _planes_by_loops(board: chess.Board) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Build the 77 planes as one would from python-chess: a loop over pieces and a loop over legal moves."""
    planes = np.zeros((77, 8, 8), dtype=np.uint8)
    kinds = {step: kind for kind, step in enumerate(steps())}
    for square, piece in board.piece_map().items():
        row = chess.square_rank(square) if board.turn == chess.BLACK else 7 - chess.square_rank(square)
        planes[2 * (piece.piece_type - 1) + (piece.color != board.turn), row, chess.square_file(square)] = 1
    planes[12] = board.turn == chess.BLACK
    sign = 1 if board.turn == chess.WHITE else -1
    for move in board.legal_moves:
        file = chess.square_file(move.to_square) - chess.square_file(move.from_square)
        rank = sign * (chess.square_rank(move.to_square) - chess.square_rank(move.from_square))
        row = chess.square_rank(move.from_square)
        row = row if board.turn == chess.BLACK else 7 - row
        planes[13 + kinds[file, rank], row, chess.square_file(move.from_square)] = 1
    return planes


def _python_chess(text: bytes, out: Path) -> tuple[float, int]:
    """Do the job the straightforward way: read_game, planes by loops, pyarrow. Gives seconds and positions."""
    began = time.perf_counter()
    planes, labels = [], []
    stream = io.StringIO(text.decode("utf-8", "replace"))
    while (game := chess.pgn.read_game(stream)) is not None:
        board = game.board()
        for move in game.mainline_moves():
            planes.append(np.packbits(_planes_by_loops(board).reshape(77, 64), axis=-1, bitorder="little").tobytes())
            labels.append(label_of(move, board.turn))
            board.push(move)
    table = pa.table({"planes": pa.array(planes, pa.binary(616)), "label": pa.array(labels, pa.uint16())})
    pq.write_table(table, out / "beside.parquet", compression="zstd")
    return time.perf_counter() - began, len(labels)


def measure(pgn: Path) -> dict[str, Any]:
    """Measure one process, two workers, stored bytes, peak memory, and the ratio to python-chess on the first games."""
    beside = first_games(pgn, BESIDE_GAMES)
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        warm = Path(folder) / "warm.pgn"
        warm.write_bytes(beside)
        _timed(warm, 1)  # compiles, or loads what was compiled
        chess_seconds, chess_positions = _python_chess(beside, Path(folder))
    seconds, manifest, stored = min((_timed(pgn, 1) for _ in range(2)), key=lambda result: result[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    two_seconds, _, _ = _timed(pgn, 2)
    positions = manifest["positions"]["total"]
    return {
        "pgn": pgn.name,
        "games": manifest["games"]["read"],
        "positions": positions,
        "seconds": round(seconds, 3),
        "positions_per_second": round(positions / seconds),
        "python_chess_positions_per_second": round(chess_positions / chess_seconds),
        "ratio_python_chess": round(positions / seconds / (chess_positions / chess_seconds), 1),
        "two_workers_seconds": round(two_seconds, 3),
        "two_workers_speedup": round(seconds / two_seconds, 3),
        "plane_bytes_per_position": round(stored["planes"], 2),
        "bytes_per_position": round(sum(stored.values()), 2),
        "column_bytes_per_position": {name: round(size, 2) for name, size in stored.items()},
        "peak_memory_mib": round(peak),
    }
