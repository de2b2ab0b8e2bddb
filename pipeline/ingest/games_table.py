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
from pipeline.ingest.games import NO_LABELS, Tagged, numbers, span_column, tag_value
from pipeline.pgn import replay, tags


def _strings(text: NDArray[np.uint8], spans: NDArray[np.int64]) -> pa.Array:
    """Return a string column of tag values; absent ones are null."""
    if not spans.any():  # evaluated positions have no tags, and there are millions of them
        return pa.nulls(len(spans), pa.string())
    _, offsets, data = span_column(text, spans).buffers()
    if not data.to_pybytes().isascii():
        return pa.array(
            [tag_value(text, span) if span[1] else None for span in spans], type=pa.string()
        )
    present = pa.py_buffer(np.packbits(spans[:, 1] > 0, bitorder="little"))
    return pa.StringArray.from_buffers(len(spans), offsets, data, present)


def _look_up(names: Sequence[str], indices: NDArray[Any], known: NDArray[np.bool_]) -> pa.Array:
    """Return a column of the names at `indices`, null if not `known`."""
    numbers = to_arrow(indices.astype(np.int32), known)
    return pa.DictionaryArray.from_arrays(numbers, pa.array(names))


def _ratings(values: NDArray[np.int32]) -> pa.Array:
    """Return a column of ratings, with null for 0."""
    return to_arrow(values.clip(0, 65535).astype(np.uint16), values > 0)


def write_options(stored: pa.Schema) -> dict[str, Any]:
    """Return the Parquet options: dictionary encoding for text, delta encoding for numbers.

    Hashes are stored plain. Statistics are off: nothing reads them, and they would take half of the
    writing time.
    """
    numbers = [field.name for field in stored if pa.types.is_integer(field.type)]
    return {
        "compression": {name: "none" if name in numbers else "zstd" for name in stored.names},
        "use_dictionary": [name for name in stored.names if name not in numbers],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in numbers if name != "identity"},
        "write_statistics": False,
    }


def games_table(
    tagged: Tagged, text: NDArray[np.uint8], chunk: Chunk, split_G: NDArray[np.uint8]
) -> pa.Table:
    """Return the rows of `games.parquet` for a chunk; `split_G` indexes SPLITS."""
    games, spans = tagged.games, tagged.spans
    count = len(games.status)
    used = games.status == replay.USED
    site = _strings(text, spans[:, tags.SITE])
    site = pc.replace_substring_regex(site, "(?s)^.*/", "")  # https://lichess.org/ZmSCR7xx
    date = np.where(spans[:, [tags.UTC_DATE], 1] > 0, spans[:, tags.UTC_DATE], spans[:, tags.DATE])
    columns = {
        "source": to_arrow(np.full(count, chunk.source, dtype=np.uint16)),
        "offset": to_arrow(chunk.offset + games.start[:-1]),
        "length": to_arrow(np.diff(games.start).astype(np.uint32)),
        "site": site,
        "event": _strings(text, spans[:, tags.EVENT]).dictionary_encode(),
        "date": _strings(text, date),
        "white_elo": _ratings(tagged.white_elo),
        "black_elo": _ratings(tagged.black_elo),
        "time_control": _strings(text, spans[:, tags.TIME_CONTROL]).dictionary_encode(),
        "eco": _strings(text, spans[:, tags.ECO]).dictionary_encode(),
        "termination": _strings(text, spans[:, tags.TERMINATION]).dictionary_encode(),
        "result": to_arrow(games.result, np.abs(games.result) <= 1),
        "plies": to_arrow(games.plies),
        "identity": to_arrow(games.identity),
        "split": _look_up(SPLITS, split_G, used),
        "dropped": _look_up(GAME_STATUS, games.status, ~used),
    }
    if (tagged.parity != NO_LABELS).any():
        columns["puzzle_rating"] = _ratings(numbers(text, spans[:, tags.PUZZLE_RATING], 0))
        columns["puzzle_themes"] = _strings(text, spans[:, tags.PUZZLE_THEMES])
    return pa.table(columns)
