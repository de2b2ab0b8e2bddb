"""Compare a dataset with its manifest and its dump, and list the problems.

Files are compared with their hashes, and the splits of rows with those of their games. Random rows
are replayed from the dump by python-chess, which shares no code with ingest.

Axes: P planes.
"""

import io
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.encoding.planes import PLANES, LabelError, label_from_move
from engine.encoding.views import LAST_MOVES, NO_LABEL
from engine.json_files import safe_text
from pipeline.dataset.dataset import Dataset, is_training_set, open_unverified, read_training_set
from pipeline.dataset.files.columns import COLUMNS, GAMES, MANIFEST, SPLITS, find_plane_format
from pipeline.dataset.files.games import GAMES_COLUMNS
from pipeline.dataset.files.manifest import list_damage, read_manifest
from pipeline.dataset.files.shards import convert_damage_errors, list_group_sizes
from pipeline.dataset.files.verify_files import verify_files
from pipeline.dumps.formats.evaluations import Sample
from pipeline.dumps.source import is_same_file
from pipeline.errors import DatasetError
from pipeline.evaluation.game_texts import read_dump, read_game_texts
from pipeline.ingest.games import decode_span, parse_result
from pipeline.pgn import tags
from pipeline.pgn.text import MATE, translate_movetext
from pipeline.storage.stores import hash_file, open_for_arrow

MAX_REPLAYED_BYTES = 1 << 30
"""Rows are only sampled from games that begin within this many decompressed bytes of a dump."""
MAX_ROW_GROUPS = 8
"""Maximum number of row groups from which a sample of rows is drawn."""
COLUMNS_BUT_PLANES = tuple(name for name in COLUMNS if name != "planes")
"""Columns that are read, and so checked, in every row. Planes are most of a shard, so only those of
sampled rows are checked."""
Row = dict[str, Any]
"""A stored row: its columns, with `planes` as bytes."""
RESULT_NAMES = {1: "1-0", 0: "1/2-1/2", -1: "0-1"}


def verify_dataset(
    directory: Path, sources: Sequence[str] = (), *, rows: int = 64, limit: int | None = None
) -> dict[str, Any]:
    """Return lists of problems (`files splits source rows damage`) and the count `compared`.

    `sources` are the dumps in the manifest's order. With them, up to `rows` random rows are
    replayed with python-chess, and `compared` is their number. With a `limit`, only the first
    `limit` bytes of the decompressed dumps are read: rows are sampled from games that begin there,
    and the dumps are not hashed. Raises DatasetError for files that cannot be read.
    """
    dataset = open_unverified(directory)
    manifest = dataset.manifest
    found: dict[str, Any] = {
        "files": compare_files(directory),
        "splits": [],
        "source": [],
        "rows": [],
        "damage": list_damage(manifest),
        "compared": 0,
    }
    if found["files"]:
        return found  # damaged files cannot be compared further
    try:
        found["splits"] = compare_splits(dataset)
        if not sources:
            return found
        sample = Sample(manifest["config"].get("sample", 1.0), manifest["config"].get("seed", 0))
        if limit is None:
            found["source"] = compare_sources(manifest, sources)
        texts = [read_dump(source, sample) for source in sources]
        found["compared"], found["rows"] = compare_rows(
            dataset, texts, rows, limit or MAX_REPLAYED_BYTES
        )
    except pa.ArrowException as error:
        found["rows"].append(f"a file matches its hash but cannot be read: {str(error)[:200]}")
    return found


def list_joined_datasets(directory: Path) -> tuple[list[Path], list[str]]:
    """Return the datasets of a training set, or the dataset itself, and a list of problems."""
    if not is_training_set(directory):
        return [directory], []
    found, problems = [], []
    for entry in read_training_set(directory)["datasets"]:
        folder = (directory / entry["path"]).resolve()
        if not (folder / MANIFEST).is_file():
            problems.append(f"{entry['name']}: is missing")
            continue
        if hash_file(folder / MANIFEST) != entry["manifest_sha256"]:
            problems.append(f"{entry['name']}: its manifest has changed since it was joined")
        found.append(folder)
    return found, problems


# ---------------------------------------------------------------- files


