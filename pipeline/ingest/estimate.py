"""Estimate an ingest from a few megabytes of the dump: games, positions, bytes and minutes, with intervals.

    pieces of the dump --the same ingest, into a temporary folder--> rates per byte of text --x length--> the whole

The piece is the unit of sampling, since neighbouring games are alike: intervals are a bootstrap over pieces. If only the
beginning of a dump could be read, they are widened by DRIFT, which is an allowance and not statistics.

Axes: K pieces of a source, B bootstrap samples.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.shards import GAMES
from pipeline.dumps.sampling import Pieces, read_pieces
from pipeline.errors import ConfigError, DatasetError
from pipeline.executors.local import available_cores
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import choose_chunk_size, ingest

SAMPLE_MIB = 24
DRIFT = 0.10
"""Share by which an interval is widened on both sides if the end of a dump was not read."""
PACKING = (0.13, 0.03)
"""Shares by which bytes per position may be lower or higher: large shards compress better, and have fewer footers."""
SAMPLES = 2000
SPEED_UPS = (0.95, 0.9, 0.7)
"""Speed-up per additional worker at best, as expected, and on a busy machine."""
WARM_UP = '[Event "?"]\n[Result "1-0"]\n\n1. e4 1-0\n\n'

Interval = dict[str, float]


def estimate(
    sources: Sequence[str],
    config: IngestConfig | None = None,
    *,
    workers: int = 0,
    sample_mib: int = SAMPLE_MIB,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Estimate what `ingest` of the same sources and configuration will make; nothing is kept on disk.

    Returns `games` (read, kept), `positions`, `bytes` and `minutes` as {estimate, low, high}, 95 % intervals; `sources`, with
    what was read of each; `dropped`, shares of games by reason; and `text`, all of it for people. Raises DumpError, and
    DatasetError if the filters keep nothing of what was read.
    """
    config = config or IngestConfig()
    if not sources:
        raise ConfigError("name at least one dump, or - for standard input")
    if sample_mib < 1:
        raise ConfigError(f"sample_mib must be at least 1, got {sample_mib}")
    config, workers = choose_chunk_size(config, sources), workers or available_cores()
    read = [read_pieces(name, (sample_mib << 20) // len(sources)) for name in sources]
    with tempfile.TemporaryDirectory(prefix="fianchetto-estimate-") as folder:
        manifest, seconds = _ingest_pieces(read, Path(folder), config, progress, stop)
        figures = _figures(read, _counts(Path(folder) / "out", manifest, read))
    taken = sum(len(text) for pieces in read for text in pieces.texts)
    positions, dropped = manifest["positions"]["total"], manifest["positions_dropped"]
    result = {
        "sources": [
            {"name": pieces.name, "bytes": pieces.size, "text_bytes": round(pieces.text_bytes), "basis": pieces.basis}
            for pieces in read
        ],
        "sampled": {"text_bytes": taken, "games": manifest["games"]["read"], "seconds": round(seconds, 2)},
        "games": {"read": figures["games"], "kept": figures["kept"]},
        "positions": figures["rows"],
        "bytes": _bytes(figures, manifest),
        "planes": config.planes,
        "minutes": _minutes(read, taken / max(seconds, 1e-6), workers),
        "workers": workers,
        "bytes_per_position": manifest["bytes_per_position"],
        "dropped": _shares(manifest["games"]["dropped"], manifest["games"]["read"]),
        "positions_dropped": _shares(dropped, positions + sum(dropped.values())),
    }
    return result | {"text": _text(result)}


def _ingest_pieces(
    read: Sequence[Pieces], folder: Path, config: IngestConfig, progress: Progress, stop: Stop
) -> tuple[dict[str, Any], float]:
    """Ingest the pieces with one process; return the manifest and the seconds without loading kernels."""
    names = []
    for number, pieces in enumerate(read):
        path = folder / f"{Path(pieces.name).name}.{number}.pgn"
        path.write_bytes(b"".join(_end_game(text) for text in pieces.texts))
        names.append(str(path))
    (folder / "warm.pgn").write_text(WARM_UP)
    ingest(
        [str(folder / "warm.pgn")], folder / "warm", replace(IngestConfig(), test_share=0.0, val_share=0.0), workers=1
    )
    began = time.perf_counter()
    try:
        manifest = ingest(names, folder / "out", config, workers=1, progress=progress, stop=stop)
    except DatasetError as error:
        why = str(error).partition(": ")[2]
        raise DatasetError(f"nothing of what was read would be kept: {why}") from error
    return manifest, time.perf_counter() - began


def _end_game(text: bytes) -> bytes:
    """Return a piece that ends with an empty line, so that the next one begins a game."""
    return text if text.endswith((b"\n\n", b"\n\r\n")) or not text else text + b"\n\n"


def _counts(out: Path, manifest: Mapping[str, Any], read: Sequence[Pieces]) -> list[NDArray[np.float64]]:
    """Return bytes of text, games, kept games and rows of each piece, float64[K, 4] for each source."""
    games = pq.read_table(out / GAMES, columns=["source", "offset", "dropped"])
    rows = np.zeros(len(games), dtype=np.int64)
    for entry in manifest["files"]:
        if entry["split"]:
            column = pq.read_table(out / entry["name"], columns=["game"])["game"].to_numpy()
            rows += np.bincount(column, minlength=len(rows))
    source, offset = games["source"].to_numpy(), games["offset"].to_numpy()
    kept = games["dropped"].is_null().to_numpy()
    counts = []
    for number, pieces in enumerate(read):
        sizes = np.array([len(_end_game(text)) for text in pieces.texts if text], dtype=np.float64)
        mine = np.flatnonzero(source == number)
        piece = np.searchsorted(np.cumsum(sizes), offset[mine], side="right").clip(0, len(sizes) - 1)
        weights = (np.ones(len(mine)), kept[mine].astype(np.float64), rows[mine].astype(np.float64))
        sums = [np.bincount(piece, weights=values, minlength=len(sizes)) for values in weights]
        counts.append(np.stack([sizes, *sums], axis=1))
    return counts


def _figures(read: Sequence[Pieces], counts: Sequence[NDArray[np.float64]]) -> dict[str, Interval]:
    """Return the sums over sources of rate per byte x length of the text, with intervals of a bootstrap."""
    rng = np.random.Generator(np.random.PCG64(0))
    middle, off_B3, drift = np.zeros(3), np.zeros((SAMPLES, 3)), np.zeros(3)
    for pieces, counts_K4 in zip(read, counts, strict=True):
        size, total = len(counts_K4), counts_K4.sum(axis=0)
        mine = total[1:] / total[0] * pieces.text_bytes
        middle += mine
        sums_B4 = counts_K4[rng.integers(0, size, (SAMPLES, size))].sum(axis=1)
        lengths_B = pieces.text_bytes * (1 + pieces.error * rng.standard_normal(SAMPLES))
        few = (size / max(size - 1, 1)) ** 0.5 * (1 + 1 / size) if size > 1 else 1.0  # as Student's t does
        off_B3 += few * (sums_B4[:, 1:] / sums_B4[:, :1] * lengths_B[:, None] - mine)
        drift += 0.0 if pieces.whole else DRIFT * mine
    below, above = np.quantile(off_B3, (0.025, 0.975), axis=0)
    return {
        name: _interval(middle[at], middle[at] + below[at] - drift[at], middle[at] + above[at] + drift[at])
        for at, name in enumerate(("games", "kept", "rows"))
    }


def _interval(value: float, low: float, high: float) -> Interval:
    return {"estimate": round(float(value)), "low": max(0, round(float(low))), "high": round(float(high))}


def _bytes(figures: Mapping[str, Interval], manifest: Mapping[str, Any]) -> Interval:
    """Return the bytes on disk: shards by position, the games' table by game."""
    games_bytes = sum(entry["bytes"] for entry in manifest["files"] if entry["name"] == GAMES)
    shard_bytes = sum(entry["bytes"] for entry in manifest["files"]) - games_bytes
    a_row, a_game = shard_bytes / manifest["positions"]["total"], games_bytes / manifest["games"]["read"]
    sums = {bound: figures["rows"][bound] * a_row + figures["games"][bound] * a_game for bound in figures["rows"]}
    below, above = (0.0, 0.0) if figures["rows"]["low"] == figures["rows"]["high"] else PACKING
    return _interval(sums["estimate"], sums["low"] * (1 - below), sums["high"] * (1 + above))


def _minutes(read: Sequence[Pieces], bytes_per_second: float, workers: int) -> Interval:
    """Return the minutes that the workers will take, from the speed of one worker in this run."""
    text = sum(pieces.text_bytes for pieces in read)
    error = max(pieces.error for pieces in read) + (0.0 if all(pieces.whole for pieces in read) else DRIFT)
    best, expected, busy = (text / bytes_per_second / 60 / (1 + each * (workers - 1)) for each in SPEED_UPS)
    slack = 0.15 + 2 * error
    return {"estimate": round(expected, 3), "low": round(best * (1 - slack), 3), "high": round(busy * (1 + slack), 3)}


def _shares(counts: Mapping[str, int], total: int) -> dict[str, float]:
    return {name: round(count / max(total, 1), 4) for name, count in counts.items()}


def _text(result: Mapping[str, Any]) -> str:
    """Return an estimate for people."""
    lines = [f"{Path(source['name']).name}: from {source['basis']}" for source in result["sources"]]
    rows = [
        ("games read", result["games"]["read"], ""),
        ("games kept", result["games"]["kept"], ""),
        ("positions", result["positions"], ""),
        (
            "on disk",
            {bound: value / 1e9 for bound, value in result["bytes"].items()},
            f"GB with planes={result['planes']}",
        ),
        ("minutes", result["minutes"], f"with {result['workers']} workers"),
    ]
    for name, figure, unit in rows:
        shown = [f"{figure[bound]:,.{3 if unit else 0}f}" for bound in ("estimate", "low", "high")]
        lines.append(f"{name:<16} {shown[0]:>15}   {shown[1]} to {shown[2]} {unit}".rstrip())
    for name, shares in (("games dropped", result["dropped"]), ("positions dropped", result["positions_dropped"])):
        if shares:
            lines.append(f"{name}: " + ", ".join(f"{why} {share:.1%}" for why, share in shares.items()))
    return "\n".join(lines)
