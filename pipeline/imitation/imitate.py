"""Train a network that plays like one person, from their games to its report.

    games -> ingest (their moves only) -> join (the newest games held out) -> train from a base checkpoint -> report

    OUT/                        the checkpoint
    OUT/imitation/positions     their moves; a tenth of the games is its validation split
    OUT/imitation/training_set  the same without the newest games
    OUT/imitation/curve/GAMES   the same from fewer games, for the curve of the report
    OUT/report                  the report

Each step resumes or reuses the work of an earlier call, so repeat the call after it was killed.
"""

import datetime
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import read_manifest
from pipeline.dataset.join import join
from pipeline.dataset.training_set import LATEST, NONE
from pipeline.errors import ConfigError, DamagedError, DatasetError, Stopped
from pipeline.imitation.page import write_imitation
from pipeline.imitation.report import report_imitation
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED
from pipeline.storage.ownership import CHECKPOINT, IMITATION_REPORT, require_apart, require_own
from pipeline.training.train import IMITATION, has_split, train_on

if TYPE_CHECKING:
    from model.training.config import TrainConfig

LOG = logging.getLogger(__name__)

VALIDATION_SHARE = 0.1
VALIDATIONS = 10
"""Validations of a training; the best weights are kept."""
CURVE = (25, 100, 500)
"""Approximate numbers of games for the curve's smaller networks; each is trained only if the person has twice as many."""
FEW_ROWS, MANY_ROWS = 12_000, 60_000
"""Moves below which batches are smallest, and from which one epoch of larger batches suffices."""
FEWEST = 20
"""Games below which no network is trained."""
FEW = 100
"""Games below which the command says what to expect."""
EXPECTED = (
    "for one player, 24 games gained 0.9 points of top-1 on all moves and 0.2 from move 12 on, 105 games 4.5 and 0.7 "
    "(docs/guides/imitate.md)"
)
"""Gains from few games, measured on one player (docs/benchmarks.md)."""