def compare_files(directory: Path) -> list[str]:
    """List files that are missing, unlisted, or differ from the manifest.

    Hashes, numbers of rows and the format of planes are compared.
    """
    manifest, problems = read_manifest(directory), list[str]()
    for entry in manifest["files"]:
        path = directory / entry["name"]
        if not path.is_file():
            problems.append(f"{path.name}: missing")
        elif path.stat().st_size != entry["bytes"] or hash_file(path) != entry["sha256"]:
            problems.append(f"{path.name}: does not match its hash")
        elif (footer := _read_footer(path)) is None or footer.num_rows != entry["rows"]:
            problems.append(f"{path.name}: does not have the number of rows in the manifest")
        elif entry["split"]:
            stored = find_plane_format(footer.schema.names)
            if stored != manifest["planes"]:
                listed = manifest["planes"]
                problems.append(f"{path.name}: has planes {stored}, but the manifest says {listed}")
    listed_names = {entry["name"] for entry in manifest["files"]} | {GAMES}
    names = sorted(path.name for path in directory.glob("*.parquet"))
    unlisted = [name for name in names if name not in listed_names]
    return problems + [f"{name}: not in the manifest" for name in unlisted]


def _read_footer(path: Path) -> pq.FileMetaData | None:
    try:
        return pq.read_metadata(open_for_arrow(path))
    except (OSError, ValueError, pa.ArrowException):
        return None


def compare_splits(dataset: Dataset) -> list[str]:
    """List splits that share games, or whose games belong to another split in games.parquet.

    Raises DatasetError for a file with invalid values.
    """
    tables = dataset.read_games(tuple(GAMES_COLUMNS))
    splits = pa.chunked_array([table["split"].combine_chunks() for _, table in tables], pa.string())
    split_G = pc.index_in(splits, pa.array(SPLITS)).fill_null(-1).to_numpy()
    earlier: dict[str, NDArray[np.int64]] = {}
    problems = []
    for number, split in enumerate(SPLITS):
        columns = [np.unique(rows["game"]) for rows in dataset.read_rows(split, COLUMNS_BUT_PLANES)]
        games = np.unique(np.concatenate([np.zeros(0, np.int64), *columns]))
        for other, other_games in earlier.items():
            if shared := np.intersect1d(games, other_games).size:
                problems.append(f"{shared} games are in both {other} and {split}")
        if wrong := int((split_G[games] != number).sum()):
            problems.append(f"{wrong} games of {split} belong to another split in games.parquet")
        earlier[split] = games
    return problems


def compare_sources(manifest: Mapping[str, Any], sources: Sequence[str]) -> list[str]:
    """List dumps that differ from the sizes and hashes in the manifest."""
    entries = manifest["sources"]
    if len(entries) != len(sources):
        order = "name them in the manifest's order"
        return [f"the dataset was made from {len(entries)} dumps, not {len(sources)}: {order}"]
    return [
        f"{path}: is not the dump that the dataset was made from ({entry['name']}), or has changed"
        for path, entry in zip(sources, entries, strict=True)
        if not is_same_file(entry, Path(path))
    ]


# ---------------------------------------------------------------- rows


