"""Compare a dataset with its manifest and its dump: plain functions that return a list of problems, empty for none.

Files are compared with their hashes, games with their splits, and rows with the dump: encoded again by ingest's code
(`pipeline.validation.reencode`: all, or a sample of games), and a sample replayed with python-chess, which shares no code with
ingest: a wrong bit is found and not repeated.

Axes: R rows, P planes.
"""

import io
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.encoding.planes import PLANES, label_of
from engine.encoding.views import LAST_MOVES
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.columns import COLUMNS
from pipeline.dataset.files.shard_files import GAMES_COLUMNS, games_tables, open_shard
from pipeline.dataset.files.shards import (
    GAMES,
    MANIFEST,
    SPLITS,
    file_hash,
    read_manifest,
    verify,
)
from pipeline.dataset.files.vouch import vouch
from pipeline.dataset.training_set import Member, is_training_set, read_training_set, row_groups
from pipeline.errors import ConfigError, Stopped
from pipeline.evaluation.game_texts import read_texts, text_of
from pipeline.validation.reencode import compare_all, compare_games, config_of, first_chunks, sample_games

LIMIT = 1 << 30
"""Bytes at the beginning of the decompressed dump: `rows_differ` takes games that begin there, and reads no further."""

BUT_PLANES = tuple(name for name in COLUMNS if name != "planes")
"""What is read of every row, for its ranges; planes are most of a shard, and are compared with the dump's."""

Row = dict[str, Any]


