"""File names of a dataset, and the table of a shard's columns.

The schema, the range checks, the writer options, Dagster's schema and `fianchetto rows` are derived
from the table. To add a column:
1. Add a row to ROW_COLUMNS: before the optional ones if every command fills it, else at the end
   with `optional=True`. Describe it in COLUMN_MEANINGS.
2. Fill it: for rows of games in pipeline/pgn/replay.py (REPLAYED_COLUMNS) or
   pipeline/ingest/chunk.py (`_make_columns`), for rows of searches in pipeline/selfplay. `null`
   marks unknown values.
3. A column that is not optional changes every shard: raise FORMAT_VERSION, and say so in
   CHANGELOG.md. If `ingest` fills it, raise ROWS_VERSION in pipeline/ingest/chunk.py;
   test_rows_version.py needs the hash of the new rows.
4. Copy its row into the table of datasets/README.md, which test_stored_planes.py compares.
5. To train on it, name it in `training_columns` of model/data/rows.py.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from engine.board.piece_codes import CODE_BITS
from engine.encoding.inferred import NO_EP_FILE
from engine.encoding.planes import ENCODING_VERSION, LABELS, PIECE_PLANES, moves_hash
from engine.encoding.views import LAST_MOVES, NO_LABEL, NO_LAST_MOVE

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
GAMES = "games.parquet"
DATA_CARD_FILE = "CARD.md"
SPLITS = ("train", "val", "test")
ROW_GROUP = 32_768
"""Maximum rows of a row group, the unit of shuffling: about 20 MB as unpacked planes
(docs/findings.md). A file with larger groups is refused, since this project does not write them."""

PlaneFormat = Literal["all", "compact"]
PLANE_FORMATS: tuple[PlaneFormat, ...] = ("all", "compact")
"""Formats in which a shard stores planes: all 77, or the position from which they are computed."""
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a shard."""

    name: str
    type: pa.DataType
    null: float | None = None
    """Sentinel for null in a batch, NaN for floats; None if the column has no nulls."""
    bounds: tuple[int, int] | None = None
    """Minimum and maximum; None if every value of the type is valid."""
    none: int | None = None
    """Stored value outside the bounds that means "none", such as "no promotion"."""
    codec: str = "lz4"
    """Compression: none, zstd, or lz4 (Parquet's LZ4_RAW) where zstd is too slow for its gain."""
    encoding: str = "BYTE_STREAM_SPLIT"
    """Parquet encoding: "dictionary" suits few distinct values, "" is the writer's default."""
    optional: bool = False
    """Whether a shard may omit the column."""


U8, U16, U32, U64, F32 = pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32()
VISITS_TYPE = pa.list_(pa.struct([pa.field("label", U16, False), pa.field("share", F32, False)]))
VISITS_LEAVES = ("visits.list.element.label", "visits.list.element.share")
"""Names of the Parquet columns in which the nested column `visits` is stored."""
_DELTA_ENCODED: Any = {"codec": "none", "encoding": "DELTA_BINARY_PACKED"}
_MOVE_VALUES: Any = {"null": NO_LAST_MOVE, "bounds": (0, LABELS - 1)}
_VALUE_RANGE: Any = {"null": NAN, "bounds": (-1, 1)}
_OPTIONAL: Any = {"codec": "zstd", "optional": True}

ROW_COLUMNS = (
    Column("label", U16, bounds=(0, LABELS - 1), none=NO_LABEL),
    Column("promotion", U8, bounds=(2, 5), none=0),
    Column("castling", U8, bounds=(0, 15)),
    Column("ep_file", U8, bounds=(0, 7), none=NO_EP_FILE),
    Column("halfmove", U8),
    Column("repetition", U8),
    Column("result", pa.int8(), bounds=(-1, 1), **_DELTA_ENCODED),
    Column("ply", U16),
    Column("plies", U16),
    Column("game", U32),
    Column("last_move", U16, **_MOVE_VALUES),
    Column("eval", pa.int16(), null=-32768, **_DELTA_ENCODED),
    Column("clock", U16, null=65535, codec="none"),
    Column("elo", U16, null=0),
    Column("opponent_elo", U16, null=0),
    Column("base", U16, null=65535),
    Column("increment", U8, null=255),
    Column("visits", VISITS_TYPE, null=NAN, codec="zstd", encoding=""),
    Column("root_value", F32, codec="none", **_VALUE_RANGE),
    *(Column(name, U16, **_OPTIONAL, **_MOVE_VALUES) for name in LAST_MOVES[1:]),
    Column("best_value", F32, **_OPTIONAL, **_VALUE_RANGE),
    Column("simulations", U16, null=0, **_OPTIONAL),
)
"""All columns except those that store planes, in file order."""

