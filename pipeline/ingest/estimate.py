"""Estimate the result of an ingest (games, positions, bytes, minutes) from the start of the dumps.

    first megabytes of text -> ingest into a temporary folder -> scale by the length of the text

The rest of each dump is assumed to be like its beginning.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.cores import count_cores
from engine.progress import Progress, Stop, never, silent
from pipeline.dumps.source import Source
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import choose_chunk_size, ingest

SAMPLE_BYTES = 24 << 20
"""Bytes of text to read from each dump."""
READ_BYTES = 1 << 18
"""Bytes of text to read at a time."""
SPEED_UP_PER_WORKER = 0.9
"""Speed-up per additional worker."""
WARM_UP_GAME = '[Event "?"]\n[Result "1-0"]\n\n1. e4 1-0\n\n'
"""Game that is ingested first, so that loading the kernels is not timed."""


def estimate(
    sources: Sequence[str],
    config: IngestConfig | None = None,
    *,
    workers: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Estimate the result of `ingest` with the same sources, and keep nothing on disk.

    `basis` of the result says how much of the text was read. `dropped` and `positions_dropped` are
    shares by reason. Raises DumpError, FetchError and Stopped; ConfigError for evaluated positions;
    and DatasetError if no position that was read is kept.
    """
    config = config or IngestConfig()
    if not sources:
        raise ConfigError("name at least one dump, or - for standard input")
    config, workers = choose_chunk_size(config, sources), workers or count_cores()
    with tempfile.TemporaryDirectory(prefix="fianchetto-estimate-") as folder:
        paths = [Path(folder) / f"{number}.pgn" for number in range(len(sources))]
        lengths = [_copy_head(name, path, stop) for name, path in zip(sources, paths, strict=True)]
        bytes_read = sum(path.stat().st_size for path in paths)
        manifest, seconds = _ingest_heads(paths, Path(folder), config, progress, stop)
    known_lengths = [length for length in lengths if length is not None]
    text_bytes, basis = sum(known_lengths), "all of the text"
    if len(known_lengths) < len(lengths):
        text_bytes = bytes_read
        basis = "the beginning of a text of unknown length: the rest is not counted"
    elif bytes_read < text_bytes:
        basis = f"the first {bytes_read / text_bytes:.1%} of the text: the rest may differ"
    factor, games = text_bytes / bytes_read, manifest["games"]
    positions, dropped = manifest["positions"]["total"], manifest["positions_dropped"]
    return {
        "basis": basis,
        "games_read": round(games["read"] * factor),
        "games_kept": round(games["used"] * factor),
        "positions": round(positions * factor),
        "gigabytes": sum(entry["bytes"] for entry in manifest["files"]) * factor / 1e9,
        "minutes": seconds * factor / 60 / (1 + SPEED_UP_PER_WORKER * (workers - 1)),
        "dropped": {name: count / games["read"] for name, count in games["dropped"].items()},
        "positions_dropped": {
            name: count / (positions + sum(dropped.values())) for name, count in dropped.items()
        },
    }


def _copy_head(name: str, path: Path, stop: Stop) -> float | None:
    """Copy a dump's first games to `path`; return its estimated text length, None if unknown."""
    source = Source(name, stop)
    stream = source.open()
    if source.is_evaluations:
        source.close()
        raise ConfigError(
            f"{name} holds evaluated positions, which cannot be estimated: ingest a part with "
            "--sample 0.01"
        )
    text, block = bytearray(), b"-"
    is_converted = bool(source.compression or source.input)
    ratio = 0.0 if is_converted else 1.0  # bytes of text per byte of the file
    while block and len(text) < SAMPLE_BYTES:
        file_bytes = source.bytes_read
        try:
            block = stream.read(READ_BYTES) or b""
        except OSError:  # damage ends the text
            block = b""
        # when the file is read further, all bytes before have become text
        if is_converted and 0 < file_bytes < source.bytes_read:
            ratio = len(text) / file_bytes
        text += block
    size, file_bytes = source.size, source.bytes_read
    source.close()
    last = max(text.rfind(b"\n\n[Event "), text.rfind(b"\n\r\n[Event "))
    path.write_bytes(text[:last] + b"\n\n" if block and last > 0 else text)
    if not block:
        return path.stat().st_size
    return size * (ratio or len(text) / file_bytes) if size else None


def _ingest_heads(
    paths: Sequence[Path], folder: Path, config: IngestConfig, progress: Progress, stop: Stop
) -> tuple[Mapping[str, Any], float]:
    """Ingest the copied games; return the manifest and the seconds without loading kernels."""
    warm_up, sources = folder / "warm.pgn", [str(path) for path in paths]
    warm_up.write_text(WARM_UP_GAME)
    ingest([str(warm_up)], folder / "warm", IngestConfig(test_share=0, val_share=0), workers=1)
    start = time.perf_counter()
    try:
        manifest = ingest(sources, folder / "out", config, workers=1, progress=progress, stop=stop)
    except DatasetError as error:
        reasons = str(error).partition(": ")[2]
        raise DatasetError(f"no position of the text read would be kept: {reasons}") from error
    return manifest, time.perf_counter() - start
