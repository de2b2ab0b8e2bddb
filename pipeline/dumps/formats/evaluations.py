"""Convert Lichess's evaluated positions to text for `pipeline.pgn.evaluation_rows`, one per line.

    Lichess/fishnet-evals               Parquet: fen, cp, mate, and a human player's move, if any
    Lichess/chess-position-evaluations  Parquet: fen, line, depth, knodes, cp, mate; a row for each
                                        line of each analysis
    lichess_db_eval.jsonl.zst           JSON lines: the same data, one object per position

If a position has several analyses, the first line of the deepest one is used; among equally deep
analyses, that of the one with the most nodes. Parquet is read in batches of rows and JSON in blocks
of lines, so memory is bounded. README.md describes the datasets.

Axes: N lines of analyses, S positions.
"""

import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.dumps.formats.text import Readable
from pipeline.errors import DumpError

FISHNET_TABLE = "Lichess fishnet evaluations (Parquet)"
POSITION_TABLE = "Lichess position evaluations (Parquet)"
JSON_LINES = "Lichess position evaluations (JSON lines)"
ENGINE_MOVE_INPUTS = (POSITION_TABLE, JSON_LINES)
"""Inputs whose moves are an engine's."""
INPUT_COLUMNS = {
    FISHNET_TABLE: ("fen", "cp", "mate", "move"),
    POSITION_TABLE: ("fen", "line", "depth", "knodes", "cp", "mate"),
}
"""Columns of each kind of Parquet table of evaluated positions."""
TEXT_COLUMNS = ("fen", "line", "move")
MAX_BATCH_ROWS, MAX_BATCH_BYTES = 1 << 15, 1 << 24
"""Maximum rows to read at a time, and approximately their maximum bytes."""
MAX_TEXT_BYTES = 1 << 10
"""Maximum bytes of a FEN, move or line of moves; a row with a longer one is invalid."""
JSON_BLOCK_BYTES, MAX_LINE_BYTES = 1 << 21, 1 << 20
"""Bytes of JSON to parse at a time, and maximum bytes of a line; longer lines are invalid rows."""
BROKEN_LINE = b"\t\t\t\n"
"""Output line without a FEN, score and move, which is counted as a bad row."""
INVALID_START = b"!"
"""Text that replaces the start of a line that is too long, so that it is not valid JSON."""
_LINE_TYPE = pa.struct({"cp": pa.int64(), "mate": pa.int64(), "line": pa.string()})
_ANALYSIS_TYPE = pa.struct({"pvs": pa.list_(_LINE_TYPE), "knodes": pa.int64(), "depth": pa.int64()})
_JSON_SCHEMA = pa.schema({"fen": pa.string(), "evals": pa.list_(_ANALYSIS_TYPE)})


class Sample(NamedTuple):
    """Random choice of row groups or blocks; a smaller share with the same seed is a subset."""

    share: float = 1.0
    seed: int = 0

    def includes(self, name: str, number: int) -> bool:
        """Return whether to read the row group or block `number` of an input."""
        seed = (self.seed, zlib.crc32(name.encode()), number)
        return bool(np.random.Generator(np.random.PCG64(seed)).random() < self.share)


WHOLE_INPUT = Sample()


def recognize_input(schema: pa.Schema) -> str | None:
    """Return the name of the input that has these columns, None for any other table."""
    for name in (POSITION_TABLE, FISHNET_TABLE):
        if set(INPUT_COLUMNS[name]) <= set(schema.names):
            return name
    return None


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column type is text: any string type, or a dictionary of strings."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def check_types(name: str, schema: pa.Schema, columns: tuple[str, ...]) -> None:
    """Raise DumpError if a column occurs twice or has the wrong type.

    TEXT_COLUMNS must be text, and the others integers or floats; any may have the null type.
    """
    for column in columns:
        if len(schema.get_all_field_indices(column)) > 1:
            raise DumpError(f"{name}: the column {column} occurs twice")
        kind = schema.field(column).type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not (pa.types.is_null(kind) or (is_text(kind) if column in TEXT_COLUMNS else is_number)):
            wanted = "text" if column in TEXT_COLUMNS else "a whole number"
            raise DumpError(f"{name}: the column {column} is {kind}, but must be {wanted}")


