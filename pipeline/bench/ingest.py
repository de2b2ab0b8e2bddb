"""PGN to shards: the whole job, beside the straightforward python-chess pipeline on the same games."""

import io
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import chess.engine
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.encoding.planes import PLANE_BYTES, label_of
from engine.encoding.views import LAST_MOVES
from engine.progress import Progress, Tick, silent
from pipeline.bench.cores import one_core
from pipeline.dataset.files.columns import PLANE_COLUMNS, schema
from pipeline.dataset.files.shards import read_manifest, write_rows
from pipeline.dataset.training_set import split_shards
from pipeline.dumps.reader import Source, chunks
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest

STAGES = 6
BESIDE_BYTES = 16 << 20
"""Text of the games that both read: two chunks, 7,000 games with evals, 530,000 positions; a minute or two of python-chess."""


def _timed(pgn: Path, workers: int, config: IngestConfig) -> tuple[float, dict[str, Any], dict[str, float]]:
    """Ingest a dump into a temporary folder; return seconds, manifest, and stored bytes per position by column."""
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        began = time.perf_counter()
        manifest = ingest([str(pgn)], Path(folder), config, workers=workers)
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


def first_games(pgn: Path, size: int) -> bytes:
    """Return the text of a dump's first games, about `size` bytes."""
    return bytes(next(chunks([Source(str(pgn))], size)).text)