def imitate(
    sources: Sequence[str],
    players: Sequence[str],
    out: Path,
    *,
    base: Path = EMBEDDED,
    stranger: Path | None = None,
    report: Path | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Train a network on the moves of `players`, the names of one person, into `out`, and return its report.

    `stranger` is a network of another person, to be measured on the same games. The report goes to `report`, by default
    OUT/report. The card names the players, with their typical rating.

    Raises DatasetError (no move of theirs, too few games, none with a date to hold out), ConfigError, Stopped, and the errors
    of `ingest`, `join` and `train_on`.
    """
    from model.checkpoint import read_card

    report, work = report or out / "report", out / IMITATION
    if not players:
        raise ConfigError("name the player whose moves are learned")
    for network in (base, stranger):
        if network is not None:
            read_card(network)
            require_apart(out, [network], ConfigError)
    require_own(out, CHECKPOINT, ConfigError, ours=lambda entry: entry == work)
    require_own(report, IMITATION_REPORT, ConfigError)
    at = partial(_stage, progress)
    config = IngestConfig(player=tuple(players), test_share=0.0, val_share=VALIDATION_SHARE, planes="compact")
    page = _hold_out(sources, config, work, at("games"), stop)
    player = _describe_player(players, work)
    if player["games"] < FEW:
        LOG.warning("%d games are few: %s", player["games"], EXPECTED)
    card = _train(work / "training_set", base, out, player, at("training"), stop)
    until = datetime.date(*map(int, page["held_out"].split("."))) - datetime.timedelta(days=1)
    known = replace(config, until=until.isoformat())
    curve = {}
    for games in (games for games in CURVE if 2 * games <= player["games"]):
        folder = work / "curve" / f"{games}"
        _ingest(sources, folder / "positions", replace(known, sample=games / player["games"]), at("curve"), stop)
        _train(folder / "positions", base, folder / "network", player, at("curve"), stop)
        curve[_count_games(folder / "positions")] = folder / "network"
    networks = {"base": base, "imitation": out} | ({} if stranger is None else {"stranger": stranger})
    result = report_imitation(networks, curve, work / "training_set", list(sources), at("report"), stop)
    result |= {"player": player, "held_out": page["held_out"], "seconds": card["seconds"]}
    write_imitation(result, report)
    return result


def _stage(progress: Progress, name: str) -> Progress:
    """Return a progress callback that names the part of the work."""

    def show(tick: Tick) -> None:
        progress(replace(tick, stage=name))

    return show


def _ingest(sources: Sequence[str], out: Path, config: IngestConfig, progress: Progress, stop: Stop) -> None:
    """Ingest the games; those before the damage of an archive are used."""
    with suppress(DamagedError):
        ingest(sources, out, config, workers=1, progress=progress, stop=stop)


def _hold_out(
    sources: Sequence[str], config: IngestConfig, work: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Ingest the games and hold the newest out; return the entry of the training set's page."""
    positions, training_set = work / "positions", work / "training_set"
    _ingest(sources, positions, config, progress, stop)
    if (games := read_manifest(positions)["games"]["used"]) < FEWEST:
        raise DatasetError(f"{games} games of {_join_names(config.player)} are too few: at least {FEWEST} are needed")
    page = join([positions], training_set, progress=progress, stop=stop)
    (entry,) = page["datasets"]
    if entry["held_out"] == NONE:
        raise DatasetError(f"the newest games cannot be held out: {entry['why'].partition(':')[0]}")
    if not has_split([training_set], "val"):
        raise DatasetError(f"{games} games of {_join_names(config.player)} are too few: none is left to validate with")
    return dict(entry)


def _describe_player(players: Sequence[str], work: Path) -> dict[str, Any]:
    """Return the card's entry: names, the median rating in the newest games (0 for unknown), and the games learned from."""
    rows = Batches([work / "training_set"], LATEST, batch_size=4096, columns=("elo",))
    ratings = np.concatenate([batch["elo"] for batch in rows.read_rows()])
    known = ratings[ratings > 0]
    rating = min(4000, int(np.median(known))) if len(known) else 0
    return {"names": list(players), "rating": rating, "games": _count_games(work / "training_set")}


def _count_games(positions: Path) -> int:
    """Return the number of games of a train split."""
    rows = Batches([positions], "train", batch_size=4096, columns=("game",))
    return len(np.unique(np.concatenate([batch["game"] for batch in rows.read_rows()])))


def _train(
    positions: Path, base: Path, out: Path, player: dict[str, Any], progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Train on positions from the base, and return the card; raises Stopped."""
    from model.checkpoint import read_card

    rows = Batches([positions], "train", batch_size=1).rows
    preset = read_card(base)["preset"]["name"]
    card = train_on([positions], preset, recipe(rows), out, progress, stop, base, player)
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']} and saved; run the same command to continue")
    return card


def recipe(rows: int) -> "TrainConfig":
    """Return the training configuration for `rows` moves of a person. Fewer moves take smaller batches, for enough steps.

    docs/log/2026-11-24.md lists the settings that were compared.
    """
    from model.training.config import TrainConfig

    batch = 32 if rows < FEW_ROWS else 64 if rows < MANY_ROWS else 128
    epochs, rate = (2, 3e-4) if rows < MANY_ROWS else (1, 5e-4)
    steps = max(VALIDATIONS, epochs * rows // batch)
    return TrainConfig(
        steps=steps,
        batch_size=batch,
        norm_rows=batch,
        optimizer="muon",
        learning_rate=rate,
        warmup=0.05,
        value_weight=0.25,
        frozen_norms=True,
        ema=max(0.0, min(0.999, 1 - 10 / steps)),
        validation_every_steps=steps // VALIDATIONS,
        patience=VALIDATIONS,
    )


def _join_names(players: Sequence[str]) -> str:
    return " or ".join(map(repr, players))
