"""What a checkpoint is worth: how often its choice is the human's move, on games it never saw, and by which rule.

Every figure is a mean over the counted positions; the interval of top-1 treats a *game* as the unit that was drawn, since
the positions of one game are alike. Beside the network stand the hand-written evaluator and chance, on the same rows.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.progress import Progress, Tick, silent
from pipeline.batches import Batch, Batches
from pipeline.errors import ConfigError, DamagedError
from pipeline.shards import MANIFEST, file_hash, read_manifest

if TYPE_CHECKING:
    import polars as pl

    from model.evaluator import NetworkEvaluator

BATCH = 1024
NO_CLOCK = 65535
COLUMNS = ("planes", "label", "result", "plies", "ply", "elo", "opponent_elo", "clock", "game")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Which positions count."""

    min_ply: int = 0
    """Half-moves played before the first position that counts."""
    min_clock: int = 0
    """Seconds the mover must have left, where the clock is known."""
    limit: int = 0
    """Positions at most, drawn at random from all that there are; 0 for all."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        if min(self.min_ply, self.min_clock, self.limit) < 0:
            raise ConfigError("min_ply, min_clock and limit are at least 0")

    def describe(self, where: str) -> str:
        """Say the rule in words."""
        plies = f"from ply {self.min_ply} on" if self.min_ply else "every ply"
        clock = f", mover's clock at least {self.min_clock} s where known" if self.min_clock else ""
        sample = f", a random sample of at most {self.limit:,}" if self.limit else ""
        return f"{where}: {plies} of every game{clock}{sample}; illegal moves are masked before ranking"


def _counted(batch: Batch, rule: Rule) -> Batch:
    """Keep the rows that the rule counts."""
    keep = (batch["ply"] >= rule.min_ply) & (batch["clock"] >= rule.min_clock)
    return batch if keep.all() else {name: values[keep] for name, values in batch.items()}


def _first(batches: Iterator[Batch], rows: int) -> Iterator[Batch]:
    """Give the first `rows` rows of a stream."""
    for batch in batches:
        yield {name: values[:rows] for name, values in batch.items()}
        rows -= len(batch["planes"])
        if rows <= 0:
            return


def _figures(
    batches: Iterator[Batch], network: "NetworkEvaluator", rule: Rule, rows: int, progress: Progress
) -> "pl.DataFrame":
    """Measure every counted row: a table of a row each, with the columns it may be sliced by."""
    import polars as pl

    from engine.handwritten import evaluate
    from model.metrics import rows as measured

    tables, done, began = [], 0, time.perf_counter()
    for raw in batches:
        batch = _counted(raw, rule)
        done += len(raw["planes"])
        if not len(batch["planes"]):
            continue
        figures = measured(*network(batch["planes"], batch), batch)
        classical = measured(*evaluate(batch["planes"]), batch)
        columns = {name: batch[name] for name in COLUMNS if name != "planes"}
        columns |= figures | {f"classical_{name}": classical[name] for name in ("rank", "nll", "brier")}
        tables.append(pl.DataFrame(columns))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(done, rows, "positions", {"top1": top1, "positions/s": done / (time.perf_counter() - began)}))
    if not tables:
        raise ConfigError("no position counts under this rule: lower min_ply or min_clock")
    return pl.concat(tables).with_columns(pl.col("score", "brier", "wdl_brier", "classical_brier").fill_nan(None))


def _interval(table: "pl.DataFrame") -> tuple[float, float]:
    """Give the 95 % interval of top-1 with games as the sampling unit (the ratio estimator's variance)."""
    import polars as pl

    games = table.group_by("game").agg(pl.len().alias("n"), (pl.col("rank") == 1).sum().alias("hits"))
    n, hits = games["n"].to_numpy().astype(float), games["hits"].to_numpy().astype(float)
    rate = hits.sum() / n.sum()
    count = len(n)
    error = np.sqrt(np.square(hits - rate * n).sum() * count / max(count - 1, 1)) / n.sum()
    return float(rate - 1.96 * error), float(rate + 1.96 * error)


BANDS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "by_ply": ("ply", (10, 20, 40, 60, 80), ""),
    "by_elo": ("elo", (1000, 1200, 1400, 1600, 1800, 2000, 2200, 2400), ""),
    "by_legal_moves": ("legal_moves", (2, 5, 10, 20, 30, 40), ""),
    "by_clock": ("clock", (10, 30, 60, 180, 600), " s"),
}
"""Slice: its column, the edges between its bands, the unit."""
UNKNOWN = {"elo": 0, "clock": NO_CLOCK}


def _by_band(table: "pl.DataFrame", column: str, edges: Sequence[int], unit: str) -> list[dict[str, Any]]:
    """Give the figures by bands of a column: below the first edge, between edges, from the last on."""
    import polars as pl

    names = [f"{low}-{high - 1}{unit}" for low, high in zip((0, *edges[:-1]), edges, strict=True)]
    names.append(f"{edges[-1]}{unit} and on")
    known = table.filter(pl.col(column) != UNKNOWN[column]) if column in UNKNOWN else table
    place = pl.Series("place", np.searchsorted(edges, known[column].to_numpy(), side="right"))
    rows = (
        known.with_columns(place)
        .group_by("place")
        .agg(
            pl.len().alias("positions"),
            (pl.col("rank") == 1).mean().alias("top1"),
            (pl.col("classical_rank") == 1).mean().alias("hand_written_top1"),
            pl.col("nll").mean().alias("cross_entropy"),
            pl.col("brier").mean().alias("value_brier"),
        )
        .sort("place")
    )
    return [{"band": names[row.pop("place")], **row} for row in rows.to_dicts()]


