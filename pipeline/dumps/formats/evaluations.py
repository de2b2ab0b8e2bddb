"""Lichess's evaluated positions, turned into lines that `pipeline.pgn.evaluation_rows` reads: a position each.

    Lichess/fishnet-evals                Parquet: fen, cp, mate, move     the move that a person played, if any
    Lichess/chess-position-evaluations   Parquet: fen, line, depth, knodes, cp, mate; a row for each line of each analysis
    lichess_db_eval.jsonl.zst            JSON lines: the same data, an object for each position

Of several analyses of a position the deepest is taken, of equally deep ones that with most nodes, and of its lines the first.
Parquet is read in batches of rows and JSON in blocks of lines, so memory is bounded. Rules of the data sets: README.md.

Axes: R rows, N analyses or lines of all rows of a batch, S positions.
"""

import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.dumps.formats.text import Readable
from pipeline.errors import DumpError

FISHNET, POSITIONS = "Lichess fishnet evaluations (Parquet)", "Lichess position evaluations (Parquet)"
JSON_LINES = "Lichess position evaluations (JSON lines)"
ENGINE_MOVES = (POSITIONS, JSON_LINES)
"""Inputs whose moves are an engine's."""
COLUMNS = {FISHNET: ("fen", "cp", "mate", "move"), POSITIONS: ("fen", "line", "depth", "knodes", "cp", "mate")}
TEXTS = ("fen", "line", "move")
BATCH = 1 << 15
"""Rows that are read at a time."""
LONGEST_TEXT = 1 << 10
"""Bytes of a FEN, move or line of moves; a longer one makes its row a bad one."""
BLOCK, LONGEST_LINE = 1 << 21, 1 << 20
"""Bytes of JSON that are parsed at a time, and of its longest line; a longer one is a bad row."""
BROKEN = "\t\t\t\t\n"

_SCHEMA = pa.schema(
    [
        ("fen", pa.string()),
        (
            "evals",
            pa.list_(
                pa.struct(
                    [
                        ("pvs", pa.list_(pa.struct([("cp", pa.int64()), ("mate", pa.int64()), ("line", pa.string())]))),
                        ("knodes", pa.int64()),
                        ("depth", pa.int64()),
                    ]
                )
            ),
        ),
    ]
)


class Sample(NamedTuple):
    """A share of an input's row groups or blocks, drawn by a seed: a smaller share is a subset of a larger one."""

    share: float = 1.0
    seed: int = 0

    def takes(self, name: str, number: int) -> bool:
        """Return whether a numbered group or block of an input is read."""
        seed = (self.seed, zlib.crc32(name.encode()), number)
        return bool(np.random.Generator(np.random.PCG64(seed)).random() < self.share)


ALL = Sample()


def recognise(schema: pa.Schema) -> str | None:
    """Return the name of the input that has these columns; None for another table."""
    return next((name for name in (POSITIONS, FISHNET) if set(COLUMNS[name]) <= set(schema.names)), None)


def check_types(name: str, schema: pa.Schema, columns: tuple[str, ...]) -> None:
    """Raise DumpError where a column is neither text nor, for numbers, whole numbers or floats, or occurs twice."""
    for column in columns:
        if len(schema.get_all_field_indices(column)) > 1:
            raise DumpError(f"{name}: the column {column} occurs twice")
        kind, is_text = schema.field(column).type, column in TEXTS
        valid = pa.types.is_string(kind) or pa.types.is_large_string(kind) if is_text else pa.types.is_integer(kind)
        if not (valid or pa.types.is_null(kind) or (not is_text and pa.types.is_floating(kind))):
            wanted = "text" if is_text else "a whole number"
            raise DumpError(f"{name}: the column {column} is {kind}, and must be {wanted}")


def read_parquet(
    name: str, source: Any, kind: str, sample: Sample, on_share: Callable[[float], None]
) -> Iterator[memoryview]:
    """Yield the lines of a table, some batches of rows at a time; `on_share` gets the share of the row groups that was read.

    `source` is an open file. Raises OSError for damage, after all lines before it.
    """
    file = pq.ParquetFile(source, pre_buffer=False)
    groups = [group for group in range(file.metadata.num_row_groups) if sample.takes(name, group)]
    rows, done = max(sum(file.metadata.row_group(group).num_rows for group in groups), 1), 0
    rest: pa.RecordBatch | None = None
    for batch in _read_batches(file, source, kind, groups):
        if kind == FISHNET:
            yield _lines(*(batch.column(column) for column in COLUMNS[FISHNET]))
        else:
            lines, rest = _deepest_lines(batch, rest)
            yield lines
        done += len(batch)
        on_share(done / rows)
    if rest is not None:
        yield _deepest_lines(None, rest)[0]


