"""Train a network that plays like one person, from their games to its report.

    games -> ingest (their moves only) -> join (the newest games held out)
          -> train from a base checkpoint -> choose how far to go -> report

    OUT/                        the checkpoint
    OUT/imitation/positions     their moves; a tenth of the games is its validation split
    OUT/imitation/training_set  the same without the newest games
    OUT/imitation/trained/N     the trained networks, of which OUT is a mixture with the base
    OUT/report                  the report

Each step resumes or reuses the work of an earlier call, so repeat the call after it was killed.
"""

import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import UserError
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.dataset import LATEST, NONE, Dataset
from pipeline.dataset.files.shards import read_manifest
from pipeline.dataset.join import join
from pipeline.errors import ConfigError, DamagedError, DatasetError
from pipeline.imitation.page import write_imitation
from pipeline.imitation.report import report_imitation
from pipeline.imitation.tune import tune
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED
from pipeline.storage.job_folder import CHECKPOINT, IMITATION_REPORT, JobFolder

LOG = logging.getLogger(__name__)

IMITATION = "imitation"
"""Folder in the checkpoint that holds the games and the trained networks."""
VALIDATION_SHARE = 0.1
FEWEST = 20
"""Games below which no network is trained."""
FEW = 100
"""Games below which the command says what to expect."""


class UnusableGamesError(DatasetError):
    """The person's games are too few, or none of them can be held out."""


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
    """Train a network on one person's moves into `out`, and return its report.

    `stranger` is a network of another person, to be measured on the same games. The report goes to
    `report`, by default OUT/report. The card names the players, with their typical rating.

    Raises DatasetError (no move of theirs, too few games, none with a date to hold out),
    ConfigError, Stopped, and the errors of `ingest`, `join` and `train_on`.
    """
    from model.checkpoint import CARD, read_card

    report, work = report or out / "report", out / IMITATION
    if not players:
        raise ConfigError("name the player whose moves are learned")
    networks = [network for network in (base, stranger) if network is not None]
    for network in networks:
        read_card(network)
    folder = JobFolder(out, CHECKPOINT, ConfigError, reads=networks)
    folder.check()
    if (out / CARD).exists() and not work.exists():
        raise ConfigError(
            f"{out} holds another network",
            remedy="choose a new directory, or remove it",
            code="taken",
        )
    JobFolder(report, IMITATION_REPORT, ConfigError).check()
    at = partial(_stage, progress)
    config = IngestConfig(
        player=tuple(players), test_share=0.0, val_share=VALIDATION_SHARE, planes="compact"
    )
    with folder.held():
        folder.claim({"player": list(players)}, has_results=work.exists())
        page = _hold_out(sources, config, work, at("games"), stop)
        player = _describe_player(players, work)
        if player["games"] < FEW:
            LOG.warning(
                "%d games are few: expect some of the openings, and hardly more "
                "(docs/guides/imitate.md)",
                player["games"],
            )
        chosen = tune(work / "training_set", base, out, player, at("training"), stop)
        folder.finish()
    measured = {"base": base, "imitation": out} | (
        {} if stranger is None else {"stranger": stranger}
    )
    result = report_imitation(measured, work / "training_set", list(sources), at("report"), stop)
    result |= {
        "player": player,
        "held_out": page["held_out"],
        "chosen": chosen,
        "seconds": chosen.pop("seconds"),
    }
    write_imitation(result, report)
    return result


def _stage(progress: Progress, name: str) -> Progress:
    """Return a progress callback that names the part of the work."""

    def show(tick: Tick) -> None:
        progress(replace(tick, stage=name))

    return show


def _ingest(
    sources: Sequence[str], out: Path, config: IngestConfig, progress: Progress, stop: Stop
) -> None:
    """Ingest the games; those before the damage of an archive are used."""
    with suppress(DamagedError):
        ingest(sources, out, config, workers=1, progress=progress, stop=stop)


def _hold_out(
    sources: Sequence[str], config: IngestConfig, work: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Ingest the games and hold the newest out; return the entry of the training set's page.

    Games that cannot be used leave nothing behind, so that others can be ingested there.
    """
    new = not work.exists()
    try:
        return _ingest_and_join(sources, config, work, progress, stop)
    except UnusableGamesError:
        if new:
            shutil.rmtree(work)
        raise
    except (OSError, UserError):
        with suppress(OSError):  # it may hold something to continue
            work.rmdir()
        raise


def _ingest_and_join(
    sources: Sequence[str], config: IngestConfig, work: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    positions, training_set = work / "positions", work / "training_set"
    _ingest(sources, positions, config, progress, stop)
    if (games := read_manifest(positions)["games"]["used"]) < FEWEST:
        raise UnusableGamesError(
            f"{games} games of {_join_names(config.player)} are too few: at least {FEWEST} are "
            f"needed"
        )
    page = join([positions], training_set, progress=progress, stop=stop)
    (entry,) = page["datasets"]
    if entry["held_out"] == NONE:
        raise UnusableGamesError(
            f"the newest games cannot be held out: {entry['why'].partition(':')[0]}"
        )
    return dict(entry)


def _describe_player(players: Sequence[str], work: Path) -> dict[str, Any]:
    """Return the card's entry: names, median rating of the newest games (or 0), and games."""
    dataset = Dataset.open(work / "training_set")
    ratings = np.concatenate([rows["elo"] for rows in dataset.rows(LATEST, ("elo",))])
    known = ratings[ratings > 0]
    rating = min(4000, int(np.median(known))) if len(known) else 0
    return {"names": list(players), "rating": rating, "games": _count_games(dataset)}


def _count_games(dataset: Dataset) -> int:
    """Return the number of games of a train split."""
    games = [rows["game"] for rows in dataset.rows("train", ("game",))]
    return len(np.unique(np.concatenate(games)))


def _join_names(players: Sequence[str]) -> str:
    return " or ".join(map(repr, players))