def _slices(table: "pl.DataFrame") -> dict[str, list[dict[str, Any]]]:
    """Give the figures by ply, rating, choice of moves and clock, and the value's calibration, as rows of tables."""
    import polars as pl

    slices = {name: _by_band(table, *band) for name, band in BANDS.items()}
    tenth = (pl.col("expected") * 10).floor().clip(0, 9).cast(pl.Int8).alias("tenth")
    calibration = (
        table.filter(pl.col("score").is_not_null())  # positions that are of no game have none
        .with_columns(tenth)
        .group_by("tenth")
        .agg(
            pl.len().alias("positions"),
            pl.col("expected").mean().alias("expected"),
            pl.col("score").mean().alias("score"),
        )
    )
    return {**slices, "calibration": calibration.sort("tenth").to_dicts()}


def _summary(table: "pl.DataFrame", calibration: list[dict[str, Any]]) -> dict[str, Any]:
    """Average the rows into the headline figures."""
    from model.metrics import summary

    low, high = _interval(table)
    known = sum(row["positions"] for row in calibration)
    error = sum(row["positions"] * abs(row["expected"] - row["score"]) for row in calibration) / max(known, 1)
    means = summary({name: table[name].to_numpy() for name in ("rank", "nll", "legal_mass", "brier", "wdl_brier")})
    return {
        **means,
        **({} if known else {"value_brier": None, "wdl_brier": None}),
        "top1_low": low,
        "top1_high": high,
        "games": table["game"].n_unique(),
        "value_calibration_error": error if known else None,
        "hand_written_top1": float((table["classical_rank"] == 1).to_numpy().mean()),
        "hand_written_cross_entropy": float(table["classical_nll"].to_numpy().mean()),
        "hand_written_value_brier": table["classical_brier"].mean(),
        "chance_top1": float((1 / table["legal_moves"].to_numpy()).mean()),
    }


def report(
    checkpoint: Path,
    *,
    positions: Path | None = None,
    split: str = "test",
    pgn: Path | None = None,
    rule: Rule | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure a checkpoint on a split of a dataset, or on all games of a PGN file.

    Gives `positions top1 top3 top5 cross_entropy legal_mass value_brier` (model/metrics.py says what each is), the interval
    `top1_low top1_high`, the baselines, `rule` in words, and `slices`: tables by ply, rating, choice and clock.
    `cross_entropy` is in nats; values and clocks are the mover's.
    """
    from model.checkpoint import load, read_card
    from model.evaluator import NetworkEvaluator

    rule = rule or Rule()
    if (positions is None) == (pgn is None):
        raise ConfigError("say what to measure on: either positions or a PGN file")
    card = read_card(checkpoint)
    network = NetworkEvaluator(load(checkpoint)[0])
    if positions is not None:
        return _report(
            card, network, positions, split, f"the {split} split of {positions.resolve().name}", rule, progress
        )
    from pipeline.chunk import IngestConfig
    from pipeline.ingest import ingest

    assert pgn is not None
    damage = ""
    with tempfile.TemporaryDirectory(prefix="fianchetto-report-") as folder:
        everything = IngestConfig(test_share=0.0, val_share=0.0)
        try:
            ingest([str(pgn)], Path(folder), everything, workers=1)
        except DamagedError:  # what came before the damage is there, and the report says so
            damage = f", up to where the archive is damaged ({read_manifest(Path(folder))['sources'][0]['damage']})"
        return _report(card, network, Path(folder), "train", f"all games of {pgn.name}{damage}", rule, progress)


def _datasets(data: dict[str, Any]) -> list[dict[str, Any]]:
    """List what a network was trained on, by its card: its own datasets, and those of the checkpoint it began with."""
    before = data.get("start")
    return [*data.get("datasets", []), *(_datasets(before["data"]) if before else [])]


def _seen(card: dict[str, Any], positions: Path, split: str) -> str:
    """Say whether the network was trained on these games: `no`, `yes` or `unknown`, by the hashes in its card."""
    manifest = read_manifest(positions)
    trained = _datasets(card["data"])
    if file_hash(positions / MANIFEST) in {dataset.get("manifest_sha256") for dataset in trained}:
        return "yes" if split == "train" else "no"
    sources = {source.get("sha256") for dataset in trained for source in dataset.get("sources", [])}
    # Other settings of the same dump move games between the splits; another dump may hold the same games.
    return (
        "unknown"
        if sources & {source["sha256"] for source in manifest["sources"]} or not trained
        else "no, another dump"
    )


def _report(
    card: dict[str, Any],
    network: "NetworkEvaluator",
    positions: Path,
    split: str,
    where: str,
    rule: Rule,
    progress: Progress,
) -> dict[str, Any]:
    from model.inputs import reads

    columns = tuple(dict.fromkeys((*COLUMNS, *reads(network.preset))))
    batches = Batches([positions], split, batch_size=BATCH, columns=columns)
    rows = min(rule.limit, batches.rows) if rule.limit else batches.rows
    stream = _first(batches.from_step(0), rows) if rows < batches.rows else batches.once()
    table = _figures(stream, network, rule, rows, progress)
    slices = _slices(table)
    return {
        **_summary(table, slices["calibration"]),
        "rule": rule.describe(where),
        "seen_in_training": _seen(card, positions, split),
        "preset": card["preset"]["name"],
        "step": card["step"],
        "trained_on_positions": card["positions"],
        "trained_on": list(dict.fromkeys(dataset["name"] for dataset in _datasets(card["data"]))),
        "slices": slices,
    }