def read_parquet(
    name: str, source: Any, kind: str, sample: Sample, on_share: Callable[[float], None]
) -> Iterator[memoryview]:
    """Yield the output lines of a table, a batch of rows at a time.

    `source` is the open file, `kind` a key of INPUT_COLUMNS. `on_share` is called with the share of
    the rows read so far. Positions whose analyses may continue in a row group that is not sampled
    are left out. Raises OSError for damage, after all lines before it.
    """
    file, columns = pq.ParquetFile(source, pre_buffer=False), INPUT_COLUMNS[kind]
    text_columns = [column for column in columns if column in TEXT_COLUMNS]
    count = file.metadata.num_row_groups
    groups = [group for group in range(count) if sample.includes(name, group)]
    rows, done = max(sum(file.metadata.row_group(group).num_rows for group in groups), 1), 0
    rest: pa.RecordBatch | None = None
    try:
        for group in groups:
            # a position at the edge of a sampled group may have other analyses in its neighbor
            is_after_gap = group > 0 and not sample.includes(name, group - 1)
            rest = None if is_after_gap else rest
            edge_fen: pa.Scalar | None = None
            size = _choose_batch_rows(file, source, group, text_columns)
            for batch in file.iter_batches(
                size, row_groups=[group], columns=columns, use_threads=False
            ):
                done += len(batch)
                for text in text_columns:
                    at = batch.schema.get_field_index(text)
                    batch = batch.set_column(at, text, batch.column(at).cast(pa.string()))
                if kind == POSITION_TABLE:
                    if is_after_gap and len(batch):
                        edge_fen = batch.column("fen")[0] if edge_fen is None else edge_fen
                        is_other = pc.not_equal(batch.column("fen"), edge_fen)
                        batch = batch.filter(is_other.fill_null(True))
                    batch, rest = _select_deepest(batch, rest)
                yield _format_lines(batch)
                on_share(done / rows)
    except (pa.ArrowException, OSError) as error:
        raise OSError(" ".join(str(error).split())[:200]) from error
    if rest is not None and groups[-1] == count - 1:
        yield _format_lines(rest)