def files_differ(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return differences of files from the manifest's size, SHA-256 and rows, and files that it does not name."""
    named = {entry["name"] for entry in manifest["files"]} | {GAMES}
    strangers = sorted(path.name for path in directory.glob("*.parquet") if path.name not in named)
    return verify(directory) + [f"{name}: not in the manifest" for name in strangers]


def splits_share_games(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return games that have positions in two splits, or in another split than `games.parquet` says.

    Raises DatasetError for a file whose values are out of the format's ranges.
    """
    names_of_splits = pa.chunked_array(
        [table["split"].combine_chunks() for _, table in games_tables(directory, manifest, tuple(GAMES_COLUMNS))],
        pa.string(),
    )
    split_of = pc.index_in(names_of_splits, pa.array(SPLITS)).fill_null(-1).to_numpy()
    seen: dict[str, NDArray[np.int64]] = {}
    problems = []
    for number, split in enumerate(SPLITS):
        rows = row_groups(Member(directory, dict(manifest)).shards(split), BUT_PLANES)
        columns = [np.unique(group["game"]) for group in rows]
        games = np.unique(np.concatenate(columns)) if columns else np.zeros(0, np.int64)
        for other, others in seen.items():
            if shared := np.intersect1d(games, others).size:
                problems.append(f"{shared} games are in both {other} and {split}")
        if wrong := int((split_of[games] != number).sum()):
            problems.append(f"{wrong} games of {split} belong to another split in games.parquet")
        seen[split] = games
    return problems


def verify_dataset(
    directory: Path,
    sources: Sequence[str] = (),
    *,
    games: int = 64,
    everything: bool = False,
    rows: int = 64,
    limit: int | None = None,
    workers: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Return the problems as lists `files splits source rows damage`, and how much was compared.

    `sources` are the dumps in the manifest's order; without them rows are not compared. `everything` encodes the whole dump
    again, else `games` games are; `rows` rows are replayed with python-chess. With a `limit`, only games that begin in the
    first so many bytes of the (first) decompressed dump are, and no more is read nor hashed of it.

    Rows of self-play are of a search, so that they are replayed and not encoded again. Raises ConfigError for `everything` of
    such a dataset, and DatasetError for files that cannot be read.
    """
    manifest = read_manifest(directory)
    searched = is_selfplay(manifest)
    if searched and everything:
        raise ConfigError(
            f"{directory} holds self-play, whose rows no dump can be encoded to again: verify it without --all"
        )
    found: dict[str, Any] = {"files": files_differ(directory, manifest), "splits": [], "source": [], "rows": []}
    found |= {"damage": damage(manifest), "encoded_again": 0, "compared": 0}
    if found["files"]:  # what is damaged is not read
        return found
    try:
        found["splits"] = splits_share_games(directory, manifest)
        if not sources:
            return found
        if stop():
            raise Stopped("stopped after the files; no row was compared")
        if limit is None:
            found["source"] = sources_differ(manifest, sources)
        if everything:
            found["encoded_again"], problems = compare_all(
                directory, manifest, sources, workers=workers, progress=progress, stop=stop
            )
            found["rows"] += problems
        elif games and not searched:
            found["encoded_again"], problems = games_differ(directory, manifest, sources, games, limit)
            found["rows"] += problems
        text = text_of(sources[0])
        found["compared"], problems = rows_differ(directory, manifest, text, rows, limit or LIMIT)
        found["rows"] += problems
    except pa.ArrowException as error:
        found["rows"].append(f"a file has its hash and cannot be read: {str(error)[:200]}")
    return found


def is_selfplay(manifest: Mapping[str, Any]) -> bool:
    """Return whether a dataset was made by self-play."""
    return "selfplay" in manifest


def datasets_in(directory: Path) -> tuple[list[Path], list[str]]:
    """Return the datasets of a training set that are there, or the dataset itself, and what is wrong with the rest."""
    if not is_training_set(directory):
        return [directory], []
    found, problems = [], []
    for entry in read_training_set(directory)["datasets"]:
        folder = (directory / entry["path"]).resolve()
        if not (folder / MANIFEST).is_file():
            problems.append(f"{entry['name']}: is not there")
            continue
        if file_hash(folder / MANIFEST) != entry["manifest_sha256"]:
            problems.append(f"{entry['name']}: its manifest is another one than was joined")
        found.append(folder)
    return found, problems


def sources_differ(manifest: Mapping[str, Any], sources: Sequence[str]) -> list[str]:
    """Return differences of the dumps from the bytes and hashes in the manifest."""
    named = manifest["sources"]
    if len(named) != len(sources):
        return [f"the dataset was made of {len(named)} dumps, not {len(sources)}: name them in the manifest's order"]
    return [
        f"{path}: is not the dump that the dataset was made of ({entry['name']}), or has changed"
        for path, entry in zip(sources, named, strict=True)
        if Path(path).stat().st_size != entry["bytes"] or file_hash(Path(path)) != entry["sha256"]
    ]


def games_differ(
    directory: Path, manifest: Mapping[str, Any], sources: Sequence[str], count: int, limit: int | None = None
) -> tuple[int, list[str]]:
    """Encode random games again from the dumps' text and compare all their rows; return how many rows, and problems."""
    drawn = sample_games(directory, manifest, count, _chunks(manifest, limit))
    wanted = {game for games in drawn.values() for game in games}
    offsets, texts = read_texts(directory, manifest, sources, wanted, limit)
    problems = []
    if not damage(manifest):
        problems += [f"game {game} is not in the dump" for game in offsets if game not in texts]
    compared = 0
    for chunk, games in drawn.items():
        rows, found = compare_games(directory, manifest, games, texts, chunk)
        compared += rows
        problems += found
    return compared, problems


def rows_differ(
    directory: Path, manifest: Mapping[str, Any], text: Iterable[bytes], count: int, limit: int = LIMIT
) -> tuple[int, list[str]]:
    """Replay `count` random rows from the dump's decompressed bytes: return how many were compared, and problems.

    The rows are of games that begin in the first `limit` bytes of the text; fewer are compared where there are fewer.
    """
    rows = sample_rows(directory, manifest, count, chunks=_chunks(manifest, limit))
    offsets, texts = read_texts(directory, manifest, [text], {row["game"] for row in rows}, limit)
    compared, problems = 0, []
    for row in (row for row in rows if row["game"] in offsets):
        place = f"game {row['game']} at byte {offsets[row['game']]}"
        if row["game"] in texts:
            compared += 1
            if difference := row_differs(row, texts[row["game"]]):
                problems.append(f"{place}, ply {row['ply']}: {difference}")
        elif not damage(manifest):
            problems.append(f"{place} is not in the dump")
    return compared, problems


def _chunks(manifest: Mapping[str, Any], limit: int | None) -> int | None:
    """Return how many chunks of the dump a limit in bytes is, None for no limit; self-play has one chunk."""
    return None if limit is None or is_selfplay(manifest) else max(1, limit // (config_of(manifest).chunk_mib << 20))


def sample_rows(
    directory: Path, manifest: Mapping[str, Any], count: int, split: str | None = None, chunks: int | None = None
) -> list[Row]:
    """Return rows drawn from a few row groups of the shards by a fixed seed; only of the dump's first `chunks`.

    Raises DatasetError for a shard that cannot be read, or a file that is not the manifest's.
    """
    vouch(directory, manifest)
    rng = random.Random(0)  # noqa: S311
    splits = SPLITS if split is None else (split,)
    named = {shard.path.name: shard for name in splits for shard in Member(directory, dict(manifest)).shards(name)}
    files, before = first_chunks(directory, manifest, chunks)
    shards = [named[name] for name in files if name in named]
    rows: list[Row] = []
    picked = [rng.choice(shards) for _ in range(min(8, count))] if shards else []
    for shard in picked:
        with open_shard(shard.path, shard.rows) as reader:
            number = rng.randrange(len(reader.groups))
            names = [name for name in (*COLUMNS, *reader.optional) if name != "planes"]
            batch = reader.read(number, ("planes", *names), shard.games)
            table = reader.table(number, names)
        candidates = np.flatnonzero(batch["game"] < before).tolist()
        indices = sorted(rng.sample(candidates, min(len(candidates), -(-count // len(picked)))))
        found = table.take(indices).to_pylist()
        rows += [row | {"planes": batch["planes"][at].tobytes()} for row, at in zip(found, indices, strict=True)]
    rng.shuffle(rows)
    return rows[:count]


def row_differs(row: Row, text: bytes) -> str:
    """Return how a stored row differs from the position that python-chess reaches in the game's text, or "" ."""
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
        **dict(zip(LAST_MOVES, last_moves_of(board), strict=True)),
    }
    different = [
        f"{name} is {row[name]}, not {value}" for name, value in expected.items() if name in row and row[name] != value
    ]
    stored_P = np.frombuffer(row["planes"], "<u8")
    bad = np.flatnonzero(stored_P != planes_of(board))
    return "; ".join(different + ([f"planes {bad.tolist()} differ"] if bad.size else []))


def last_moves_of(board: chess.Board) -> list[int | None]:
    """Encode the moves that led to a board, the last one first, as LAST_MOVES are; None where there were no more.

    A move is from * 64 + to, squares counted from the mover's a8 if he is White, a1 if Black.
    """
    flip = 56 if board.turn == chess.WHITE else 0
    moves = [(move.from_square ^ flip) * 64 + (move.to_square ^ flip) for move in reversed(board.move_stack)]
    return [*moves, *[None] * len(LAST_MOVES)][: len(LAST_MOVES)]


def castling_of(board: chess.Board) -> int:
    """Encode castling rights: 1 own king's side, 2 own queen's, 4 and 8 the opponent's."""
    rights = [
        right(side)
        for side in (board.turn, not board.turn)
        for right in (board.has_kingside_castling_rights, board.has_queenside_castling_rights)
    ]
    return sum(has << bit for bit, has in enumerate(rights))


def planes_of(board: chess.Board) -> NDArray[np.uint64]:
    """Return the planes of a python-chess board in the mover's view, uint64[77]."""
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


def damage(manifest: Mapping[str, Any]) -> list[str]:
    """Return where a dump broke off."""
    return [f"{source['name']}: {source['damage']}" for source in manifest["sources"] if source["damage"]]