def peak_mib() -> int:
    """Return the most memory this process has held, MiB; macOS counts bytes where Linux counts KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10))


def _planes_by_loops(board: chess.Board) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Build the 77 planes as one would from python-chess: a loop over pieces and a loop over legal moves."""
    planes = np.zeros((77, 8, 8), dtype=np.uint8)
    mover = board.turn
    for piece_type in chess.PIECE_TYPES:
        for number, color in enumerate((mover, not mover)):
            for square in board.pieces(piece_type, color):
                row = 7 - chess.square_rank(square) if mover else chess.square_rank(square)
                planes[2 * (piece_type - 1) + number, row, chess.square_file(square)] = 1
    planes[12] = mover == chess.BLACK
    for move in board.legal_moves:
        kind, square = divmod(label_of(move, mover), 64)
        planes[13 + kind, square // 8, square % 8] = 1
    return planes


def _rows_of_game(game: chess.pgn.Game, number: int) -> Iterator[dict[str, Any]]:
    """Return the rows of a game with every column that a shard has."""
    headers, board = game.headers, game.board()
    result = {"1-0": 1, "0-1": -1}.get(headers.get("Result", "*"), 0)
    base, _, increment = headers.get("TimeControl", "-").partition("+")
    elos = [int(elo) if elo.isdigit() else None for elo in (headers.get("WhiteElo", ""), headers.get("BlackElo", ""))]
    nodes = list(game.mainline())
    seen: Counter[str] = Counter()
    squares: list[int] = []
    score: chess.engine.PovScore | None = None
    clocks: list[float | None] = [None, None]
    for ply, node in enumerate(nodes):
        white = board.turn == chess.WHITE
        place = board.epd()
        yield {
            "planes": np.packbits(_planes_by_loops(board).reshape(77, 64), axis=-1, bitorder="little").tobytes(),
            "label": label_of(node.move, board.turn),
            "promotion": node.move.promotion or 0,
            "castling": board.castling_rights.bit_count(),
            "ep_file": 255 if board.ep_square is None else chess.square_file(board.ep_square),
            **dict(zip(LAST_MOVES, (*reversed(squares), *[None] * len(LAST_MOVES)), strict=False)),
            "halfmove": min(board.halfmove_clock, 255),
            "repetition": seen[place],
            "result": result if white else -result,
            "eval": None if score is None else max(-32000, min(32000, score.pov(board.turn).score(mate_score=32000))),
            "clock": None if (clock := clocks[not white]) is None else int(clock),
            "ply": ply,
            "plies": len(nodes),
            "elo": elos[not white],
            "opponent_elo": elos[white],
            "base": int(base) if base.isdigit() else None,
            "increment": int(increment) if increment.isdigit() else None,
            "game": number,
        }
        squares = [*squares, node.move.from_square * 64 + node.move.to_square][-len(LAST_MOVES) :]
        seen[place] += 1
        score = node.eval()
        clocks[not white] = node.clock()
        board.push(node.move)


def beside_schema(history: int) -> pa.Schema:
    """Return the columns that `_python_chess` writes: those of a shard, with the planes as one column of bytes."""
    stored = len(PLANE_COLUMNS["all"])
    fields = list(schema("all", LAST_MOVES[:history]))[stored:]
    return pa.schema([pa.field("planes", pa.binary(PLANE_BYTES), False), *fields])


def _python_chess(text: bytes, out: Path, history: int) -> tuple[float, int]:
    """Make the same columns the straightforward way: read_game, planes by loops, pyarrow.

    Return seconds and positions. (Castling is stored as a count, and moves of both sides in one view: simpler and faster.)
    """
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    stream = io.StringIO(text.decode("utf-8", "replace"))
    number = 0
    while (game := chess.pgn.read_game(stream)) is not None:
        rows.extend(_rows_of_game(game, number))
        number += 1
    pq.write_table(
        pa.Table.from_pylist(rows, schema=beside_schema(history)),
        out / "beside.parquet",
        compression="zstd",
    )
    return time.perf_counter() - began, len(rows)


def _planes_rate(pgn: Path, folder: Path, config: IngestConfig) -> float:
    """Write only the planes of shuffled rows, from memory and as a shard stores them; return rows/s.

    Every ingest to this format has to do this, so it is a yardstick of the machine.
    """
    ingest([str(pgn)], folder / "yardstick", config, workers=1)
    stored = [column.name for column in PLANE_COLUMNS[config.planes]]
    table = pq.read_table(split_shards(folder / "yardstick", "train")[0].path, columns=stored)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        write_rows(table, folder / "planes.parquet")
        seconds.append(time.perf_counter() - began)
    return len(table) / min(seconds)


def measure(pgn: Path, progress: Progress = silent, config: IngestConfig | None = None) -> dict[str, Any]:
    """Measure one process on one core, two workers, stored bytes, peak memory, and python-chess on the same games.

    `ratio_python_chess` compares both on the same first games of the dump; `positions_per_second` is of the whole, and
    `ratio_planes_write` that over the speed of writing shuffled planes alone. Where `config` says compact planes, `ratio_all`
    is the speed over that of the same games with `all`, in turns in the same run.
    """
    config = config or IngestConfig()
    beside = first_games(pgn, BESIDE_BYTES)
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder, one_core():
        same = Path(folder) / "same.pgn"
        same.write_bytes(beside)
        _timed(same, 1, config)  # compiles, or loads what was compiled
        progress(Tick(1, STAGES, "stages"))
        same_runs, all_runs = [], []
        for _ in range(3):
            same_runs.append(_timed(same, 1, config))
            if config.planes != "all":
                all_runs.append(_timed(same, 1, replace(config, planes="all"))[0])
        same_seconds, same_manifest, _ = min(same_runs, key=lambda result: result[0])
        runs = []
        for stage in (2, 3):
            progress(Tick(stage, STAGES, "stages"))
            runs.append(_timed(pgn, 1, config))
        seconds, manifest, stored = min(runs, key=lambda result: result[0])
        peak = peak_mib()
        planes_rate = _planes_rate(same, Path(folder), config)
        progress(Tick(4, STAGES, "stages"))
        chess_seconds, chess_positions = _python_chess(beside, Path(folder), config.history)
    progress(Tick(5, STAGES, "stages"))
    two_seconds, _, _ = _timed(pgn, 2, config)
    progress(Tick(STAGES, STAGES, "stages"))
    positions = manifest["positions"]["total"]
    same_rate = same_manifest["positions"]["total"] / same_seconds
    chess_rate = chess_positions / chess_seconds
    return {
        "pgn": pgn.name,
        "planes": config.planes,
        "history": config.history,
        "games": manifest["games"]["read"],
        "positions": positions,
        "seconds": round(seconds, 3),
        "positions_per_second": round(positions / seconds),
        "planes_write_positions_per_second": round(planes_rate),
        "ratio_planes_write": round(positions / seconds / planes_rate, 5),
        "same_games": same_manifest["games"]["read"],
        "same_games_positions_per_second": round(same_rate),
        "python_chess_positions_per_second": round(chess_rate),
        "ratio_python_chess": round(same_rate / chess_rate, 1),
        **({"ratio_all": round(min(all_runs) / same_seconds, 2)} if all_runs else {}),
        "two_workers_seconds": round(two_seconds, 3),
        "two_workers_speedup": round(seconds / two_seconds, 3),
        "plane_bytes_per_position": round(sum(stored[column.name] for column in PLANE_COLUMNS[config.planes]), 2),
        "bytes_per_position": round(sum(stored.values()), 2),
        "column_bytes_per_position": {name: round(size, 2) for name, size in stored.items()},
        "peak_memory_mib": peak,
    }
