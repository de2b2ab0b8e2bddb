"""What an ingest will give, from a few megabytes of the dump: games, positions, bytes and minutes, with intervals.

    pieces of the dump --the same ingest, into a folder that is thrown away--> rates a byte of text --x length--> the whole

A piece is the unit that was drawn, since neighbouring games are alike: intervals are a bootstrap over pieces. Where only the
beginning could be read, they are widened by DRIFT, which is an allowance and no statistics.

Axes: K pieces of a source, B bootstrap samples.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.convert import convert
from pipeline.dataset.files.columns import FORMS
from pipeline.dataset.files.layout import ROW_GROUP
from pipeline.dataset.files.shards import GAMES
from pipeline.dumps.sampling import Pieces, read_pieces
from pipeline.errors import ConfigError, DatasetError
from pipeline.executors.local import available_cores
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest, with_chunk_size

SAMPLE_MIB = 24
DRIFT = 0.10
"""Share by which an interval is widened on both sides where the end of a dump was out of reach."""
PACKING = 0.03
"""Share by which bytes a position differ from one cut of a dump to another."""
FEW = 0.1
"""Share by which a row takes less in full row groups than in a sample that does not fill one."""
SAMPLES = 2000
SPREAD = (0.95, 0.9, 0.7)
"""What a further worker is worth at best, as expected, and on a busy machine."""
BAND = 200
WARM = '[Event "?"]\n[Result "1-0"]\n\n1. e4 1-0\n\n'

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
    """Say what `ingest` of the same sources and configuration will give; nothing is kept on disk.

    Gives `games` (read, kept), `positions`, `bytes` and `minutes` as {estimate, low, high}: 95 % intervals. `sources` says
    of each what was read; `dropped` are shares of games by reason; `keep_by_elo` would make rating bands alike. `text` is
    all that for a person.

    Raises DumpError, and DatasetError when the filters keep nothing of what was read.
    """
    config = config or IngestConfig()
    if not sources:
        raise ConfigError("name at least one dump, or - for standard input")
    if sample_mib < 1:
        raise ConfigError(f"sample_mib is at least 1, not {sample_mib}")
    config = with_chunk_size(config, sources)
    read = [read_pieces(name, (sample_mib << 20) // len(sources)) for name in sources]
    with tempfile.TemporaryDirectory(prefix="fianchetto-estimate-") as folder:
        manifest, seconds = _ingested(read, Path(folder), config, progress, stop)
        counts = _counts(Path(folder) / "out", manifest, read)
        games_bytes = sum(entry["bytes"] for entry in manifest["files"] if entry["name"] == GAMES)
        balance = _balance(Path(folder) / "out") if not config.keep_by_elo else ""
        stored = {config.planes: _shards(Path(folder) / "out", manifest)}
        for form in FORMS:
            if form not in stored:
                stored[form] = _shards(
                    Path(folder) / form, convert(Path(folder) / "out", form, Path(folder) / form, stop=stop)
                )
    figures = _figures(read, counts)
    taken = sum(len(text) for pieces in read for text in pieces.texts)
    chunk_bytes = config.chunk_mib << 20
    growth = sum(np.ceil(pieces.text_bytes / chunk_bytes) for pieces in read) / max(np.ceil(taken / chunk_bytes), 1)
    forms = {
        form: _bytes(figures, of, games_bytes / manifest["games"]["read"], of.files * growth)
        for form, of in stored.items()
    }
    result = {
        "sources": [
            {"name": pieces.name, "bytes": pieces.size, "text_bytes": round(pieces.text_bytes), "basis": pieces.basis}
            for pieces in read
        ],
        "sampled": {"text_bytes": taken, "games": manifest["games"]["read"], "seconds": round(seconds, 2)},
        "games": {"read": figures["games"], "kept": figures["kept"]},
        "positions": figures["rows"],
        "bytes": forms[config.planes],
        "planes": config.planes,
        "bytes_by_planes": forms,
        "minutes": _minutes(read, taken / max(seconds, 1e-6), workers or available_cores()),
        "workers": workers or available_cores(),
        "bytes_per_position": manifest["bytes_per_position"],
        "dropped": _shares(manifest["games"]["dropped"], manifest["games"]["read"]),
        "positions_dropped": _shares(
            manifest["positions_dropped"],
            manifest["positions"]["total"] + sum(manifest["positions_dropped"].values()),
        ),
        "keep_by_elo": balance,
    }
    return result | {"text": _text(result)}


def _ingested(
    read: Sequence[Pieces], folder: Path, config: IngestConfig, progress: Progress, stop: Stop
) -> tuple[dict[str, Any], float]:
    """Ingest the pieces with one process and give the manifest and the seconds, the loading of kernels left out."""
    names = []
    for number, pieces in enumerate(read):
        path = folder / f"{Path(pieces.name).name}.{number}.pgn"
        path.write_bytes(b"".join(_closed(text) for text in pieces.texts))
        names.append(str(path))
    (folder / "warm.pgn").write_text(WARM)
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


def _closed(text: bytes) -> bytes:
    """End a piece with an empty line, so that the next begins a game."""
    return text if text.endswith((b"\n\n", b"\n\r\n")) or not text else text + b"\n\n"


def _counts(out: Path, manifest: Mapping[str, Any], read: Sequence[Pieces]) -> list[NDArray[np.float64]]:
    """Count by piece, for each source: float64[K, 4] of bytes of text, games, kept games, rows."""
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
        sizes = np.array([len(_closed(text)) for text in pieces.texts if text], dtype=np.float64)
        mine = np.flatnonzero(source == number)
        piece = np.searchsorted(np.cumsum(sizes), offset[mine], side="right").clip(0, len(sizes) - 1)
        of_each = (np.ones(len(mine)), kept[mine].astype(np.float64), rows[mine].astype(np.float64))
        sums = [np.bincount(piece, weights=values, minlength=len(sizes)) for values in of_each]
        counts.append(np.stack([sizes, *sums], axis=1))
    return counts


def _figures(read: Sequence[Pieces], counts: Sequence[NDArray[np.float64]]) -> dict[str, Interval]:
    """Add up the sources: each rate a byte of text times the length of its text, and a bootstrap of that."""
    rng = np.random.Generator(np.random.PCG64(0))
    middle, drawn = np.zeros(3), np.zeros((SAMPLES, 3))
    low, high = np.zeros(3), np.zeros(3)
    for pieces, counts_K4 in zip(read, counts, strict=True):
        total = counts_K4.sum(axis=0)
        middle += total[1:] / total[0] * pieces.text_bytes
        pieces_count = len(counts_K4)
        picked = rng.integers(0, pieces_count, (SAMPLES, pieces_count))
        sums_B4 = counts_K4[picked].sum(axis=1)
        lengths_B = pieces.text_bytes * (1 + pieces.error * rng.standard_normal(SAMPLES))
        inflated = (pieces_count / max(pieces_count - 1, 1)) ** 0.5 * (1 + 1 / pieces_count)  # few pieces: Student's t
        off = sums_B4[:, 1:] / sums_B4[:, :1] * lengths_B[:, None] - total[1:] / total[0] * pieces.text_bytes
        drawn += off * (inflated if pieces_count > 1 else 1.0)
        if not pieces.whole:
            low += DRIFT * total[1:] / total[0] * pieces.text_bytes
            high += DRIFT * total[1:] / total[0] * pieces.text_bytes
    below, above = np.quantile(drawn, (0.025, 0.975), axis=0)
    return {
        name: _interval(middle[at], middle[at] + below[at] - low[at], middle[at] + above[at] + high[at])
        for at, name in enumerate(("games", "kept", "rows"))
    }


def _interval(value: float, low: float, high: float) -> Interval:
    return {"estimate": round(float(value)), "low": max(0, round(float(low))), "high": round(float(high))}


def _bytes(figures: Mapping[str, Interval], shards: "_Shards", a_game: float, files: float) -> Interval:
    """Give the bytes on disk: shards by position and file, the games' table by game."""
    of = {
        bound: figures["rows"][bound] * shards.a_row + figures["games"][bound] * a_game + files * shards.a_file
        for bound in ("estimate", "low", "high")
    }
    exact = figures["rows"]["low"] == figures["rows"]["high"]
    packing = 0.0 if exact else PACKING
    few = 0.0 if exact or shards.largest >= ROW_GROUP else FEW
    return _interval(of["estimate"], of["low"] * (1 - packing - few), of["high"] * (1 + packing))


