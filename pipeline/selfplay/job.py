"""A generation of self-play, started, continued after a kill, and made into a dataset.

    checkpoint, configuration, datasets -> [process: games or searches -> journal] -> shards,
    manifest

job.json identifies the generation; a directory that was started with anything else is refused,
with the setting that differs. Until the manifest exists, `.journal/` holds what is finished. A game
or search depends on the seed, its number, the settings and the evaluator. So a killed generation
ends with the files of an uninterrupted one; only `selfplay.timing` in the manifest differs. (A
network's answer may differ in its last bits with the size of its batch, and a game with it.)
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.shards import MANIFEST, read_manifest
from pipeline.errors import ConfigError
from pipeline.executors.local import LOCAL, engine_of
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.dataset import build
from pipeline.selfplay.draw import DRAWN, draw, identify_datasets
from pipeline.selfplay.journal import Journals, read_journals
from pipeline.selfplay.processes import complete
from pipeline.selfplay.statistics import count_games, count_searches, timing
from pipeline.selfplay.worker import ONNX, Task
from pipeline.storage.job_folder import SELFPLAY, JobFolder

FORMAT_VERSION = 2


def explore(
    checkpoint: Path | None,
    config: ExploreConfig,
    out: Path,
    *,
    datasets: Sequence[Path] = (),
    lineage: Mapping[str, Any] | None = None,
    finished_only: bool = False,
    exact_count: bool = True,
    engine: str = LOCAL,
    workers: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play games or search positions of `datasets` into the dataset `out`, and return its manifest.

    Finished games and searches are kept. `finished_only` builds the dataset from these without
    starting new ones; of games it favors short ones. Without `exact_count`, datasets that have
    fewer positions than `config.count` are searched whole. `lineage` is written into the manifest.
    `workers` are processes, 0 for one per core, or one where the network runs on a GPU. `engine` is
    what they run on, as in pipeline.executors.local: Ray's processes run on CPUs, one per core,
    and all its nodes see `out` and the checkpoint.

    Raises ExploreError for other settings than the directory was started with, a checkpoint without
    a value, datasets without positions, two jobs at once, and a full disk. Also DatasetError,
    CheckpointError, OnnxError, ConfigError (no such engine), IngestError (Ray was lost), and
    Stopped.
    """
    if workers < 0:
        raise ConfigError("workers must be 0 or more")
    if config.plays == bool(datasets):
        raise ConfigError(
            "games need no datasets: leave them out, or choose the source people or near"
            if config.plays
            else f"the source {config.source} searches positions of datasets: name at least one"
        )
    remote = None if engine == LOCAL else engine_of(engine, workers)
    if remote is not None and config.device not in ("auto", "cpu", ONNX):
        raise ConfigError(
            f"{engine} runs on CPUs: leave out the device {config.device}, or work without an "
            f"engine"
        )
    identity = _identify(checkpoint, config, datasets, lineage)
    reads = [*datasets, *([] if checkpoint is None else [checkpoint])]
    folder = JobFolder(out, SELFPLAY, ExploreError, reads=reads)
    with folder.held():
        journal = out.absolute() / folder.journal.name
        # without results there is nothing that other settings could be mixed with
        has_results = (out / MANIFEST).exists() or (journal / DRAWN).exists()
        folder.claim(identity, has_results=has_results or bool(read_journals(journal).places))
        if folder.is_finished():
            return read_manifest(out)
        journal.mkdir(exist_ok=True)
        drawn: dict[str, Any] = {}
        if not config.plays:
            drawn = draw(datasets, config, journal, progress, stop, exact_count=exact_count)
        total, width = (config.games, 1) if config.plays else (drawn["positions"], config.width)
        task = Task(
            numbers=tuple(range(-(-total // width))),
            config=config,
            checkpoint=checkpoint.absolute() if checkpoint and config.uses_network else None,
            journal=journal,
            run_file=journal / f"run-{secrets.token_hex(8)}",
            owner=os.getpid(),
        )

        def show(items: int) -> Tick:
            return Tick(min(items * width, total), total, "games" if config.plays else "positions")

        if finished_only:
            found = read_journals(journal)
        else:
            found = complete(task, remote, workers, progress, stop, show)
        if not found.places:
            raise ExploreError(
                f"nothing is finished in {out}: run the same command without --finished-only"
            )
        described = _describe(found, drawn, identity, config)
        if finished_only:
            figures = described["selfplay"]
            done = figures["games"] if config.plays else figures["searched"] + figures["over"]
            figures["unfinished"] = total - done
        return build(folder, found, config, drawn, described)


def _identify(
    checkpoint: Path | None,
    config: ExploreConfig,
    datasets: Sequence[Path],
    lineage: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return a generation's identity; raises for a checkpoint that cannot be used."""
    player = None
    if config.uses_network:
        if checkpoint is None:
            raise ExploreError(
                f"the explorer {config.explorer} needs a checkpoint: name its directory"
            )
        from model.checkpoint import load

        # the checkpoint is opened here, so that an error is reported once, and not by every process
        network, card = load(checkpoint)
        if network.preset.value == "none":
            raise ExploreError(
                f"{checkpoint} has no value head: a search needs a network with a value"
            )
        player = {
            "weights_sha256": card["files"]["weights"]["sha256"],
            "preset": card["preset"]["name"],
            "step": card["step"],
        }
        if config.device == ONNX:
            from model.inference.onnx_evaluator import open_export

            player["onnx_sha256"] = open_export(checkpoint).sha256
    identity = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "checkpoint": player,
        "datasets": identify_datasets(datasets),
        "config": config,
        "lineage": dict(lineage or {}),
    }
    return to_jsonable_python(identity)  # type: ignore[no-any-return]


def _describe(
    found: Journals, drawn: Mapping[str, Any], identity: Mapping[str, Any], config: ExploreConfig
) -> dict[str, Any]:
    """Return the manifest's entries beside those of an ingest."""
    figures = count_games(found) if config.plays else count_searches(found, drawn["phases"])
    return {
        "config": identity["config"],
        "lineage": {
            **identity["lineage"],
            "checkpoint": identity["checkpoint"],
            "datasets": identity["datasets"],
        },
        "selfplay": {**figures, "timing": timing(found.work, found.damaged)},
    }
