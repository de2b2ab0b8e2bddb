"""What the asset checks ask of a dataset directory, as plain functions: a list of problems, empty when all is well.

The rows are replayed with python-chess, which shares no code with ingest: a wrong bit is found and not repeated.

Axes: R rows, P planes.
"""

import contextlib
import io
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.encoding import PLANES, label_of
from engine.legal import MOVE_PLANES
from pipeline.shards import GAMES, SPLITS, verify

LIMIT = 1 << 30
"""Bytes of the decompressed dump that `rows_differ` reads at most; its rows are drawn from games before that point."""

Row = dict[str, Any]


def files_differ(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Compare each file with the manifest's size, SHA-256 and rows, and look for files that it does not name."""
    named = {entry["name"] for entry in manifest["files"]} | {GAMES}
    strangers = sorted(path.name for path in directory.glob("*.parquet") if path.name not in named)
    return verify(directory) + [f"{name}: not in the manifest" for name in strangers]


def splits_share_games(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Look for games that have positions in two splits, or in another split than `games.parquet` says."""
    table = pq.read_table(directory / GAMES, columns=["split"])
    split_of = np.array(table["split"].to_pylist(), dtype=object)
    seen: dict[str, NDArray[np.int64]] = {}
    problems = []
    for split in SPLITS:
        names = [entry["name"] for entry in manifest["files"] if entry["split"] == split]
        columns = [np.asarray(pq.read_table(directory / name, columns=["game"])["game"]) for name in names]
        games = np.unique(np.concatenate(columns)) if columns else np.zeros(0, np.int64)
        for other, others in seen.items():
            if shared := np.intersect1d(games, others).size:
                problems.append(f"{shared} games are in both {other} and {split}")
        if wrong := int((split_of[games] != split).sum()):
            problems.append(f"{wrong} games of {split} belong to another split in games.parquet")
        seen[split] = games
    return problems


def rows_differ(directory: Path, manifest: Mapping[str, Any], chunks: Iterable[bytes], count: int) -> list[str]:
    """Replay `count` random rows from the dump's text (its bytes, decompressed) and compare planes, move and result."""
    games = pq.read_table(directory / GAMES, columns=["offset", "length"]).to_pydict()
    rows = [row for row in sample_rows(directory, manifest, count) if games["offset"][row["game"]] < LIMIT]
    wanted = {row["game"]: (games["offset"][row["game"]], games["length"][row["game"]]) for row in rows}
    texts = dict(cut(chunks, wanted))
    problems = []
    for row in rows:
        if row["game"] not in texts and not damage(manifest):
            problems.append(f"game {row['game']} is not in the dump at byte {wanted[row['game']][0]}")
        elif row["game"] in texts and (difference := row_differs(row, texts[row["game"]])):
            problems.append(f"game {row['game']} at byte {wanted[row['game']][0]}, ply {row['ply']}: {difference}")
    return problems


def sample_rows(directory: Path, manifest: Mapping[str, Any], count: int, split: str | None = None) -> list[Row]:
    """Draw rows from a few row groups of the shards, the same ones each time."""
    rng = random.Random(0)  # noqa: S311
    splits = SPLITS if split is None else (split,)
    names = [file["name"] for file in manifest["files"] if file["rows"] and file["split"] in splits]
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
    }
    different = [f"{name} is {row[name]}, not {value}" for name, value in expected.items() if row[name] != value]
    stored_P = np.frombuffer(row["planes"], "<u8")
    bad = np.flatnonzero(stored_P != planes_of(board))
    return "; ".join(different + ([f"planes {bad.tolist()} differ"] if bad.size else []))


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
    from pipeline.sources import BLOCK, Source

    stream = Source(source).open()
    with contextlib.suppress(OSError):
        while block := stream.read(BLOCK):
            yield block


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