@dataclass(frozen=True, slots=True)
class _Shards:
    """What the shards of a sample take."""

    a_row: float
    """Bytes of columns a row."""
    a_file: float
    """Bytes of a file besides: its footer."""
    files: int
    largest: int
    """Rows of the largest."""


def _shards(out: Path, manifest: Mapping[str, Any]) -> _Shards:
    entries = [entry for entry in manifest["files"] if entry["split"]]
    columns = 0
    for entry in entries:
        footer = pq.read_metadata(out / entry["name"])
        columns += sum(
            footer.row_group(group).column(column).total_compressed_size
            for group in range(footer.num_row_groups)
            for column in range(footer.num_columns)
        )
    total = sum(entry["bytes"] for entry in entries)
    rows = [entry["rows"] for entry in entries]
    return _Shards(columns / sum(rows), (total - columns) / len(entries), len(entries), max(rows))


def _minutes(read: Sequence[Pieces], bytes_a_second: float, workers: int) -> Interval:
    """Give the minutes that the processes will take, by the speed of one in this run."""
    text = sum(pieces.text_bytes for pieces in read)
    error = max(pieces.error for pieces in read) + (0.0 if all(pieces.whole for pieces in read) else DRIFT)
    best, expected, busy = (text / bytes_a_second / 60 / (1 + worth * (workers - 1)) for worth in SPREAD)
    slack = 0.15 + 2 * error
    return {"estimate": round(expected, 3), "low": round(best * (1 - slack), 3), "high": round(busy * (1 + slack), 3)}