def _choose_batch_rows(
    file: pq.ParquetFile, source: Any, group: int, text_columns: list[str]
) -> int:
    """Return how many rows of a row group to read at a time, fewer if its texts are long.

    A row's texts are assumed to be as long as the average, or as the longest text of a dictionary,
    since all rows may repeat that one.
    """
    metadata = file.metadata.row_group(group)
    chunks = [metadata.column(at) for at in range(metadata.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema in text_columns]
    rows = max(metadata.num_rows, 1)
    row_bytes: int = sum(chunk.total_uncompressed_size for chunk in chunks) // rows
    encoded = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page]
    if encoded and metadata.num_rows:
        dictionaries = pq.ParquetFile(
            source, metadata=file.metadata, read_dictionary=encoded, pre_buffer=False
        )
        first_row = dictionaries.iter_batches(
            1, row_groups=[group], columns=encoded, use_threads=False
        )
        for column in next(first_row):
            # a column with only nulls may have another type
            if pa.types.is_dictionary(column.type):
                row_bytes = max(row_bytes, pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    return max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // max(row_bytes, 1)))


def _select_deepest(
    batch: pa.RecordBatch, rest: pa.RecordBatch | None
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the best lines of all positions in a batch but the last, and the last one's best line.

    A position is a run of rows with the same FEN. The last run may continue in the next batch, for
    which its best line so far is passed as `rest`.
    """
    rows = batch if rest is None else pa.concat_batches([rest, batch])
    fens = rows.column("fen")
    is_same = pc.equal(fens[1:], fens[:-1]).fill_null(False)
    position_N = np.cumsum(np.append(0, ~np.asarray(is_same)))[: len(rows)]
    best_S = _find_deepest(position_N, rows.column("depth"), rows.column("knodes"))
    best = rows.take(pa.array(best_S))
    return best[:-1], best[-1:]


def _find_deepest(
    position_N: NDArray[np.int64], depth: pa.Array, knodes: pa.Array
) -> NDArray[np.int64]:
    """Return the index of each position's best line: deepest, then most nodes, then first.

    The result is int64[S].
    """
    depth_N, knodes_N = (
        np.asarray(_to_integers(column).fill_null(0)) for column in (depth, knodes)
    )
    # `~` reverses the order and, unlike `-`, cannot overflow
    order_N = np.lexsort((~knodes_N, ~depth_N, position_N))
    return order_N[np.flatnonzero(np.diff(position_N, prepend=-1))]


def _format_lines(best: pa.RecordBatch) -> memoryview:
    """Format a batch of positions as text, a line for each: FEN, score, first move."""
    cp, mate = (_to_integers(best.column(name)) for name in ("cp", "mate"))
    is_mate = mate.is_valid()
    mates = pc.binary_join_element_wise("#", mate.drop_null().cast(pa.string()), "")
    mates = pc.if_else(cp.filter(is_mate).is_valid(), "both", mates)
    score = pc.replace_with_mask(cp.cast(pa.string()), is_mate, mates).cast(pa.binary())
    if "move" in best.schema.names:
        move = _to_texts(best.column("move"))
    else:
        move = pc.replace_substring_regex(_to_texts(best.column("line")), " .*", "")
    fields = (_to_texts(best.column("fen")), score, move, b"\n")
    text = pc.binary_join_element_wise(
        *fields, b"\t", null_handling="replace", null_replacement=b""
    )
    data, size = text.buffers()[2], pc.sum(pc.binary_length(text)).as_py() or 0
    return memoryview(data or b"").cast("B")[:size]


def _to_integers(column: pa.Array) -> pa.Array:
    """Convert numbers to int64, with null for those that are not whole or do not fit."""
    if pa.types.is_signed_integer(column.type) or pa.types.is_null(column.type):
        return column.cast(pa.int64())
    wide = column.cast(pa.float64(), safe=False)
    is_whole = pc.and_(pc.equal(wide, pc.floor(wide)), pc.less(pc.abs(wide), 2.0**53))
    return pc.if_else(is_whole, wide, None).cast(pa.int64())


def _to_texts(column: pa.Array) -> pa.Array:
    """Convert strings to bytes, with `?` for those that are too long or have control characters."""
    texts = column.cast(pa.binary())
    is_invalid, data = pc.greater(pc.binary_length(texts), MAX_TEXT_BYTES), texts.buffers()[2]
    if data and np.frombuffer(data, dtype=np.uint8).min() < ord(" "):
        is_invalid = pc.or_(is_invalid, pc.match_substring_regex(texts, "[\\x00-\\x1f]"))
    return pc.if_else(is_invalid, b"?", texts) if pc.any(is_invalid).as_py() else texts


# ---------------------------------------------------------------- JSON lines


def read_json_lines(name: str, stream: Readable, sample: Sample) -> Iterator[bytes]:
    """Convert JSON lines to output lines, one block at a time; the sample selects blocks.

    Invalid lines become invalid rows.
    """
    for number, block in enumerate(_read_blocks(stream)):
        if sample.includes(name, number):
            yield _convert_block(block)


def _read_blocks(stream: Readable) -> Iterator[bytes]:
    """Yield blocks of whole lines of about JSON_BLOCK_BYTES.

    The start of a line that is too long is replaced, so that its rest cannot be a valid object.
    """
    rest = b""
    while data := stream.read(JSON_BLOCK_BYTES):
        whole, newline, rest = (rest + data).rpartition(b"\n")
        rest = rest if len(rest) <= MAX_LINE_BYTES else INVALID_START
        if newline:
            yield whole
    if rest.strip():
        yield rest


def _convert_block(block: bytes) -> bytes:
    """Convert a block of JSON lines at once, or line by line if that fails."""
    lines, data = block.split(b"\n"), b"{}\n" + block  # Arrow crashes if the first value is null
    options = {
        "read_options": pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        "parse_options": pa.json.ParseOptions(
            explicit_schema=_JSON_SCHEMA, unexpected_field_behavior="ignore"
        ),
    }
    if max(map(len, lines)) <= MAX_LINE_BYTES:
        with suppress(pa.ArrowException):
            table = pa.json.read_json(io.BytesIO(data), **options)
            if len(table) == len(lines) + 1:
                return b"".join(map(_convert_objects, table.slice(1).to_batches()))
    return b"".join(_convert_line(line) for line in lines if line.strip())


def _convert_objects(rows: pa.RecordBatch) -> memoryview:
    """Convert parsed positions to output lines, without a score if there is no analysis."""
    evals = rows.column("evals")
    analyses, pvs = pc.list_flatten(evals), pc.struct_field(pc.list_flatten(evals), "pvs")
    analysis_N = np.asarray(pc.list_parent_indices(pvs))
    position_N = np.asarray(pc.list_parent_indices(evals))[analysis_N]
    depth, knodes = (
        pc.struct_field(analyses, name).take(pa.array(analysis_N)) for name in ("depth", "knodes")
    )
    best_N = _find_deepest(position_N, depth, knodes)
    best = np.full(len(rows), -1)
    best[position_N[best_N]] = best_N
    at = pa.array(best, mask=best < 0)
    line = pc.list_flatten(pvs).take(at)
    columns = {name: pc.struct_field(line, name) for name in ("cp", "mate", "line")}
    return _format_lines(pa.RecordBatch.from_pydict({"fen": rows.column("fen"), **columns}))


_PARSE_ERRORS = (
    *(ValueError, TypeError, AttributeError, OSError, OverflowError, RecursionError),
    pa.ArrowException,
)


def _convert_line(text: bytes) -> bytes:
    """Convert a JSON line to an output line, BROKEN_LINE if it is too long or not a position."""
    if len(text) > MAX_LINE_BYTES:
        return BROKEN_LINE
    try:
        # keep floats as text: Arrow rejects them, instead of truncating them to integers
        entry = json.loads(text, parse_float=str)
        rows = pa.RecordBatch.from_pylist([entry], schema=_JSON_SCHEMA)
        return bytes(_convert_objects(rows))
    except _PARSE_ERRORS:
        return BROKEN_LINE
