"""What the asset checks ask of a dataset directory, as plain functions: a list of problems, empty when all is well.

The rows are replayed with python-chess, which shares no code with ingest: a wrong bit is found and not repeated.

Axes: R rows, P planes.
"""

import io
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding import PLANES, label_of
from engine.legal import MOVE_PLANES
from pipeline.shards import GAMES, SPLITS, verify

LIMIT = 1 << 30
"""Bytes at the beginning of the decompressed dump: `rows_differ` takes games that begin there, and reads no further."""

Row = dict[str, Any]


def files_differ(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Compare each file with the manifest's size, SHA-256 and rows, and look for files that it does not name."""
    named = {entry["name"] for entry in manifest["files"]} | {GAMES}
    strangers = sorted(path.name for path in directory.glob("*.parquet") if path.name not in named)
    return verify(directory) + [f"{name}: not in the manifest" for name in strangers]


def splits_share_games(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Look for games that have positions in two splits, or in another split than `games.parquet` says."""
    names_of_splits = pq.read_table(directory / GAMES, columns=["split"])["split"]
    split_of = pc.index_in(names_of_splits, pa.array(SPLITS)).fill_null(-1).to_numpy()
    seen: dict[str, NDArray[np.int64]] = {}
    problems = []
    for number, split in enumerate(SPLITS):
        names = [entry["name"] for entry in manifest["files"] if entry["split"] == split]
        columns = [np.unique(pq.read_table(directory / name, columns=["game"])["game"]) for name in names]
        games = np.unique(np.concatenate(columns)) if columns else np.zeros(0, np.int64)
        for other, others in seen.items():
            if shared := np.intersect1d(games, others).size:
                problems.append(f"{shared} games are in both {other} and {split}")
        if wrong := int((split_of[games] != number).sum()):
            problems.append(f"{wrong} games of {split} belong to another split in games.parquet")
        seen[split] = games
    return problems


def rows_differ(
    directory: Path, manifest: Mapping[str, Any], text: Iterable[bytes], count: int, limit: int = LIMIT
) -> tuple[int, list[str]]:
    """Replay `count` random rows from the dump's text (its bytes, decompressed): how many were compared, and problems.

    The rows are of games that begin in the first `limit` bytes of the text; fewer are compared where there are fewer.
    """
    before = [("source", "==", 0), ("offset", "<", limit)]  # games are numbered as they come: these are the first ones
    games = pq.read_table(directory / GAMES, columns=["offset", "length"], filters=before)
    chunks = max(1, limit // (manifest["config"]["chunk_mib"] << 20))
    rows = [row for row in sample_rows(directory, manifest, count, chunks=chunks) if row["game"] < len(games)]
    spans = {row["game"]: (games["offset"][row["game"]].as_py(), games["length"][row["game"]].as_py()) for row in rows}
    texts = dict(cut(text, spans))
    compared, problems = 0, []
    for row in rows:
        place = f"game {row['game']} at byte {spans[row['game']][0]}"
        if row["game"] in texts:
            compared += 1
            if difference := row_differs(row, texts[row["game"]]):
                problems.append(f"{place}, ply {row['ply']}: {difference}")
        elif not damage(manifest):
            problems.append(f"{place} is not in the dump")
    return compared, problems


def sample_rows(
    directory: Path, manifest: Mapping[str, Any], count: int, split: str | None = None, chunks: int | None = None
) -> list[Row]:
    """Draw rows from a few row groups of the shards, the same ones each time; only of the dump's first `chunks`."""
    rng = random.Random(0)  # noqa: S311
    splits = SPLITS if split is None else (split,)
    names = [file["name"] for file in manifest["files"] if file["rows"] and file["split"] in splits]
    if chunks is not None:
        names = [name for name in names if int(name.split("-")[1]) < chunks]  # train-00007-0.parquet is of chunk 7
    rows: list[Row] = []
    picked = [rng.choice(names) for _ in range(min(8, count))] if names else []
    for name in picked:
        with pq.ParquetFile(directory / name) as shard:
            group = shard.read_row_group(rng.randrange(shard.num_row_groups))
        indices = sorted(rng.sample(range(len(group)), min(len(group), -(-count // len(picked)))))
        rows += group.take(indices).to_pylist()
    rng.shuffle(rows)
    return rows[:count]


def row_differs(row: Row, text: bytes) -> str:
    """Say how a stored row differs from the position that python-chess reaches in the game's text, or "" ."""
    game = chess.pgn.read_game(io.StringIO(text.decode("utf-8", "replace")))
    nodes = list(game.mainline()) if game is not None else []
    if game is None or row["ply"] >= len(nodes):
        return f"the dump's game has {len(nodes)} half-moves"
    node = nodes[row["ply"]]
    board, move = node.parent.board(), node.move
    white = {"1-0": 1, "0-1": -1}.get(game.headers.get("Result", "*"), 0)
    expected = {
        "label": label_of(move, board.turn),
        "promotion": move.promotion or 0,
        "result": white if board.turn else -white,
        "castling": castling_of(board),
        "ep_file": 255 if board.ep_square is None else chess.square_file(board.ep_square),
        "halfmove": min(board.halfmove_clock, 255),
    }
    different = [f"{name} is {row[name]}, not {value}" for name, value in expected.items() if row[name] != value]
    stored_P = np.frombuffer(row["planes"], "<u8")
    bad = np.flatnonzero(stored_P != planes_of(board))
    return "; ".join(different + ([f"planes {bad.tolist()} differ"] if bad.size else []))


def castling_of(board: chess.Board) -> int:
    """Encode castling rights: 1 own king's side, 2 own queen's, 4 and 8 the opponent's."""
    rights = [
        right(side)
        for side in (board.turn, not board.turn)
        for right in (board.has_kingside_castling_rights, board.has_queenside_castling_rights)
    ]
    return sum(has << bit for bit, has in enumerate(rights))


def planes_of(board: chess.Board) -> NDArray[np.uint64]:
    """Encode a python-chess board in the mover's view, uint64[77]."""
    planes_P = np.zeros(PLANES, np.uint64)
    view = board if board.turn == chess.WHITE else board.mirror()
    for piece in chess.PIECE_TYPES:
        for side, color in enumerate((chess.WHITE, chess.BLACK)):
            planes_P[2 * (piece - 1) + side] = chess.flip_vertical(view.pieces_mask(piece, color))
    planes_P[12] = 0 if board.turn == chess.WHITE else 2**64 - 1
    for move in board.legal_moves:
        kind, bit = divmod(label_of(move, board.turn), 64)
        planes_P[MOVE_PLANES + kind] |= np.uint64(1 << bit)
    return planes_P


def text_of(source: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of a dump, up to where it breaks off; `damage` is what tells of that."""
    from pipeline.sources import BLOCK, Salvage, Source

    dump = Source(source)
    stream = dump.open()
    try:
        while block := stream.read(BLOCK):
            dump.text_bytes += len(block)
            yield block
    except OSError:
        if dump.compression is not None:
            yield from Salvage(dump, dump.bytes_read).pieces


def damage(manifest: Mapping[str, Any]) -> list[str]:
    """Say where a dump broke off."""
    return [f"{source['name']}: {source['damage']}" for source in manifest["sources"] if source["damage"]]


def cut(chunks: Iterable[bytes], spans: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield the named (offset, length) spans of a stream of bytes, reading no further than the last one."""
    window, start = bytearray(), 0
    stream = iter(chunks)
    for key, (offset, length) in sorted(spans.items(), key=lambda item: item[1]):
        while start + len(window) < offset + length:
            if (chunk := next(stream, None)) is None:
                return
            passed = min(len(window), max(0, offset - start))
            del window[:passed]
            start += passed
            window += chunk
        yield key, bytes(window[offset - start : offset - start + length])
