"""Read datasets without the code that batches use, and write dumps of random games."""

import hashlib
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from pipeline.dataset.files import shards
from pipeline.dataset.files.columns import FORMAT_VERSION, SPLITS

RESULTS = ("1-0", "0-1", "1/2-1/2")


def table(directory: Path) -> pa.Table:
    """Read all shards in the manifest's order, with their split as a column."""
    parts = []
    for entry in manifest(directory)["files"]:
        if entry["split"]:
            part = join_planes(pq.read_table(directory / entry["name"]))
            parts.append(part.append_column("split", pa.array([entry["split"]] * len(part))))
    return pa.concat_tables(parts)


PIECES = [
    f"{side}_{name}"
    for name in ("pawns", "knights", "bishops", "rooks", "queens", "king")
    for side in ("own", "opponent")
]
MOVES = ("moves_1", "moves_2", "moves_3", "moves_4", "moves_5_to_7", "moves_knight")


def read_planes(part: pa.Table) -> np.ndarray:
    """Return a shard's planes, uint64[R, 77], read as datasets/README.md describes."""
    if "piece_bit_0" in part.schema.names:
        return np.array(
            [_encode_compact_row(row) for row in part.to_pylist()], dtype=np.uint64
        ).reshape(len(part), 77)
    words = [np.asarray(part[name]).reshape(-1, 1) for name in (*PIECES, "turn")]
    words += [
        np.frombuffer(b"".join(part[name].to_pylist()), "<u8").reshape(len(part), -1)
        for name in MOVES
    ]
    return np.concatenate(words, axis=1)


def _encode_compact_row(row: dict[str, Any]) -> Any:
    """Return the planes of a row of a compact shard, from python-chess's legal moves."""
    from pipeline.validation.verify import encode_planes

    black, board = row["black_to_move"], chess.Board(None)
    for square in range(64):
        code = sum((row[f"piece_bit_{bit}"] >> square & 1) << bit for bit in range(4))
        if code:
            kind, opponent = divmod(code - 1, 2)
            piece = chess.Piece(kind + 1, bool(black) == bool(opponent))
            board.set_piece_at(square if black else square ^ 56, piece)
    board.turn = not black
    home = {1: chess.H1, 2: chess.A1} if not black else {1: chess.H8, 2: chess.A8}
    away = {4: chess.H8, 8: chess.A8} if not black else {4: chess.H1, 8: chess.A1}
    board.castling_rights = sum(
        1 << square for bit, square in (home | away).items() if row["castling"] & bit
    )
    if row["ep_file"] != 255:
        board.ep_square = chess.square(row["ep_file"], 2 if black else 5)
    return encode_planes(board)


def join_planes(part: pa.Table) -> pa.Table:
    """Replace the columns of planes by one first column of bytes, `planes`."""
    if "planes" in part.schema.names:
        return part
    stored = [
        name
        for name in part.schema.names
        if name in {*PIECES, "turn", *MOVES, "black_to_move"} or "piece_bit" in name
    ]
    planes = pa.array([row.tobytes() for row in read_planes(part)], pa.binary(616))
    return part.drop_columns(stored).add_column(0, "planes", planes)


def rows_by_game(directory: Path) -> dict[int, list[dict[str, Any]]]:
    """Return each game's rows in the order of their plies."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in table(directory).to_pylist():
        found.setdefault(row["game"], []).append(row)
    return {game: sorted(rows, key=lambda row: row["ply"]) for game, rows in found.items()}


def games(directory: Path) -> list[dict[str, Any]]:
    """Read the table of games."""
    return pq.read_table(directory / "games.parquet").to_pylist()


def manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest as JSON."""
    return json.loads((directory / "manifest.json").read_bytes())


def plain_manifest(files: list[dict[str, Any]], games: int) -> dict[str, Any]:
    """Return a manifest of this version for shards that were not made by an ingest."""
    counts = {
        split: sum(entry["rows"] for entry in files if entry["split"] == split) for split in SPLITS
    }
    return {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "planes": "all",
        "row_group": shards.ROW_GROUP,
        "sources": [{"name": "a.pgn", "bytes": 0, "sha256": "0" * 64, "damage": ""}],
        "config": {},
        "games": {"read": games, "used": games, "dropped": {}},
        "positions": {"total": sum(counts.values()), **counts},
        "bytes_per_position": 40.0,
        "label_collisions": 0,
        "files": files,
    }


def content(directory: Path, pattern: str = "*") -> dict[str, str]:
    """Return the hash of every file below a directory by its name, except of locks."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob(pattern))
        if path.is_file() and path.name != ".lock"
    }


@cache
def random_game(seed: int, plies: int = 60) -> str:
    """Return a game of random moves as Lichess exports it, with clocks and evaluations."""
    rng = random.Random(seed)
    board = chess.Board()
    words = []
    while board.ply() < plies and not board.is_game_over():
        move = rng.choice(list(board.legal_moves))
        number = f"{board.fullmove_number}." if board.turn else f"{board.fullmove_number}..."
        clock = f"0:0{rng.randrange(10)}:{rng.randrange(60):02}"
        words.append(
            f"{number} {board.san(move)} {{ [%eval {rng.randrange(-900, 900) / 100}] [%clk "
            f"{clock}] }}"
        )
        board.push(move)
    outcome = board.outcome()
    result = outcome.result() if outcome else rng.choice(RESULTS)
    tags = {
        "Event": "Rated Rapid game",
        "Site": f"https://lichess.org/{seed:08}",
        "Result": result,
        "WhiteElo": str(rng.randrange(800, 2800)),
        "BlackElo": str(rng.randrange(800, 2800)),
        "TimeControl": "600+5",
    }
    return (
        "".join(f'[{name} "{value}"]\n' for name, value in tags.items())
        + f"\n{' '.join(words)} {result}\n\n"
    )


def dump(path: Path, count: int, plies: int = 60, first: int = 0) -> Path:
    """Write a dump of random games."""
    path.write_text("".join(random_game(seed, plies) for seed in range(first, first + count)))
    return path
