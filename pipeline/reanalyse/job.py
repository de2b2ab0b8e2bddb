"""A reanalysis, begun, continued after a kill, and made into a dataset.

    datasets --draw--> positions --processes: many searches at once--> journal -> searches.jsonl, shards, manifest

reanalyse.json tells what the directory is of; anything else is refused there, by name. Until the manifest stands, `.journal/`
has the drawn positions and the finished searches. A search depends on the seed, the position's number, the settings and the
network alone, so a reanalysis that was killed ends with the files of one that was not; the manifest's `searches.timing` alone
differs.
"""

import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.shards import finish_dataset, read_manifest
from pipeline.errors import ConfigError
from pipeline.executors.by_name import LOCAL, engine_of
from pipeline.executors.local import Engine
from pipeline.reanalyse.config import ReanalyseConfig, ReanalyseError
from pipeline.reanalyse.dataset import build
from pipeline.reanalyse.draw import POSITIONS, datasets_row, draw
from pipeline.reanalyse.search import SearchTask, search_task
from pipeline.selfplay.config import ExploreError
from pipeline.selfplay.dataset import clear
from pipeline.selfplay.journal import FOLDER, Journals
from pipeline.selfplay.spread import Shown, completed, tidy
from pipeline.selfplay.statistics import timing
from pipeline.selfplay.worker import ONNX, checkpoint_identity
from pipeline.storage.claims import REANALYSIS, claim, require_apart, require_own
from pipeline.storage.stores import alone

FORMAT_VERSION = 2
IDENTITY = "reanalyse.json"


def reanalyse(
    checkpoint: Path,
    positions: Sequence[Path],
    config: ReanalyseConfig,
    out: Path,
    *,
    lineage: Mapping[str, Any] | None = None,
    engine: str = LOCAL,
    workers: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Search positions of datasets into the dataset `out` and return its manifest; what was searched is not searched again.

    `lineage` is written into the manifest. `workers` are processes, 0 for one a core, or one where the network runs on a GPU.
    `engine` is what they run on, as in pipeline.executors.by_name; all its nodes see `out` and the checkpoint.

    Raises ReanalyseError (another checkpoint or other settings than the directory was begun with, a checkpoint without a
    value, datasets without positions, two at once, a full disk), DatasetError, CheckpointError, OnnxError, ConfigError,
    and Stopped.
    """
    if workers < 0:
        raise ConfigError("workers must be 0 or more")
    if not positions:
        raise ConfigError("name at least one dataset to draw positions from")
    elsewhere = None if engine == LOCAL else engine_of(engine, workers)
    if elsewhere is not None and config.device not in ("auto", "cpu", ONNX):
        raise ConfigError(
            f"{engine} searches on processors: leave out the device {config.device}, or search without an engine"
        )
    identity = _identity(checkpoint, positions, config, lineage)
    require_own(out, REANALYSIS, ReanalyseError)
    require_apart(out, [checkpoint, *positions], ReanalyseError)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReanalyseError(f"{out} cannot be made: {error.strerror}") from error
    with alone(out, ReanalyseError(f"another process searches into {out}: wait for it, or choose another directory")):
        try:
            claim(out / IDENTITY, identity, ReanalyseError)
            if finish_dataset(out):
                manifest = read_manifest(out)
                clear(out)
                return manifest
            tidy(out / FOLDER)
            drawn = draw(positions, config, out / FOLDER, progress, stop)
            found = _searched(checkpoint, config, drawn, out.absolute() / FOLDER, elsewhere, workers, progress, stop)
            return build(out, found, config, drawn, _more(found, drawn, identity))
        except ExploreError as error:  # of the workers, who know no games
            raise ReanalyseError(str(error)) from error
        except OSError as error:
            raise ReanalyseError(
                f"{error.strerror or error} ({out}): the positions that were searched are kept, run again to continue"
            ) from error


def _identity(
    checkpoint: Path, positions: Sequence[Path], config: ReanalyseConfig, lineage: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what makes the searches what they are."""
    from model.checkpoint import load

    network, card = load(checkpoint)  # whatever is wrong with it is said here, once, and not by every process
    if network.preset.value == "none":
        raise ReanalyseError(f"{checkpoint} says nothing of the result: a search needs a network with a value")
    identity = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
        "checkpoint": checkpoint_identity(checkpoint, card, config.device),
        "datasets": datasets_row(positions),
        "config": config,
        "lineage": dict(lineage or {}),
    }
    return to_jsonable_python(identity)  # type: ignore[no-any-return]


