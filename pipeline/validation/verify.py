"""Is a dataset what it says it is, and what its dump says? Plain functions: a list of problems, empty when all is well.

Files are compared with their hashes, games with their splits, and rows with the dump: encoded again by ingest's own code
(`pipeline.validation.reencode`: all, or a sample of games), and a sample replayed with python-chess, which shares no code with
ingest: a wrong bit is found and not repeated.

Axes: R rows, P planes.
"""

import io
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from engine.progress import Progress, silent
from pipeline.dataset.files.shard_files import GAMES_COLUMNS, check_rows, games_tables, open_shard, read_games
from pipeline.dataset.files.shards import (
    GAMES,
    MANIFEST,
    SPLITS,
    batch_columns,
    file_hash,
    read_manifest,
    schema,
    verify,
)
from pipeline.dataset.files.vouch import vouch
from pipeline.dataset.training_set import Member, is_training_set, read_training_set, row_groups
from pipeline.errors import Stopped
from pipeline.validation.reencode import chunk_of, compare_all, compare_games, config_of, games_of_chunks, sample_games

LIMIT = 1 << 30
"""Bytes at the beginning of the decompressed dump: `rows_differ` takes games that begin there, and reads no further."""

BUT_PLANES = tuple(name for name in schema().names if name != "planes")
"""What is read of every row, for its ranges; planes are most of a shard, and are compared with the dump's."""

Row = dict[str, Any]


def files_differ(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Compare each file with the manifest's size, SHA-256 and rows, and look for files that it does not name."""
    named = {entry["name"] for entry in manifest["files"]} | {GAMES}
    strangers = sorted(path.name for path in directory.glob("*.parquet") if path.name not in named)
    return verify(directory) + [f"{name}: not in the manifest" for name in strangers]


def splits_share_games(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Look for games that have positions in two splits, or in another split than `games.parquet` says.

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
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Look for problems: give lists `files splits source rows damage`, and how much was compared.

    `sources` are the dumps in the manifest's order; without them rows are not compared. `everything` encodes the whole dump
    again, else `games` games are; `rows` rows are replayed with python-chess. With a `limit`, only games that begin in the
    first so many bytes of the (first) decompressed dump are, and no more is read nor hashed of it.
    """
    manifest = read_manifest(directory)
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
        elif games:
            found["encoded_again"], problems = games_differ(directory, manifest, sources, games, limit)
            found["rows"] += problems
        text = text_of(sources[0])
        found["compared"], problems = rows_differ(directory, manifest, text, rows, limit or LIMIT)
        found["rows"] += problems
    except pa.ArrowException as error:
        found["rows"].append(f"a file has its hash and cannot be read: {str(error)[:200]}")
    return found


def datasets_in(directory: Path) -> tuple[list[Path], list[str]]:
    """Give the datasets of a training set that are there, or the dataset itself, and what is wrong with the rest."""
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
    """Compare the dumps with the bytes and hashes in the manifest."""
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
    """Encode random games again from the dumps' text and compare all their rows: how many rows, and problems."""
    chunks = None if limit is None else max(1, limit // (config_of(manifest).chunk_mib << 20))
    drawn = sample_games(directory, manifest, count, chunks)
    wanted = np.array(sorted(game for games in drawn.values() for game in games), dtype=np.int64)
    if not len(wanted):
        return 0, []
    spans: dict[int, dict[int, tuple[int, int]]] = {}
    for first, table in games_tables(directory, manifest, ("source", "offset", "length")):
        here = wanted[(wanted >= first) & (wanted < first + len(table))]
        for game, row in zip(here.tolist(), table.take(here - first).to_pylist(), strict=True):
            if limit is None or (row["source"] == 0 and row["offset"] < limit):
                spans.setdefault(row["source"], {})[game] = (row["offset"], row["length"])
    texts: dict[int, bytes] = {}
    for number, asked in spans.items():
        if number < len(sources):
            texts |= dict(cut(text_of(sources[number]), asked))
    problems = []
    if not damage(manifest):
        asked_of = [game for asked in spans.values() for game in asked]
        problems += [f"game {game} is not in the dump" for game in asked_of if game not in texts]
    compared = 0
    for chunk, games in drawn.items():
        rows, found = compare_games(directory, manifest, games, texts, chunk)
        compared += rows
        problems += found
    return compared, problems


def rows_differ(
    directory: Path, manifest: Mapping[str, Any], text: Iterable[bytes], count: int, limit: int = LIMIT
) -> tuple[int, list[str]]:
    """Replay `count` random rows from the dump's text (its bytes, decompressed): how many were compared, and problems.

    The rows are of games that begin in the first `limit` bytes of the text; fewer are compared where there are fewer.
    """
    games = read_games(directory, manifest, ("source", "offset", "length"))
    before = pc.and_(pc.equal(games["source"], 0), pc.less(games["offset"], limit))
    games = games.filter(before)  # they are numbered as they come: these are the first ones
    chunks = max(1, limit // (config_of(manifest).chunk_mib << 20))
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
    """Draw rows from a few row groups of the shards, the same ones each time; only of the dump's first `chunks`.

    Raises DatasetError for a shard that cannot be read, or a file that is not the manifest's.
    """
    vouch(directory, manifest)
    rng = random.Random(0)  # noqa: S311
    splits = SPLITS if split is None else (split,)
    named = {shard.path.name: shard for name in splits for shard in Member(directory, dict(manifest)).shards(name)}
    shards = [named[entry["name"]] for entry in manifest["files"] if entry["rows"] and entry["name"] in named]
    before = None if chunks is None else games_of_chunks(directory, chunks)
    if chunks is not None:
        shards = [shard for shard in shards if (chunk_of(shard.path.name) or 0) < chunks]
    rows: list[Row] = []
    picked = [rng.choice(shards) for _ in range(min(8, count))] if shards else []
    for shard in picked:
        with open_shard(shard.path, shard.rows) as file:
            group = file.read_row_group(rng.randrange(file.num_row_groups))
            check_rows(batch_columns(group), shard.games)
        if before is not None:
            group = group.filter(pc.less(group["game"], before))
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
        "last_move": last_move_of(board),
    }
    different = [f"{name} is {row[name]}, not {value}" for name, value in expected.items() if row[name] != value]
    stored_P = np.frombuffer(row["planes"], "<u8")
    bad = np.flatnonzero(stored_P != planes_of(board))
    return "; ".join(different + ([f"planes {bad.tolist()} differ"] if bad.size else []))


def last_move_of(board: chess.Board) -> int | None:
    """Encode the move that led to a board: from * 64 + to, squares counted from its mover's a8 if White, a1 if Black."""
    if not board.move_stack:
        return None
    move, flip = board.peek(), 56 if board.turn == chess.WHITE else 0
    return (move.from_square ^ flip) * 64 + (move.to_square ^ flip)


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
    from pipeline.dumps.reader import BLOCK, Source, salvaged

    dump = Source(source)
    stream = dump.open()
    try:
        while block := stream.read(BLOCK):
            dump.text_bytes += len(block)
            yield block
    except OSError:
        if dump.compression is not None:
            yield from salvaged(dump, dump.text_bytes, dump.bytes_read)


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
