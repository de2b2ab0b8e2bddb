"""Turn the tags of a chunk's games into rows of `games.parquet`.

Axes: G games.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.dataset.files.columns import SPLITS
from pipeline.dataset.files.stored_planes import to_arrow
from pipeline.dumps.chunks import Chunk
from pipeline.ingest.filters import GAME_STATUS
from pipeline.ingest.games import (
    EVERY_PLY,
    TaggedGames,
    decode_span,
    find_date_spans,
    read_numbers,
    to_binary_column,
)
from pipeline.pgn import replay, tags


def _to_text_column(text: NDArray[np.uint8], spans: NDArray[np.int64]) -> pa.Array:
    """Return a text column of tag values, with null for absent ones."""
    if not spans.any():  # evaluated positions have no tags, and there are millions of them
        return pa.nulls(len(spans), pa.string())
    _, offsets, data = to_binary_column(text, spans).buffers()
    if not data.to_pybytes().isascii():
        return pa.array(
            [decode_span(text, span) if span[1] else None for span in spans], type=pa.string()
        )
    present = pa.py_buffer(np.packbits(spans[:, 1] > 0, bitorder="little"))
    return pa.StringArray.from_buffers(len(spans), offsets, data, present)


def _to_name_column(
    names: Sequence[str], indices: NDArray[Any], known: NDArray[np.bool_]
) -> pa.Array:
    """Return a column of the names at `indices`, with null where `known` is False."""
    numbers = to_arrow(indices.astype(np.int32), known)
    return pa.DictionaryArray.from_arrays(numbers, pa.array(names))


def _to_rating_column(values: NDArray[np.int32]) -> pa.Array:
    """Return a column of ratings, uint16, with null for 0."""
    return to_arrow(values.clip(0, 65535).astype(np.uint16), values > 0)


def choose_write_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the Parquet options: dictionary encoding for text, delta encoding for numbers.

    Hashes are stored plain. There are no statistics, since nothing reads them and they would double
    the time to write.
    """
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    return {
        "compression": {name: "none" if name in integers else "zstd" for name in schema.names},
        "use_dictionary": [name for name in schema.names if name not in integers],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in integers if name != "identity"},
        "write_statistics": False,
    }


def build_games_table(
    tagged: TaggedGames, text: NDArray[np.uint8], chunk: Chunk, split_G: NDArray[np.uint8]
) -> pa.Table:
    """Return the rows of `games.parquet` for a chunk.

    `text` is the text of `chunk`, and `split_G` has each game's index into SPLITS.
    """
    games, spans = tagged.games, tagged.spans
    count = len(games.status)
    used = games.status == replay.USED
    site = _to_text_column(text, spans[:, tags.SITE])
    # keep the id in a URL such as https://lichess.org/ZmSCR7xx
    site = pc.replace_substring_regex(site, "(?s)^.*/", "")
    columns = {
        "source": to_arrow(np.full(count, chunk.source, dtype=np.uint16)),
        "offset": to_arrow(chunk.offset + games.start[:-1]),
        "length": to_arrow(np.diff(games.start).astype(np.uint32)),
        "site": site,
        "event": _to_text_column(text, spans[:, tags.EVENT]).dictionary_encode(),
        "date": _to_text_column(text, find_date_spans(spans)),
        "white_elo": _to_rating_column(tagged.white_elo),
        "black_elo": _to_rating_column(tagged.black_elo),
        "time_control": _to_text_column(text, spans[:, tags.TIME_CONTROL]).dictionary_encode(),
        "eco": _to_text_column(text, spans[:, tags.ECO]).dictionary_encode(),
        "termination": _to_text_column(text, spans[:, tags.TERMINATION]).dictionary_encode(),
        "result": to_arrow(games.result, np.abs(games.result) <= 1),
        "plies": to_arrow(games.plies),
        "identity": to_arrow(games.identity),
        "split": _to_name_column(SPLITS, split_G, used),
        "dropped": _to_name_column(GAME_STATUS, games.status, ~used),
    }
    if (tagged.parity != EVERY_PLY).any():
        columns["puzzle_rating"] = _to_rating_column(
            read_numbers(text, spans[:, tags.PUZZLE_RATING], 0)
        )
        columns["puzzle_themes"] = _to_text_column(text, spans[:, tags.PUZZLE_THEMES])
    return pa.table(columns)