def compare_rows(
    dataset: Dataset, dumps: Sequence[Iterable[bytes]], count: int, limit: int = MAX_REPLAYED_BYTES
) -> tuple[int, list[str]]:
    """Compare up to `count` random rows with the dumps; return their number and the problems.

    The rows are from games that begin in the first `limit` bytes of the dumps' text.
    """
    manifest = dataset.manifest
    chunks = None if "selfplay" in manifest else max(1, limit // _read_chunk_bytes(manifest))
    rows = sample_rows(dataset, count, chunks=chunks)
    offsets, texts = read_game_texts(dataset, dumps, {row["game"] for row in rows}, limit)
    compared, problems = 0, []
    for row in rows:
        game = row["game"]
        location = f"game {game} at byte {offsets.get(game)}"
        if game in texts:
            compared += 1
            if difference := compare_row(row, texts[game]):
                problems.append(f"{location}, ply {row['ply']}: {difference}")
        elif game in offsets and not list_damage(manifest):
            problems.append(f"{location} is not in the dump")
    return compared, problems


def sample_rows(
    dataset: Dataset, count: int, split: str | None = None, chunks: int | None = None
) -> list[Row]:
    """Return up to `count` random rows of one split or all, from at most MAX_ROW_GROUPS row groups.

    With `chunks`, only rows of the dump's first `chunks` chunks are returned. Raises DatasetError
    for a shard that cannot be read or differs from the manifest.
    """
    verify_files(dataset.path, dataset.manifest)
    rng = random.Random(0)  # noqa: S311
    games = _count_games_before(dataset, chunks)
    groups = [
        (shard, number)
        for name in (SPLITS if split is None else (split,))
        for shard in dataset.list_shards(name)
        if chunks is None or _parse_chunk_number(shard.path.name) < chunks
        for number in range(len(shard.groups))
    ]
    rows: list[Row] = []
    picked = rng.sample(groups, min(MAX_ROW_GROUPS, count, len(groups)))
    # smallest first, so that larger groups can make up for groups with too few rows
    picked.sort(key=lambda group: group[0].groups[group[1]])
    for position, (shard, number) in enumerate(picked):
        with shard.open() as reader:
            names = [name for name in (*COLUMNS, *reader.optional) if name != "planes"]
            batch = reader.read(number, ("planes", *names), shard.games)
            table = reader.file.read_row_group(number, columns=names, use_threads=False)
        candidates = np.flatnonzero(batch["game"] < games).tolist()
        share = -(-(count - len(rows)) // (len(picked) - position))
        indices = sorted(rng.sample(candidates, min(len(candidates), share)))
        for row, index in zip(table.take(indices).to_pylist(), indices, strict=True):
            rows.append(row | {"planes": batch["planes"][index].tobytes()})
    rng.shuffle(rows)
    return rows[:count]


def _read_chunk_bytes(manifest: Mapping[str, Any]) -> int:
    """Return the size of the dump's chunks in bytes; raises DatasetError if it is invalid."""
    size = manifest["config"].get("chunk_mib")
    if not isinstance(size, int) or size < 1:
        why = f"config.chunk_mib must be 1 or more, but is {safe_text(size)}"
        raise DatasetError(f"{MANIFEST}: {why}")
    return size << 20


def _parse_chunk_number(shard: str) -> int:
    """Return the chunk number of a shard: 7 for train-00007-0.parquet."""
    match = re.fullmatch(r"[a-z]+-(\d+)-\d+\.parquet", shard)
    if match is None:
        raise DatasetError(f"{shard} is not the name of a shard: the manifest is damaged")
    return int(match[1])


def _count_games_before(dataset: Dataset, chunks: int | None) -> int:
    """Count the games of the first `chunks` chunks, row groups of `games.parquet`; None for all."""
    if chunks is None:
        return int(dataset.manifest["games"]["read"])
    path = dataset.path / GAMES
    with convert_damage_errors(path, "a table of games"), open_for_arrow(path) as source:
        return sum(list_group_sizes(pq.read_metadata(source))[:chunks])


# ---------------------------------------------------------------- rows by python-chess


def compare_row(row: Row, text: bytes) -> str:
    """Describe how a row differs from its text as python-chess reads it; "" if it does not."""
    if re.match(rb"[1-8BKNPQRbknpqr/]+ [wb] [^\t\n]*\t", text):
        return _compare_line(row, text.decode("utf-8", "replace"))
    game = chess.pgn.read_game(io.StringIO(_rewrite_game(text)))
    nodes = list(game.mainline()) if game is not None else []
    if game is None or row["ply"] >= len(nodes):
        return f"the dump's game has {len(nodes)} half-moves"
    node = nodes[row["ply"]]
    board, move = node.parent.board(), node.move
    white = {"1-0": 1, "0-1": -1}.get(game.headers.get("Result", "*"), 0)
    try:
        label = label_from_move(move, board.turn)
    except LabelError:  # a null move, which is never stored: the row is of another game
        return f"the dump's game has the move {move.uci()} there"
    moved = {"label": label, "promotion": move.promotion or 0}
    return _compare_board(row, board, moved | {"result": white if board.turn else -white})


def _rewrite_game(text: bytes) -> str:
    """Return a game's result, start and moves as PGN that python-chess reads correctly."""
    data, bounds = np.frombuffer(text, dtype=np.uint8), np.array([0, len(text)])
    spans, begin = np.zeros((1, len(tags.TAGS), 2), dtype=np.int64), np.zeros(1, dtype=np.int64)
    tags.scan_tags(data, bounds, spans, begin)
    movetext = decode_span(translate_movetext(data, begin, bounds), np.array([begin[0], len(text)]))
    # assessments such as +-- would be null moves to python-chess
    movetext = re.sub(r"--+\+|\+--+", "", movetext)
    # python-chess would read `1e4` as one move: separate the move number
    movetext = re.sub(r"(?<!\S)(\d+)(?=[a-h][1-8x])", r"\1. ", movetext)
    movetext = "\n".join(filter(str.strip, movetext.splitlines()))
    movetext = re.sub(r"(?<!\S)([01]):([01])(?!\S)", r"\1-\2", movetext)
    result = parse_result(decode_span(data, spans[0, tags.RESULT]))
    values = {"Result": RESULT_NAMES.get(result, ""), "FEN": decode_span(data, spans[0, tags.FEN])}
    tag_lines = "".join(f'[{name} "{value}"]\n' for name, value in values.items() if value)
    return f"{tag_lines}\n{movetext}\n"


def _compare_line(row: Row, line: str) -> str:
    """Describe how a row differs from the line of an evaluated position; "" if it does not."""
    fen, score, uci, *_ = line.split("\t")
    board = chess.Board(fen)
    if score.startswith("#"):
        white = int(math.copysign(MATE, int(score[1:])))
    else:
        white = max(-MATE, min(int(score), MATE))
    expected: Row = {"label": NO_LABEL, "promotion": 0, "plies": 0, "elo": None}
    expected["eval"] = white if board.turn else -white
    if uci:
        move = board.parse_uci(uci)
        expected |= {"label": label_from_move(move, board.turn), "promotion": move.promotion or 0}
    return _compare_board(row, board, expected)


def _compare_board(row: Row, board: chess.Board, expected: Mapping[str, Any]) -> str:
    """Describe how a row differs from a board and other expected columns; "" if it does not."""
    expected = {
        **expected,
        "castling": encode_castling(board),
        "ep_file": 255 if board.ep_square is None else chess.square_file(board.ep_square),
        "halfmove": min(board.halfmove_clock, 255),
        **dict(zip(LAST_MOVES, encode_last_moves(board), strict=True)),
    }
    differences = [
        f"{name} is {row[name]}, not {value}"
        for name, value in expected.items()
        if name in row and row[name] != value
    ]
    stored_P = np.frombuffer(row["planes"], "<u8")
    if (bad := np.flatnonzero(stored_P != encode_planes(board))).size:
        differences.append(f"planes {bad.tolist()} differ")
    return "; ".join(differences)


def encode_last_moves(board: chess.Board) -> list[int | None]:
    """Encode the moves before a board as the columns LAST_MOVES, padded with None.

    A move is from * 64 + to. Squares are counted from a8 if White is to move, from a1 if Black is.
    """
    flip = 56 if board.turn == chess.WHITE else 0
    played = reversed(board.move_stack)
    moves = [(move.from_square ^ flip) * 64 + (move.to_square ^ flip) for move in played]
    return [*moves, *[None] * len(LAST_MOVES)][: len(LAST_MOVES)]


def encode_castling(board: chess.Board) -> int:
    """Encode castling rights: 1 own king's side, 2 own queen's side, 4 and 8 the opponent's."""
    checks = (board.has_kingside_castling_rights, board.has_queenside_castling_rights)
    rights = [has_right(side) for side in (board.turn, not board.turn) for has_right in checks]
    return sum(right << bit for bit, right in enumerate(rights))


def encode_planes(board: chess.Board) -> NDArray[np.uint64]:
    """Encode a python-chess board as planes in the mover's view, uint64[77]."""
    planes_P = np.zeros(PLANES, np.uint64)
    view = board if board.turn == chess.WHITE else board.mirror()
    for piece in chess.PIECE_TYPES:
        for side, color in enumerate((chess.WHITE, chess.BLACK)):
            planes_P[2 * (piece - 1) + side] = chess.flip_vertical(view.pieces_mask(piece, color))
    planes_P[12] = 0 if board.turn == chess.WHITE else 2**64 - 1
    for move in board.legal_moves:
        kind, bit = divmod(label_from_move(move, board.turn), 64)
        planes_P[MOVE_PLANES + kind] |= np.uint64(1 << bit)
    return planes_P
