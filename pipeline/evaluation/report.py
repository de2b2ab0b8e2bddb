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
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import MANIFEST, Batch, file_hash, read_manifest
from pipeline.dataset.hashing import splitmix64
from pipeline.dataset.position_keys import position_keys, stand_in
from pipeline.dataset.training_set import LATEST, Member, Shard, members
from pipeline.errors import ConfigError, DamagedError
from pipeline.training.train import datasets_of

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator

BATCH = 1024
COLUMNS = ("planes", "castling", "label", "result", "ply", "plies", "elo", "opponent_elo", "clock", "game")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Which positions count."""

    min_ply: int = 0
    """Half-moves played before the first position that counts."""
    min_clock: int = 0
    """Seconds the mover must have left, where the clock is known."""
    limit: int = 0
    """Positions at most, drawn at random from all games, however they are given; 0 for all."""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        if min(self.min_ply, self.min_clock, self.limit) < 0:
            raise ConfigError("min_ply, min_clock and limit are at least 0")

    def describe(self, where: str) -> str:
        """Say the rule in words."""
        plies = f"from ply {self.min_ply} on" if self.min_ply else "every ply"
        clock = f", mover's clock at least {self.min_clock} s where known" if self.min_clock else ""
        sample = f", a random sample of at most {self.limit:,} positions of all games" if self.limit else ""
        return f"{where}: {plies} of every game{clock}{sample}; illegal moves are masked before ranking"


COMMON = Rule(min_ply=10, min_clock=30)
"""The rule that published figures of human moves are mostly counted by; its figures stand beside the report's own."""


def _counted(batch: Batch, rule: Rule) -> Batch:
    """Keep the rows that the rule counts."""
    keep = (batch["ply"] >= rule.min_ply) & (batch["clock"] >= rule.min_clock)
    return batch if keep.all() else {name: values[keep] for name, values in batch.items()}


def _unknown(batch: Batch) -> Batch:
    """Make every player's rating and clock unknown."""
    from model.network.conditioning import STEPS

    return batch | {name: np.full_like(batch[name], steps.unknown) for name, steps in STEPS.items() if name in batch}


def _figures(
    batches: Iterator[Batch], network: "NetworkEvaluator", rule: Rule, rows: int, players: bool, progress: Progress
) -> "pl.DataFrame":
    """Measure every counted row: a table of a row each, with the columns it may be sliced by."""
    import polars as pl

    from engine.evaluation.handwritten import evaluate
    from model.metrics import rows as measured

    tables, done, began = [], 0, time.perf_counter()
    for raw in batches:
        batch = _counted(raw, rule)
        done += len(raw["planes"])
        if not len(batch["planes"]):
            continue
        figures = measured(*network(batch["planes"], batch if players else _unknown(batch)), batch)
        if not all(np.isfinite(figures[name]).all() for name in ("nll", "legal_mass", "expected")):
            raise ConfigError("the network answers with NaN or infinity: its training diverged, or its file is damaged")
        classical = measured(*evaluate(batch["planes"]), batch)
        columns = {name: batch[name] for name in COLUMNS if name != "planes"}
        columns["key"] = position_keys(batch["planes"], batch["castling"])
        columns["game"] = _games(batch)
        columns |= figures | {f"classical_{name}": classical[name] for name in ("rank", "nll", "brier")}
        tables.append(pl.DataFrame(columns))
        top1 = float((figures["rank"] == 1).mean())
        progress(Tick(done, rows, "positions", {"top1": top1, "positions/s": done / (time.perf_counter() - began)}))
    if not tables:
        raise ConfigError("no position counts under this rule: lower min_ply or min_clock")
    return pl.concat(tables).with_columns(pl.col("score", "brier", "wdl_brier", "classical_brier").fill_nan(None))


def _games(batch: Batch) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """Number the games so that those of several datasets, which each count from 0, stay apart: by what a game's rows share."""
    elo = np.sort(np.stack([batch["elo"], batch["opponent_elo"]]), axis=0).astype(np.uint64)
    same = elo[0] << np.uint64(48) | elo[1] << np.uint64(32) | batch["plies"].astype(np.uint64)
    return splitmix64(splitmix64(same) ^ batch["game"].astype(np.uint64))


