"""manifest.json of a loop: what it is (and must stay, to be gone on with), where it ran, and what came of it."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.json_files import read_json
from model.training.config import FREE_TO_CHANGE as FREE_TO_TRAIN
from pipeline.dataset.files.shards import publish_json
from pipeline.finetune.config import FREE_TO_CHANGE, FinetuneConfig
from pipeline.finetune.outputs import lineage
from pipeline.finetune.stages import datasets
from pipeline.finetune.state import FORMAT_VERSION, FinetuneError, State, finite
from pipeline.storage import claims
from pipeline.storage.claims import flat

MANIFEST = "manifest.json"
LIBRARIES = ("torch", "numpy", "numba", "pyarrow", "chess")
FREE = {f"config.{name}" for name in FREE_TO_CHANGE} | {f"config.train.{name}" for name in FREE_TO_TRAIN}


def identity(checkpoint: Path, human: Sequence[Path], config: FinetuneConfig) -> dict[str, Any]:
    """Return what makes a loop this one: the seed's weights, the human datasets, the configuration."""
    from model.checkpoint import read_card

    card = read_card(checkpoint)
    seed = {"name": checkpoint.resolve().name, "weights_sha256": card["files"]["weights"]["sha256"]}
    seed |= {"preset": card["preset"]["name"], "step": card["step"]}
    about = {"format_version": FORMAT_VERSION, "encoding_version": ENCODING_VERSION, "moves_hash": moves_hash()}
    found: dict[str, Any] = finite({**about, "seed_checkpoint": seed, "human": datasets(human), "config": config})
    return found


def claim(out: Path, wanted: Mapping[str, Any]) -> None:
    """Write a loop's identity into a free directory, or find the same there; FinetuneError names what differs."""
    path = out / MANIFEST
    if not path.exists():
        claims.require_own(out, claims.FINETUNING, FinetuneError)
        publish_json(out, MANIFEST, wanted)
        return
    try:
        found = read_json(path, FinetuneError)
        before = {name: found[name] for name in wanted}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FinetuneError(f"{path} is no manifest of a fine-tuning: choose a new --out") from error
    changes = differences(before, wanted)
    if changes:
        raise FinetuneError(
            f"{out} holds another fine-tuning ({'; '.join(changes[:4])})", remedy="choose a new --out", code="taken"
        )


def differences(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Describe what differs; a setting that is younger than the manifest did then what its default does now."""
    defaults = flat(finite({"config": FinetuneConfig(generations=1)}))
    was, now = (
        {name: value for name, value in each.items() if name not in FREE}
        for each in (defaults | flat(before), flat(wanted))
    )
    return claims.differences(was, now)


def write(state: State, wanted: Mapping[str, Any]) -> None:
    """Publish the manifest: the identity, the runs with their devices and versions, and the result so far."""
    verdicts = [{"generation": record["number"], **record["verdict"]} for record in state.judged]
    result = {"best": state.best, "lineage": lineage(state), "verdicts": verdicts, "seconds": round(state.seconds, 1)}
    publish_json(state.out, MANIFEST, finite({**wanted, "runs": state.runs, "result": result}))


def here() -> dict[str, Any]:
    """Tell where a run takes place: device, processor, versions, commit."""
    from model.training.precision import device_for
    from model.training.provenance import commit

    device = device_for("auto")
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    return {
        "device": f"{device.type}: {name}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "host": platform.node(),
        "python": platform.python_version(),
        "versions": {library: version(library) for library in LIBRARIES},
        "commit": commit(),
    }
