"""A generation of self-play, begun, continued after a kill, and made into a dataset.

    checkpoint, configuration -> [process: games -> journal] -> games.pgn, games.jsonl, shards, manifest

explore.json tells what the directory is of; anything else is refused there, by name. Until the manifest stands, `.journal/`
has the finished games. A game depends on the seed, its number, the settings and the evaluator, so a generation that was
killed ends with the files of one that was not; the manifest's `selfplay.timing` alone differs. (A network's word on a
position may differ in its last bits with the size of the batch that it stands in, and a game with it.)
"""

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.evaluation.handwritten import evaluate
from engine.match.openings import Opening, choose, generate, read_book
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.shards import MANIFEST, finish_dataset, publish_json, read_manifest
from pipeline.dumps.reader import open_text
from pipeline.errors import ConfigError
from pipeline.executors.by_name import LOCAL, engine_of
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.dataset import build, clear
from pipeline.selfplay.journal import FOLDER, Journals, read_journals
from pipeline.selfplay.spread import completed, games_shown, tidy
from pipeline.selfplay.statistics import statistics, timing
from pipeline.selfplay.worker import ONNX, Task, checkpoint_identity, play_task
from pipeline.storage.building import BUILDING
from pipeline.storage.claims import SELFPLAY, claim, require_apart, require_own
from pipeline.storage.stores import alone

FORMAT_VERSION = 1
IDENTITY = "explore.json"


def explore(
    checkpoint: Path | None,
    config: ExploreConfig,
    out: Path,
    *,
    generation: int = 0,
    generations: int = 1,
    lineage: Mapping[str, Any] | None = None,
    engine: str = LOCAL,
    workers: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play a generation of games into the dataset `out` and return its manifest; what is there already is not played again.

    `generation` of `generations`, from 0, decides how much noise there is. `lineage` is written into the manifest. `workers`
    are processes, 0 for one a core, or one where the network runs on a GPU. `engine` is what they run on, as in
    pipeline.executors.by_name; Ray's run on processors, one a core, and all its nodes see `out` and the checkpoint.

    Raises ExploreError (another checkpoint or other settings than the directory was begun with, two at once, a full disk),
    BookError, CheckpointError, OnnxError, ConfigError (no such engine), IngestError (Ray was lost), and Stopped.
    """
    if workers < 0:
        raise ConfigError("workers must be 0 or more")
    if config.explorer == "reanalyse":
        raise ExploreError("reanalyse plays no games: `fianchetto reanalyse` searches positions of datasets")
    elsewhere = None if engine == LOCAL else engine_of(engine, workers)
    if elsewhere is not None and config.device not in ("auto", "cpu", ONNX):
        raise ConfigError(
            f"{engine} plays on processors: leave out the device {config.device}, or play without an engine"
        )
    identity, openings = _identity(checkpoint, config, generation, generations, lineage)
    if not (out / IDENTITY).exists() and ((out / MANIFEST).exists() or (out / BUILDING).exists()):
        raise ExploreError(f"{out} holds something else than self-play: choose another directory")
    require_own(out, SELFPLAY, ExploreError)
    require_apart(out, [] if checkpoint is None else [checkpoint], ExploreError)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExploreError(f"{out} cannot be made: {error.strerror}") from error
    with alone(out, ExploreError(f"another process plays into {out}: wait for it, or choose another directory")):
        _claim(out, identity)
        if finish_dataset(out):
            manifest = read_manifest(out)
            clear(out)
            return manifest
        journal = out.absolute() / FOLDER  # a process elsewhere may stand in another folder
        task = Task(
            numbers=tuple(range(config.games)),
            config=config,
            search=config.search_in(generation, generations),
            seed=config.seed_in(generation),
            generation=generation,
            openings=openings,
            checkpoint=checkpoint.absolute() if checkpoint is not None and config.uses_network else None,
            journal=journal,
            go_on=journal / f"go-on-{secrets.token_hex(8)}",
            owner=os.getpid(),
        )
        try:
            tidy(journal)
            shown = games_shown(config.games)
            counted = f"{{}} of {config.games} games".format
            found = completed(task, play_task, elsewhere, workers, progress, stop, shown, counted)
            return build(out, found, config, _more(found, identity))
        except OSError as error:
            raise ExploreError(
                f"{error.strerror or error} ({out}): what was finished is kept, run again to continue"
            ) from error


def _identity(
    checkpoint: Path | None,
    config: ExploreConfig,
    generation: int,
    generations: int,
    lineage: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], tuple[Opening, ...]]:
    """Return what makes the games what they are, and the openings that they begin with."""
    noise = config.noise(generation, generations)
    player = None
    if config.uses_network:
        if checkpoint is None:
            raise ExploreError(f"the explorer {config.explorer} plays a checkpoint: name its directory")
        from model.checkpoint import load

        _, card = load(checkpoint)  # whatever is wrong with it is said here, once, and not by every process
        player = checkpoint_identity(checkpoint, card, config.device)
    book, openings = None, []
    if config.book is not None:
        openings = read_book(config.book, plies=config.book_plies, open_text=open_text)
        openings = choose(openings, len(openings), seed=config.seed_in(generation))
        book = hashlib.sha256(config.book.read_bytes()).hexdigest()
    elif config.made_openings:
        openings = generate(config.made_openings, evaluate, seed=config.seed_in(generation), plies=config.book_plies)
    identity = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "checkpoint": player,
        "config": config,
        "book_sha256": book,
        "generation": generation,
        "generations": generations,
        "noise": noise,
        "lineage": dict(lineage or {}),
    }
    return to_jsonable_python(identity), tuple(openings)


def _claim(out: Path, identity: Mapping[str, Any]) -> None:
    """Write what the directory is of, or find the same there; ExploreError names what differs."""
    path = out / IDENTITY
    begun = (out / MANIFEST).exists() or bool(read_journals(out / FOLDER).places)
    if not begun:  # with nothing done there is nothing to mix
        try:
            publish_json(out, IDENTITY, identity)
        except OSError as error:
            raise ExploreError(f"{path} cannot be written: {error.strerror}") from error
        return
    claim(path, identity, ExploreError)


def _more(found: Journals, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a self-play manifest says beside an ingest's."""
    records = (found.places[number].read()["record"] for number in sorted(found.places))
    told = statistics(records)
    told["timing"] = timing(found.work, told["games"], found.damaged)
    origin = {name: identity[name] for name in ("checkpoint", "generation", "generations", "noise", "book_sha256")}
    return {
        "config": identity["config"],
        "lineage": {**identity["lineage"], **origin, "seed": identity["config"]["seed"]},
        "selfplay": told,
    }