COLUMN_MEANINGS = {
    "label": "Move played: 0..4095, type x 64 + from-square; 65535 if none is known, in evaluated "
    "positions.",
    "promotion": "Promotion: 0 none, 2 knight .. 5 queen.",
    "castling": "Castling rights as bits: own king's side 1, own queen's side 2, the opponent's 4 "
    "and 8.",
    "ep_file": "File of the square behind a pawn that has just moved two squares; 255 if there is "
    "none.",
    "halfmove": "Fifty-move clock.",
    "repetition": "Earlier occurrences of the position in its game.",
    "result": "Result for the mover: +1, 0 or -1; 0 if `plies` is 0.",
    "ply": "Half-moves played before this one.",
    "plies": "Half-moves of the game; 0 for positions without a game (puzzles, EPD).",
    "game": "Row of the game in games.parquet.",
    "last_move": "The opponent's last move: from x 64 + to, squares as in the planes; null at the "
    "start of a game.",
    "eval": "Centipawns for the mover before the move, from the comment on the previous move; "
    "mates +-32000.",
    "clock": "Seconds on the mover's clock before the move; the base time at a player's first "
    "move.",
    "elo": "The mover's rating.",
    "opponent_elo": "The opponent's rating.",
    "base": "Time control: seconds at the start; null unless the tag is `B` or `B+I` in seconds.",
    "increment": "Time control: seconds added per move; null where `base` is.",
    "visits": "Policy of the search: labels and their shares; null without a search.",
    "root_value": "Value of the search's root for the mover; null without a search.",
    "best_value": "Value of the search's best move for the mover.",
    "simulations": "Simulations of the search.",
}
"""Description of each column, as in datasets/README.md."""
for _index, _name in enumerate(LAST_MOVES[1:], 2):
    COLUMN_MEANINGS[_name] = (
        f"The move {_index} half-moves before, as `last_move`; `ingest --history` says how many "
        f"are kept."
    )

PIECE_COLUMNS = (
    *(
        f"{side}_{piece}"
        for piece in ("pawns", "knights", "bishops", "rooks", "queens", "king")
        for side in ("own", "opponent")
    ),
    "turn",
)
"""Columns of planes 0..12; `turn` is zero, or all ones if Black is to move."""
assert len(PIECE_COLUMNS) == PIECE_PLANES + 1
_MOVE_COLUMN_NAMES = ("moves_1", "moves_2", "moves_3", "moves_4", "moves_5_to_7", "moves_knight")
MOVE_COLUMNS = dict(zip(_MOVE_COLUMN_NAMES, (8, 8, 8, 8, 24, 8), strict=True))
"""Columns of planes 13..76, by the distance of the move, with the number of planes in each."""
BOARD_COLUMNS = tuple(f"piece_bit_{bit}" for bit in range(CODE_BITS))
BLACK_COLUMN = "black_to_move"
_REPETITIVE_COLUMNS = ("own_king", "opponent_king", "turn", *_MOVE_COLUMN_NAMES[2:])


def _make_plane_column(name: str, kind: pa.DataType, encoding: str = "BYTE_STREAM_SPLIT") -> Column:
    """Return a column of planes, dictionary-encoded if its values repeat often."""
    encoding = "dictionary" if name in _REPETITIVE_COLUMNS else encoding
    return Column(name, kind, codec="zstd", encoding=encoding)


