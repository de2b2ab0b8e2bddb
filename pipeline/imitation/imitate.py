"""Train a network to play like one person, given the person's games, and write a report.

The steps:

    games -> ingest (the person's moves only) -> join (hold out the newest games)
          -> train from a base checkpoint -> choose an interpolation share -> measure
          -> train on all games with the same settings -> report

The files:

    OUT/                           the checkpoint, trained on all games, or the base if no better
    OUT/imitation/positions        the person's moves; a tenth of the games is the validation split
    OUT/imitation/training_set     the same without the newest games
    OUT/imitation/held_out         the measured checkpoint, which has not seen the newest games
    OUT/imitation/trained/N        the trained networks that held_out is interpolated from
    OUT/imitation/trained-on-all/N the trained networks that OUT is interpolated from
    OUT/report                     the report about OUT/imitation/held_out

Each step reuses the work of an earlier call, so a call that was killed can be repeated.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import UserError
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.dataset import HOLD_OUT_NONE, LATEST, Dataset
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dataset.join import join
from pipeline.errors import ConfigError, DamagedError, DatasetError, Stopped
from pipeline.evaluation.game_texts import add_game_tags
from pipeline.imitation import measure
from pipeline.imitation.book import make_book, measure_book
from pipeline.imitation.page import write_imitation
from pipeline.imitation.tune import train_on_all, tune
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.storage.job_folder import CHECKPOINT_KIND, IMITATION_REPORT_KIND, JobFolder

LOG = logging.getLogger(__name__)

WORK_FOLDER = "imitation"
"""Folder in the checkpoint that holds the games and the trained networks."""
VALIDATION_SHARE = 0.1
"""Share of the games in the validation split."""
MIN_GAMES = 20
"""Minimum number of games to train on."""
FEW_GAMES = 100
"""Number of games below which a warning is logged."""


class UnusableGamesError(DatasetError):
    """There are too few games of the person, or none can be held out."""


def imitate(
    sources: Sequence[str],
    players: Sequence[str],
    out: Path,
    *,
    base: Path = EMBEDDED_CHECKPOINT,
    stranger: Path | None = None,
    report: Path | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Train a network on one person's moves, save it in `out`, and return its report.

    `sources` are PGN files or addresses, and `players` the names of the person in them. Training
    starts from `base`. `stranger` is an imitation of another person, to be measured on the same
    games. The report is written to `report`, by default OUT/report. The network's card records the
    names and the person's median rating.

    Raises DatasetError (no moves of the person, too few games, no dated games to hold out),
    ConfigError, Stopped, and the errors of `ingest`, `join` and `train_on_datasets`.
    """
    from model.checkpoint import CARD_FILE, read_card

    report, work = report or out / "report", out / WORK_FOLDER
    if not players:
        raise ConfigError("no player is given: name the player to imitate")
    networks = [network for network in (base, stranger) if network is not None]
    for network in networks:
        read_card(network)
    folder = JobFolder(out, CHECKPOINT_KIND, ConfigError, reads=networks)
    folder.check()
    if (out / CARD_FILE).exists() and not work.exists():
        raise ConfigError(
            f"{out} holds another network",
            remedy="choose a new directory, or delete this one",
            code="taken",
        )
    JobFolder(report, IMITATION_REPORT_KIND, ConfigError).check()

    def name_stage(stage: str) -> Progress:
        return lambda tick: progress(replace(tick, stage=stage))

    with folder.lock():
        folder.claim({"player": list(players)}, has_results=work.exists())
        held_out = _prepare_games(sources, players, work, name_stage("games"), stop)
        training_set = Dataset.open(work / "training_set")
        player = _describe_player(players, training_set)
        if player["games"] < FEW_GAMES:
            LOG.warning(
                "%d games are few: expect the network to learn some of the openings, but little "
                "else (docs/guides/imitate.md)",
                player["games"],
            )
        chosen = tune(training_set, base, work / "held_out", player, name_stage("training"), stop)
        measured = {"base": base, "imitation": work / "held_out"}
        if stranger is not None:
            measured["stranger"] = stranger
        result = _measure_networks(measured, training_set, sources, name_stage("report"), stop)
        result |= {"player": player, "held_out": held_out, "seconds": chosen.pop("seconds")}
        imitation = next(row for row in result["networks"] if row["name"] == "imitation")
        # keep the base network if the newest games show no gain
        share = chosen["share"] if imitation["all"]["cross_entropy_difference"] < 0 else 0.0
        positions = Dataset.open(work / "positions")
        games = read_manifest(work / "positions")["games"]["used"]
        book = make_book(positions, ("train", "val")).positions if result["book"]["used"] else {}
        saved = player | {"games": games, "share": share}
        last = name_stage("training on all games")
        train_on_all(positions, training_set, base, out, saved, book, last, stop)
        result["chosen"], result["saved"] = chosen, {"share": share, "games": games}
        result["book"]["saved"] = len(book)
        folder.finish()
    write_imitation(result, report)
    return result