def _searched(
    checkpoint: Path,
    config: ReanalyseConfig,
    drawn: Mapping[str, Any],
    journal: Path,
    engine: Engine | None,
    workers: int,
    progress: Progress,
    stop: Stop,
) -> Journals:
    """Search what is missing, and return all groups; Stopped when it was asked to stop before."""
    total = drawn["positions"]
    task = SearchTask(
        numbers=tuple(range(-(-total // config.width))),
        config=config,
        search=config.search,
        seed=config.seed,
        checkpoint=checkpoint.absolute(),
        journal=journal,  # absolute: a process elsewhere may stand in another folder
        go_on=journal / f"go-on-{secrets.token_hex(8)}",
        owner=os.getpid(),
        positions=journal / POSITIONS,
    )

    def counted(groups: int) -> str:
        return f"{min(groups * config.width, total):,} of {total:,} positions"

    return completed(task, search_task, engine, workers, progress, stop, _shown(total, config.width), counted)


def _shown(total: int, width: int) -> Shown:
    """Return what shows the progress of searches."""

    def shown(finished: int, done: int, seconds: float, evaluations: int) -> Tick:
        rates = {"positions/s": done * width / seconds, "evaluations/s": evaluations / seconds}
        return Tick(min(finished * width, total), total, "positions", rates)

    return shown


def _more(found: Journals, drawn: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest says beside an ingest's: which network searched what, and what came of it."""
    sums: Counter[str] = Counter()
    changed = surprise = 0.0
    for number in sorted(found.places):
        entry = found.places[number].read()
        sums["evaluations"] += entry["record"]["evaluations"]
        for thought in entry["thoughts"]:
            if "value" not in thought:
                sums["over"] += 1
                continue
            sums["searched"] += 1
            sums["moved"] += bool(thought["moves"])
            sums["interior"] += len(thought.get("nodes", ()))
            likeliest = max(zip(thought["priors"], thought["labels"], strict=True))[1]
            changed += likeliest != thought["best"][0]
            surprise += thought["surprise"]
    searched = max(sums["searched"], 1)
    told = {
        "searched": sums["searched"],
        "moved": sums["moved"],
        "interior": sums["interior"],
        "over": sums["over"],
        "phases": drawn["phases"],
        "evaluations": sums["evaluations"],
        "best_move_changed": round(changed / searched, 6),
        "mean_surprise": round(surprise / searched, 6),
    }
    took = timing(found.work, 0, found.damaged)
    del took["games_per_hour"]
    took["positions_per_second"] = round(sums["searched"] / took["seconds"], 3) if took["seconds"] else 0.0
    took["evaluations_per_second"] = round(took["evaluations"] / took["seconds"], 1) if took["seconds"] else 0.0
    return {
        "config": identity["config"],
        "lineage": {**identity["lineage"], "checkpoint": identity["checkpoint"], "datasets": identity["datasets"]},
        "searches": {**told, "timing": took},
    }


def text_of(manifest: Mapping[str, Any]) -> str:
    """Write what a reanalysis found for people."""
    told, took = manifest["searches"], manifest["searches"]["timing"]
    phases = ", ".join(f"{count:,} {name}" for name, count in told["phases"].items())
    lines = [
        f"{told['searched']:,} positions searched ({phases}), {told['moved']:,} of them after moves of the policy;"
        f" {manifest['positions']['train']:,} rows to train on",
        f"the search plays another move than the policy's first in {100 * told['best_move_changed']:.1f} %;"
        f" its policy is {told['mean_surprise']:.3f} nats from the prior",
        f"{took['seconds']:,.1f} s, {took['positions_per_second']:,.1f} positions/s,"
        f" {took['evaluations_per_second']:,.0f} evaluations/s; the network was at work"
        f" {100 * took['search_efficiency']:.1f} % of the time",
    ]
    return "\n".join(lines)