def _shares(counts: Mapping[str, int], total: int) -> dict[str, float]:
    return {name: round(count / max(total, 1), 4) for name, count in counts.items()}


def _balance(out: Path) -> str:
    """Give the `keep_by_elo` that makes bands of 200 points as large as the smallest that holds 2 % of games."""
    games = pq.read_table(out / GAMES, columns=["white_elo", "black_elo", "dropped"])
    white, black = (games[name].fill_null(0).to_numpy().astype(np.int64) for name in ("white_elo", "black_elo"))
    rated = games["dropped"].is_null().to_numpy() & (white > 0) & (black > 0)
    if not rated.any():
        return ""
    mean = (white[rated] + black[rated]) // 2
    lows, counts = np.unique(mean // BAND * BAND, return_counts=True)
    target = counts[counts * 50 >= counts.sum()].min()
    return " ".join(f"{low}:{min(1.0, target / count):.3g}" for low, count in zip(lows, counts, strict=True))


def _text(result: Mapping[str, Any]) -> str:
    """Write an estimate for a person."""
    lines = [f"{Path(source['name']).name}: from {source['basis']}" for source in result["sources"]]
    rows = [
        ("games read", result["games"]["read"], ""),
        ("games kept", result["games"]["kept"], ""),
        ("positions", result["positions"], ""),
        (f"on disk, {result['planes']}", result["bytes"], "GB"),
        ("minutes", result["minutes"], f"with {result['workers']} workers"),
    ]
    rows[-1:-1] = [
        (f"or, {form}", figure, "GB") for form, figure in result["bytes_by_planes"].items() if form != result["planes"]
    ]
    for name, figure, unit in rows:
        shown = [_shown(figure[bound], unit) for bound in ("estimate", "low", "high")]
        lines.append(f"{name:<16} {shown[0]:>15}   {shown[1]} to {shown[2]} {unit}".rstrip())
    for name, shares in (("games dropped", result["dropped"]), ("positions dropped", result["positions_dropped"])):
        if shares:
            lines.append(f"{name}: " + ", ".join(f"{why} {share:.1%}" for why, share in shares.items()))
    if result["keep_by_elo"]:
        lines.append(f"rating bands alike: --set keep_by_elo={result['keep_by_elo']}")
    return "\n".join(lines)


def _shown(value: float, unit: str) -> str:
    if unit == "GB":
        return f"{value / 1e9:.3f}"
    return f"{value:,.0f}" if not unit else f"{value:.2f}"