def _prepare_games(
    sources: Sequence[str], players: Sequence[str], work: Path, progress: Progress, stop: Stop
) -> str:
    """Ingest the person's games and hold out the newest; return the date of the first of these.

    Of a damaged archive, the games before the damage are used. If the games are unusable, a new
    folder `work` is removed, so that the next call can ingest other games there.
    """
    is_new, positions = not work.exists(), work / "positions"
    config = IngestConfig(
        player=tuple(players), test_share=0.0, val_share=VALIDATION_SHARE, planes="compact"
    )
    try:
        with suppress(DamagedError):
            ingest(sources, positions, config, workers=1, progress=progress, stop=stop)
        if (games := read_manifest(positions)["games"]["used"]) < MIN_GAMES:
            names = " or ".join(map(repr, players))
            raise UnusableGamesError(
                f"{games} games of {names} are too few: at least {MIN_GAMES} are needed"
            )
        page = join([positions], work / "training_set", progress=progress, stop=stop)
        (entry,) = page["datasets"]
        if entry["held_out"] == HOLD_OUT_NONE:
            raise UnusableGamesError(
                f"the newest games cannot be held out: {entry['why'].partition(':')[0]}"
            )
    except UnusableGamesError:
        if is_new:
            shutil.rmtree(work)
        raise
    except (OSError, UserError):
        with suppress(OSError):  # keep a folder with files, which the next call resumes
            work.rmdir()
        raise
    return str(entry["held_out"])


def _describe_player(players: Sequence[str], training_set: Dataset) -> dict[str, Any]:
    """Return the card's entry `player`: names, rating, and number of games trained on.

    The rating is the median in the newest games, or 0 if they have no ratings.
    """
    ratings = np.concatenate([rows["elo"] for rows in training_set.read_rows(LATEST, ("elo",))])
    known = ratings[ratings > 0]
    rating = min(4000, int(np.median(known))) if len(known) else 0
    games = [rows["game"] for rows in training_set.read_rows("train", ("game",))]
    return {
        "names": list(players),
        "rating": rating,
        "games": len(np.unique(np.concatenate(games))),
    }


def _measure_networks(
    networks: Mapping[str, Path],
    training_set: Dataset,
    sources: Sequence[str],
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Measure networks by name on the person's newest games; `base` and `imitation` are required.

    Returns `networks` (the comparison of each with the base), `openings`, `boards`, and `book`: how
    an opening book of the earlier games changes the accuracy of the imitation.
    """
    from model.inference.evaluator import evaluator

    opened = {name: evaluator(path) for name, path in networks.items()}
    columns = dict.fromkeys(name for network in opened.values() for name in network.columns)
    rows = measure.read_rows(training_set, LATEST, tuple(columns))
    tables = {}
    for name, network in opened.items():
        if stop():
            raise Stopped("stopped before the report; run the same command to write it")
        tables[name] = measure.measure_policy(network, rows, progress)
    base, imitation = tables["base"], tables["imitation"]
    boards = {"found": measure.find_boards(rows, base, imitation)}
    return {
        "networks": [measure.compare(name, base, table) for name, table in tables.items()],
        "openings": measure.find_openings(
            rows, opened["base"], opened["imitation"], base["key"].to_numpy()
        ),
        "book": measure_book(make_book(training_set, ("train", "val")), imitation, rows["label"]),
        "boards": add_game_tags(boards, training_set.parts[0], sources)["found"],
    }