def report(
    checkpoint: Path,
    *,
    positions: Path | None = None,
    split: str = "test",
    pgn: Path | None = None,
    against: Sequence[Path] = (),
    rule: Rule | None = None,
    players: bool = True,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure a checkpoint on a split of a dataset or training set, or on all games of a PGN file.

    `against` are datasets whose train split the positions are looked for in, that of `positions` if there are none.

    Without `players`, a network that reads ratings and clocks is told that they are unknown.

    Gives `positions top1 top3 top5 cross_entropy legal_mass value_brier` (model/metrics.py says what each is), the interval
    `top1_low top1_high` (None where the games are too few, which `top1_interval` says), the baselines, `rule` in words,
    `common_rule` (the same figures by that rule), and `slices`: tables by ply, rating, choice and clock, and by whether the
    position, of a game that was never seen, stands in train all the same (`top1_not_in_train top1_in_train`).
    `cross_entropy` is in nats; values and clocks are the mover's.
    """
    from model.checkpoint import load, read_card
    from model.inference.evaluator import NetworkEvaluator

    rule = rule or Rule()
    if (positions is None) == (pgn is None):
        raise ConfigError("say what to measure on: either positions or a PGN file")
    card = read_card(checkpoint)
    network = NetworkEvaluator(load(checkpoint)[0])
    if positions is not None:
        members(positions, progress)
        train = [shard for path in against or (positions,) for shard in _train_of(path)] if split != "train" else []
        where = f"the {split} split of {positions.resolve().name}"
        return _report(card, network, positions, split, where, rule, players, train, progress)
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    assert pgn is not None
    damage = ""
    with tempfile.TemporaryDirectory(prefix="fianchetto-report-") as folder:
        everything = IngestConfig(test_share=0.0, val_share=0.0)
        try:
            ingest([str(pgn)], Path(folder), everything, workers=1)
        except DamagedError:  # what came before the damage is there, and the report says so
            damage = f", up to where the archive is damaged ({read_manifest(Path(folder))['sources'][0]['damage']})"
        train = [shard for path in against for shard in _train_of(path)]
        where = f"all games of {pgn.name}{damage}"
        return _report(card, network, Path(folder), "train", where, rule, players, train, progress)


def _train_of(directory: Path) -> list[Shard]:
    """Give the shards of train, which may be none."""
    return [shard for member in members(directory) for shard in member.shards("train")]


def _seen(card: dict[str, Any], positions: Path, split: str) -> str:
    """Say whether the network was trained on these games: `no`, `yes` or `unknown`, by the hashes in its card."""
    said = {_seen_dataset(card, member, split) for member in members(positions) if member.shards(split)}
    return next((word for word in ("yes", "unknown", "no") if word in said), "no, another dump")


def _seen_dataset(card: dict[str, Any], member: Member, split: str) -> str:
    """Say it of one dataset."""
    positions, manifest = member.directory, member.manifest
    trained = datasets_of(card["data"])
    if file_hash(positions / MANIFEST) in {dataset.get("manifest_sha256") for dataset in trained}:
        return "yes" if split in ("train", LATEST) else "no"
    sources = {source.get("sha256") for dataset in trained for source in dataset.get("sources", [])}
    # Other settings of the same dump move games between the splits; another dump may hold the same games.
    return (
        "unknown"
        if sources & {source["sha256"] for source in manifest["sources"]} or not trained
        else "no, another dump"
    )


def _by_common_rule(table: "pl.DataFrame", where: str) -> dict[str, Any]:
    """Give the headline figures of those counted rows that the literature's usual rule counts."""
    import polars as pl

    from pipeline.evaluation.figures import headline, slices

    kept = table.filter((pl.col("ply") >= COMMON.min_ply) & (pl.col("clock") >= COMMON.min_clock))
    figures = headline(kept, slices(kept)["calibration"]) if len(kept) else {"positions": 0}
    return {"rule": COMMON.describe(where), **figures}


def _report(
    card: dict[str, Any],
    network: "NetworkEvaluator",
    positions: Path,
    split: str,
    where: str,
    rule: Rule,
    players: bool,
    train: Sequence[Shard],
    progress: Progress,
) -> dict[str, Any]:
    from model.data.inputs import input_columns
    from model.network.conditioning import STEPS
    from pipeline.evaluation.figures import TRAIN_BANDS, by_train, headline, slices

    columns = tuple(dict.fromkeys((*COLUMNS, *input_columns(network.preset))))
    batches = Batches([positions], split, batch_size=BATCH, columns=columns)
    rows = min(rule.limit, batches.rows) if rule.limit else batches.rows
    stream = batches.drawn(rows) if rows < batches.rows else batches.once()
    table = _figures(stream, network, rule, rows, players, progress)
    cut = slices(table)
    if train:
        cut["by_train"] = by_train(table, stand_in(table["key"].to_numpy(), train))
    top1 = {row["band"]: row["top1"] for row in cut.get("by_train", [])}
    return {
        **headline(table, cut["calibration"]),
        "common_rule": _by_common_rule(table, where),
        **({"top1_not_in_train": top1.get(TRAIN_BANDS[0]), "top1_in_train": top1.get(TRAIN_BANDS[1])} if train else {}),
        "rule": rule.describe(where),
        "reads": [name for name in input_columns(network.preset) if name in STEPS] if players else [],
        "seen_in_training": _seen(card, positions, split),
        "preset": card["preset"]["name"],
        "step": card["step"],
        "trained_on_positions": card["positions"],
        "trained_on": list(dict.fromkeys(dataset["name"] for dataset in datasets_of(card["data"]))),
        "slices": cut,
    }