def _read_batches(file: pq.ParquetFile, source: Any, kind: str, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield batches of row groups; raises OSError for damage."""
    columns = list(COLUMNS[kind])
    texts = [column for column in columns if column in TEXTS]
    careful = pq.ParquetFile(source, metadata=file.metadata, read_dictionary=texts, pre_buffer=False)
    try:
        for group in groups:
            reader = careful if _has_long_texts(careful, group, texts) else file
            yield from reader.iter_batches(BATCH, row_groups=[group], columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise OSError(" ".join(str(error).split())[:200]) from error


def _has_long_texts(file: pq.ParquetFile, group: int, texts: Sequence[str]) -> bool:
    """Return whether a text that a row group's dictionary states once, and any number of rows may repeat, is too long.

    Such a group is read as a dictionary, which takes its memory once, and several times as long.
    """
    metadata = file.metadata.row_group(group)
    chunks = (metadata.column(at) for at in range(metadata.num_columns))
    repeating = [
        chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page and chunk.path_in_schema in texts
    ]
    if not repeating:
        return False
    first = next(file.iter_batches(1, row_groups=[group], columns=repeating, use_threads=False), None)
    lengths = () if first is None else (pc.max(pc.binary_length(column.dictionary)).as_py() for column in first.columns)
    return any((length or 0) > LONGEST_TEXT for length in lengths)


def _deepest_lines(
    batch: pa.RecordBatch | None, rest: pa.RecordBatch | None
) -> tuple[memoryview, pa.RecordBatch | None]:
    """Return the lines of all positions but the batch's last one, which may go on in the next, and the rows of that.

    A position is a run of rows with one FEN; `batch` None ends the last one.
    """
    parts = [part for part in (rest, batch) if part is not None]
    if not parts:
        return memoryview(b""), None
    rows = pa.concat_batches([_plain(part) for part in parts])
    fens = rows.column("fen")
    changed_N = np.ones(len(rows), dtype=np.bool_)
    changed_N[1:] = ~np.asarray(pc.equal(fens[1:], fens[:-1]).fill_null(True), dtype=np.bool_)
    starts_S = np.flatnonzero(changed_N)
    kept = rows[len(rows) :]
    if batch is not None and len(starts_S):
        last = int(starts_S[-1])
        rows, kept, starts_S = rows[:last], rows[last:], starts_S[:-1]
    numbers = [_whole_numbers(rows.column(column)) for column in ("depth", "knodes")]
    best = rows.take(pa.array(_find_deepest(starts_S, *numbers)))
    return _lines(*(best.column(column) for column in ("fen", "cp", "mate", "line", "depth"))), kept


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with its dictionaries applied, too long texts null."""
    columns = [_texts(batch.column(name)) if name in TEXTS else batch.column(name) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _find_deepest(
    starts_S: NDArray[np.int64], depth_N: NDArray[np.int64], knodes_N: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the first analysis of the greatest depth, then of the most nodes, of each position, int64[S].

    A position's analyses are those from its start to the next one's.
    """
    if not len(starts_S):
        return starts_S
    order_N = depth_N.clip(0, 1 << 20) << 40 | knodes_N.clip(0, (1 << 40) - 1)
    position_N = np.repeat(np.arange(len(starts_S)), np.diff(starts_S, append=len(order_N)))
    best_N = np.flatnonzero(order_N == np.maximum.reduceat(order_N, starts_S)[position_N])
    return best_N[np.unique(position_N[best_N], return_index=True)[1]]


def _whole_numbers(column: pa.Array) -> NDArray[np.int64]:
    """Return whole numbers, int64, 0 for null; raises DumpError for others."""
    return np.asarray(_integers(column).fill_null(0))


def _integers(column: pa.Array) -> pa.Array:
    """Return a column as int64; raises OSError for numbers that are not whole."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise OSError(f"a number is not whole ({str(error).splitlines()[0][:100]})") from error


def _texts(column: pa.Array) -> pa.Array:
    """Return a column of texts as bytes; null for those that are too long or hold control characters."""
    if pa.types.is_null(column.type):
        return column.cast(pa.binary())
    words = (column.dictionary if pa.types.is_dictionary(column.type) else column).cast(pa.binary())
    ends, data = _ends(words), words.buffers()[2]
    texts = np.frombuffer(b"" if data is None else data, dtype=np.uint8)[ends[0] : ends[-1]]
    odd = pa.array(np.diff(ends) > LONGEST_TEXT)
    if len(texts) and texts.min() < ord(" "):
        odd = pc.or_(odd, pc.match_substring_regex(words, "[\\x00-\\x1f]"))
    if pc.any(odd).as_py():
        words = pc.if_else(odd, pa.scalar(None, pa.binary()), words)
    return words.take(column.indices) if pa.types.is_dictionary(column.type) else words


def _ends(texts: pa.Array) -> NDArray[np.int32]:
    """Return where each text begins and the last one ends, int32[R + 1]."""
    if not len(texts):
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(texts.buffers()[1], dtype=np.int32, count=texts.offset + len(texts) + 1)[texts.offset :]


def _lines(fen: pa.Array, cp: pa.Array, mate: pa.Array, move: pa.Array, depth: pa.Array | None = None) -> memoryview:
    """Return the lines of positions; `move` may be a line of moves, of which the first is taken."""
    cp, mate, move = _integers(cp), _integers(mate), _texts(move)
    score = cp.cast(pa.string())
    if mate.null_count < len(mate):
        mates = pc.binary_join_element_wise("#", mate.cast(pa.string()), "")
        both = pc.and_(score.is_valid(), mates.is_valid())
        score = pc.if_else(both, "both", pc.coalesce(score, mates))
    plies: Any = b""
    if depth is not None:
        move = pc.replace_substring_regex(move, " .*", "")
        plies = _integers(depth).cast(pa.string()).cast(pa.binary())
    fields = (_texts(fen), score.cast(pa.binary()), move, plies, b"\n")
    text = pc.binary_join_element_wise(*fields, b"\t", null_handling="replace", null_replacement="")
    ends, data = _ends(text), text.buffers()[2]
    return memoryview(b"" if data is None else data).cast("B")[int(ends[0]) : int(ends[-1])]


# ---------------------------------------------------------------- JSON lines


def read_json_lines(name: str, stream: Readable, sample: Sample) -> Iterator[memoryview]:
    """Yield the lines of a stream of JSON objects, a block at a time; a sample takes blocks. Bad lines give bad rows."""
    for number, block in enumerate(_blocks(stream)):
        if sample.takes(name, number):
            yield _convert_block(block)


def _blocks(stream: Readable) -> Iterator[bytes]:
    """Yield whole lines in blocks of about BLOCK; of a line that is too long, only its beginning."""
    rest = b""
    while data := stream.read(BLOCK):
        whole, newline, rest = (rest + data).rpartition(b"\n")
        rest = rest[: LONGEST_LINE + 1]
        if newline:
            yield whole
    if rest.strip():
        yield rest


def _convert_block(block: bytes) -> memoryview:
    """Return the lines of a block; one that is not valid as a whole is parsed line by line."""
    options = {
        "read_options": pa.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        "parse_options": pa.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"),
    }
    try:
        table = pa.json.read_json(io.BytesIO(block), **options)
    except pa.ArrowException:
        lines = [line for line in block.split(b"\n") if line.strip()]
        return memoryview("".join(map(_convert_line, lines)).encode("utf-8", "replace"))
    rows = table.combine_chunks().to_batches()
    return _convert_objects(rows[0]) if rows else memoryview(b"")


def _convert_objects(rows: pa.RecordBatch) -> memoryview:
    """Return the lines of parsed positions [R], of which those without an analysis or a line have no score."""
    evals = rows.column("evals")
    analyses_R, at_R = _find_nonempty(evals)
    inner = evals.values
    depth_N, knodes_N = (_whole_numbers(pc.struct_field(inner, name)) for name in ("depth", "knodes"))
    best_R = np.full(len(rows), -1)
    if len(at_R):
        picked = np.concatenate([np.arange(first, last) for first, last in analyses_R])
        starts = np.cumsum([0, *(last - first for first, last in analyses_R[:-1])])
        best_R[at_R] = picked[_find_deepest(starts, depth_N[picked], knodes_N[picked])]
    chosen = inner.take(pa.array(best_R, mask=best_R < 0))
    pvs = pc.struct_field(chosen, "pvs")
    lines_R, at_R = _find_nonempty(pvs)
    first_R = np.full(len(rows), -1)
    first_R[at_R] = lines_R[:, 0]
    pv = pvs.values.take(pa.array(first_R, mask=first_R < 0))
    cp, mate, line = (pc.struct_field(pv, name) for name in ("cp", "mate", "line"))
    return _lines(rows.column("fen"), cp, mate, line, pc.struct_field(chosen, "depth"))


def _find_nonempty(lists: pa.ListArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and last place of the lists that are not empty, and which rows these are."""
    ends = np.asarray(lists.offsets).astype(np.int64)
    spans = np.stack([ends[:-1], ends[1:]], axis=1)
    at = np.flatnonzero((spans[:, 1] > spans[:, 0]) & np.asarray(lists.is_valid()))
    return spans[at], at


def _convert_line(text: bytes) -> str:
    """Return the line of one object, BROKEN if it is not one of a position."""
    try:
        entry = json.loads(text)
        rows = pa.RecordBatch.from_pylist([entry], schema=_SCHEMA)
        return bytes(_convert_objects(rows)).decode("utf-8", "replace")
    except (ValueError, TypeError, AttributeError, OSError, OverflowError, RecursionError, pa.ArrowException):
        return BROKEN