PLANE_COLUMNS: dict[PlaneFormat, tuple[Column, ...]] = {
    "all": (
        *(_make_plane_column(name, U64) for name in PIECE_COLUMNS),
        *(
            _make_plane_column(name, pa.binary(8 * it), "PLAIN")
            for name, it in MOVE_COLUMNS.items()
        ),
    ),
    "compact": (
        *(_make_plane_column(name, U64) for name in BOARD_COLUMNS),
        Column(BLACK_COLUMN, pa.bool_(), codec="none", encoding="PLAIN"),
    ),
}
"""Columns that store planes, by format; they come first in the file."""

_PLANES_SOURCE = "(engine/encoding/planes.py)."
COLUMN_MEANINGS |= {
    name: f"Plane {plane} of the position in the mover's view {_PLANES_SOURCE}"
    for plane, name in enumerate(PIECE_COLUMNS)
}
COLUMN_MEANINGS |= {
    name: f"Planes of legal moves: {words} little-endian uint64 {_PLANES_SOURCE}"
    for name, words in MOVE_COLUMNS.items()
}
COLUMN_MEANINGS |= {
    name: f"Bit {bit} of each square's piece code, a bitboard in the mover's view."
    for bit, name in enumerate(BOARD_COLUMNS)
}
COLUMN_MEANINGS[BLACK_COLUMN] = (
    "Whether Black is to move; the board is in the mover's view in both cases."
)

COLUMNS_BY_NAME = {
    column.name: column
    for column in (*ROW_COLUMNS, *PLANE_COLUMNS["all"], *PLANE_COLUMNS["compact"])
}
COLUMNS = ("planes", *(column.name for column in ROW_COLUMNS if not column.optional))
"""Names of the batch columns that every shard has."""
OPTIONAL_COLUMNS = {column.name: column for column in ROW_COLUMNS if column.optional}
EARLIER_MOVES = LAST_MOVES[1:]
"""Optional columns with the half-moves before the opponent's last move."""
BATCH_SENTINELS: dict[str, int] = {
    column.name: int(column.null)
    for column in ROW_COLUMNS
    if column.null is not None and column.null == column.null
}
"""Sentinel for null in each integer column of a batch that can be null; floats use NaN."""
STATISTICS_COLUMNS = ("label", "ply", "elo", "game")
"""Columns whose minimum and maximum are written to the footer."""


def list_columns(plane_format: PlaneFormat, optional: Collection[str] = ()) -> list[Column]:
    """Return the columns of a shard in order, including the given optional ones."""
    rows = (column for column in ROW_COLUMNS if not column.optional or column.name in optional)
    return [*PLANE_COLUMNS[plane_format], *rows]


def make_schema(plane_format: PlaneFormat = "all", optional: Collection[str] = ()) -> pa.Schema:
    """Return the Arrow schema of a shard, including the given optional columns."""
    columns = list_columns(plane_format, optional)
    fields = [pa.field(column.name, column.type, column.null is not None) for column in columns]
    metadata = {"fianchetto_format": str(FORMAT_VERSION), "encoding_version": str(ENCODING_VERSION)}
    return pa.schema(fields, metadata={**metadata, "moves_hash": moves_hash()})


def find_plane_format(names: Collection[str]) -> PlaneFormat:
    """Return the format of a shard's planes, from the names of its columns."""
    return "compact" if BOARD_COLUMNS[0] in names else "all"


def make_writer_options(shard_schema: pa.Schema) -> dict[str, Any]:
    """Return the options of pyarrow's writer; polars, DuckDB and pandas read the encodings too."""
    columns = [COLUMNS_BY_NAME[name] for name in shard_schema.names]
    codecs = {column.name: column.codec for column in columns if column.name != "visits"}
    codecs |= dict.fromkeys(VISITS_LEAVES, COLUMNS_BY_NAME["visits"].codec)
    encodings = {column.name: column.encoding for column in columns if column.encoding}
    dictionaries = [name for name, encoding in encodings.items() if encoding == "dictionary"]
    for name in dictionaries:
        del encodings[name]
    return {
        "write_batch_size": ROW_GROUP,
        "max_rows_per_page": ROW_GROUP,
        "compression": codecs,
        "compression_level": {name: 1 for name, codec in codecs.items() if codec == "zstd"},
        "use_dictionary": dictionaries,
        "column_encoding": encodings,
        "write_statistics": list(STATISTICS_COLUMNS),
        "store_schema": True,
    }
