"""The table of a shard's columns, from which the schema, range checks, writer's options, Dagster's
schema and `rows` are made.

To add a column:
1. Add a row to ROW_COLUMNS: before the optional ones if every command fills it, else at the end
  with `optional=True`.
2. Fill it: for rows of games in pipeline/pgn/replay.py (`select_columns`) or
  pipeline/ingest/chunk.py (`_columns`), for
   rows of searches in pipeline/selfplay. `null` marks values that are not known.
3. A column that is not optional changes every shard: raise FORMAT_VERSION, and say so in
  CHANGELOG.md. If `ingest` fills
   it, raise ROWS_VERSION in pipeline/ingest/chunk.py; test_rows_version.py wants the hash of the
   new rows.
4. Copy its row into the table of datasets/README.md; tests/pipeline/dataset/files/test_columns.py
  compares the two.
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
from pipeline.dataset.files.layout import ROW_GROUP

FORMAT_VERSION = 3

Form = Literal["all", "compact"]
FORMS: tuple[Form, ...] = ("all", "compact")
"""How a shard holds planes: all 77 of them, or the position that they follow from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a shard."""

    name: str
    type: pa.DataType
    meaning: str
    source: str = "ingest"
    """Command that fills it."""
    null: float | None = None
    """Value that stands for null in a batch, NaN for floats; None if the column has no nulls."""
    bounds: tuple[int, int] | None = None
    """Least and largest value; None if every value of the type is valid."""
    none: int | None = None
    """Value outside of the bounds that means none."""
    codec: str = "lz4"
    """Compression: none, lz4 (Parquet's LZ4_RAW) where zstd saves little for its time, or zstd."""
    encoding: str = "BYTE_STREAM_SPLIT"
    """Parquet encoding; dictionary for columns that repeat a few values."""
    optional: bool = False
    """Whether shards may lack the column."""


SEARCH = "selfplay"
NAN = float("nan")
VISITS = pa.list_(
    pa.struct([pa.field("label", pa.uint16(), False), pa.field("share", pa.float32(), False)])
)
VISITS_LEAVES = ("visits.list.element.label", "visits.list.element.share")
"""Names of the Parquet columns that `visits` is stored in."""
_MOVE = {"type": pa.uint16(), "null": NO_LAST_MOVE, "bounds": (0, LABELS - 1)}

ROW_COLUMNS = (
    Column(
        name="label",
        type=pa.uint16(),
        bounds=(0, LABELS - 1),
        none=NO_LABEL,
        meaning="Move played: 0..4095, type x 64 + from-square; 65535 if none is known, in "
        "evaluated positions.",
    ),
    Column(
        name="promotion",
        type=pa.uint8(),
        bounds=(2, 5),
        none=0,
        meaning="Promotion: 0 none, 2 knight .. 5 queen.",
    ),
    Column(
        name="castling",
        type=pa.uint8(),
        bounds=(0, 15),
        meaning="Castling rights as bits: own king's side 1, own queen's side 2, the opponent's 4 "
        "and 8.",
    ),
    Column(
        name="ep_file",
        type=pa.uint8(),
        bounds=(0, 7),
        none=NO_EP_FILE,
        meaning="File of the square behind a pawn that has just moved two squares; 255 if there is "
        "none.",
    ),
    Column(name="halfmove", type=pa.uint8(), meaning="Fifty-move clock."),
    Column(
        name="repetition",
        type=pa.uint8(),
        meaning="Earlier occurrences of the position in its game.",
    ),
    Column(
        name="result",
        type=pa.int8(),
        bounds=(-1, 1),
        codec="none",
        encoding="DELTA_BINARY_PACKED",
        meaning="Result for the mover: +1, 0 or -1; 0 if `plies` is 0.",
    ),
    Column(name="ply", type=pa.uint16(), meaning="Half-moves played before this one."),
    Column(
        name="plies",
        type=pa.uint16(),
        meaning="Half-moves of the game; 0 for positions without a game (puzzles, EPD).",
    ),
    Column(name="game", type=pa.uint32(), meaning="Row of the game in games.parquet."),
    Column(
        name="last_move",
        **_MOVE,
        meaning="The opponent's last move: from x 64 + to, squares as in the planes; null at the "
        "start of a game.",
    ),
    Column(
        name="eval",
        type=pa.int16(),
        null=-32768,
        codec="none",
        encoding="DELTA_BINARY_PACKED",
        meaning="Centipawns for the mover before the move, from the comment after the move before; "
        "mates +-32000.",
    ),
    Column(
        name="clock",
        type=pa.uint16(),
        null=65535,
        codec="none",
        meaning="Seconds on the mover's clock before the move; the base time at a player's first "
        "move.",
    ),
    Column(name="elo", type=pa.uint16(), null=0, meaning="The mover's rating."),
    Column(name="opponent_elo", type=pa.uint16(), null=0, meaning="The opponent's rating."),
    Column(
        name="base",
        type=pa.uint16(),
        null=65535,
        meaning="Time control: seconds at the start; null unless the tag is `B` or `B+I` in "
        "seconds.",
    ),
    Column(
        name="increment",
        type=pa.uint8(),
        null=255,
        meaning="Time control: seconds added per move; null where `base` is.",
    ),
    Column(
        name="visits",
        type=VISITS,
        null=NAN,
        codec="zstd",
        encoding="",
        source=SEARCH,
        meaning="Policy of the search: labels and their shares; null without a search.",
    ),
    Column(
        name="root_value",
        type=pa.float32(),
        null=NAN,
        bounds=(-1, 1),
        codec="none",
        source=SEARCH,
        meaning="Value of the search's root for the mover; null without a search.",
    ),
    *(
        Column(
            name=name,
            **_MOVE,
            codec="zstd",
            optional=True,
            meaning=f"The move {index} half-moves before, as `last_move`; `ingest --history` says "
            f"how many are kept.",
        )
        for index, name in enumerate(LAST_MOVES[1:], 2)
    ),
    Column(
        name="best_value",
        type=pa.float32(),
        null=NAN,
        bounds=(-1, 1),
        codec="zstd",
        optional=True,
        source=SEARCH,
        meaning="Value of the search's best move for the mover.",
    ),
    Column(
        name="simulations",
        type=pa.uint16(),
        null=0,
        codec="zstd",
        optional=True,
        source=SEARCH,
        meaning="Simulations of the search.",
    ),
)
"""Every column but those of the planes, in the order of the file."""

PIECE_COLUMNS = (
    *(
        f"{side}_{piece}"
        for piece in ("pawns", "knights", "bishops", "rooks", "queens", "king")
        for side in ("own", "opponent")
    ),
    "turn",
)
"""Planes 0..12; `turn` is zero, or all ones if Black is to move."""
MOVE_COLUMNS = {
    "moves_1": 8,
    "moves_2": 8,
    "moves_3": 8,
    "moves_4": 8,
    "moves_5_to_7": 24,
    "moves_knight": 8,
}
"""Planes 13..76 by the distance of the move: the number of planes in each column."""
BOARD_COLUMNS = tuple(f"piece_bit_{bit}" for bit in range(CODE_BITS))
BLACK = "black_to_move"
_REPEATING = (
    "own_king",
    "opponent_king",
    "turn",
    "moves_3",
    "moves_4",
    "moves_5_to_7",
    "moves_knight",
)
assert len(PIECE_COLUMNS) == PIECE_PLANES + 1

PLANE_COLUMNS: dict[Form, tuple[Column, ...]] = {
    "all": (
        *(
            Column(
                name=name,
                type=pa.uint64(),
                codec="zstd",
                encoding="dictionary" if name in _REPEATING else "BYTE_STREAM_SPLIT",
                meaning=f"Plane {plane} of the position in the mover's view "
                f"(engine/encoding/planes.py).",
            )
            for plane, name in enumerate(PIECE_COLUMNS)
        ),
        *(
            Column(
                name=name,
                type=pa.binary(8 * words),
                codec="zstd",
                encoding="dictionary" if name in _REPEATING else "PLAIN",
                meaning=f"Planes of legal moves: {words} little-endian uint64 "
                f"(engine/encoding/planes.py).",
            )
            for name, words in MOVE_COLUMNS.items()
        ),
    ),
    "compact": (
        *(
            Column(
                name=name,
                type=pa.uint64(),
                codec="zstd",
                meaning=f"Bit {bit} of each square's piece code, a bitboard in the mover's view.",
            )
            for bit, name in enumerate(BOARD_COLUMNS)
        ),
        Column(
            name=BLACK,
            type=pa.bool_(),
            codec="none",
            encoding="PLAIN",
            meaning="Whether Black is to move; the board is in the mover's view all the same.",
        ),
    ),
}
"""The columns that planes are stored in, the first of the file."""

BY_NAME = {
    column.name: column
    for column in (*ROW_COLUMNS, *PLANE_COLUMNS["all"], *PLANE_COLUMNS["compact"])
}
COLUMNS = ("planes", *(column.name for column in ROW_COLUMNS if not column.optional))
"""Names of the columns of a batch that every shard can fill."""
OPTIONAL = {column.name: column for column in ROW_COLUMNS if column.optional}
EARLIER_MOVES = LAST_MOVES[1:]
"""Optional columns: the half-moves before the last one."""
BATCH_SENTINELS: dict[str, int] = {
    column.name: int(column.null)
    for column in ROW_COLUMNS
    if column.null is not None and column.null == column.null
}
"""Values that stand for null in a batch's arrays of integers, by column; arrays of floats have
NaN."""
STATISTICS = ("label", "ply", "elo", "game")
"""Columns whose least and largest value stand in the footer."""


def columns_of(form: Form, optional: Collection[str] = ()) -> list[Column]:
    """Return the columns of a shard in their order, with those optional ones that are named."""
    rows = (column for column in ROW_COLUMNS if not column.optional or column.name in optional)
    return [*PLANE_COLUMNS[form], *rows]


def schema(form: Form = "all", optional: Collection[str] = ()) -> pa.Schema:
    """Return the Arrow schema of a shard, with those optional columns that are named."""
    fields = [
        pa.field(column.name, column.type, column.null is not None)
        for column in columns_of(form, optional)
    ]
    metadata = {"fianchetto_format": str(FORMAT_VERSION), "encoding_version": str(ENCODING_VERSION)}
    return pa.schema(fields, metadata={**metadata, "moves_hash": moves_hash()})


def form_of(names: Collection[str]) -> Form:
    """Return the form of a shard by the names of its columns."""
    return "compact" if BOARD_COLUMNS[0] in names else "all"


def writer_options(stored: pa.Schema) -> dict[str, Any]:
    """Return how a shard is written: in encodings and codecs that pyarrow, polars, DuckDB and
    pandas read.
    """
    columns = [BY_NAME[name] for name in stored.names]
    codecs = {
        leaf: column.codec
        for column in columns
        for leaf in (VISITS_LEAVES if column.name == "visits" else (column.name,))
    }
    return {
        "write_batch_size": ROW_GROUP,
        "max_rows_per_page": ROW_GROUP,
        "compression": codecs,
        "compression_level": {name: 1 for name, codec in codecs.items() if codec == "zstd"},
        "use_dictionary": [column.name for column in columns if column.encoding == "dictionary"],
        "column_encoding": {
            column.name: column.encoding
            for column in columns
            if column.encoding not in ("", "dictionary")
        },
        "write_statistics": list(STATISTICS),
        "store_schema": True,
    }
