"""Save training runs, and find and restore the run in a directory."""

import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import UserError
from model import checkpoint
from model.calibration import scale_value
from model.card import CARD_FILE
from model.network.network import count_parameters
from model.network.preset import Preset, changed_fields, preset_to_dict
from model.training.config import (
    TrainConfig,
    fraction_done,
    has_changed_length,
    list_changed_settings,
)
from model.training.distributed import World
from model.training.monitor import RunMonitor
from model.training.step import Run, new_run, set_reference

CODE_ROOT = Path(__file__).resolve().parents[2]
"""Folder of Fianchetto's packages, which is a git checkout unless a wheel was installed."""


class TrainingMismatchError(UserError):
    """The run in the directory, or the starting checkpoint, does not match the new settings."""


def save_run(run: Run, out: Path, entries: Mapping[str, Any], *, finished: bool) -> dict[str, Any]:
    """Save a run and return its card, which also has the training loop's `entries`."""
    card = {
        "preset": preset_to_dict(run.preset),
        "parameters": count_parameters(run.network),
        "step": run.step,
        "positions": run.positions,
        "seconds": round(run.seconds, 3),
        "finished": finished,
        **entries,
        "config": asdict(run.config),
        "device": run.device.type,
        "dtype": str(run.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "processes": run.world.size,
        "torch": torch.__version__,
        "commit": _read_commit(),
    }
    tensors = {"weights": dict(run.ema.state_dict())}
    if not finished:
        tensors["training"] = _training_tensors(run)
    return checkpoint.save(out, card, tensors)


def _training_tensors(run: Run) -> dict[str, Tensor]:
    tensors = {f"network.{name}": tensor for name, tensor in run.network.state_dict().items()}
    tensors |= {
        f"optimizer.{name}": tensor for name, tensor in run.optimizer.state_tensors().items()
    }
    tensors |= {f"best.{name}": tensor for name, tensor in run.best.items()}
    return tensors


def find_run_card(
    config: TrainConfig, preset: Preset, out: Path, data: Mapping[str, Any], steps: float | None
) -> dict[str, Any] | None:
    """Return the card of the run in a directory; None if there is no run.

    `steps` is the new length, None if it is in minutes. Raises TrainingMismatchError for a run of
    other settings or data, and for one that is already longer than the new length.
    """
    if not (out / CARD_FILE).exists():
        return None
    card = checkpoint.read_card(out)
    changes = [f"preset field {name} differs" for name in changed_fields(preset, card["preset"])]
    changes += list_changed_settings(config, card["config"])
    changes += [] if card["data"] == dict(data) else ["the data differ"]
    if changes:
        raise TrainingMismatchError(
            f"{out} holds a different run ({'; '.join(changes[:4])})",
            remedy="choose a new directory or delete this one; use `--start` to train its "
            "network on other data",
            code="taken",
        )
    if has_changed_length(config, card["config"]):
        done, length, unit = card["step"], steps, "steps"
        if length is None:
            done, length, unit = round(card["seconds"] / 60, 3), config.minutes or 0.0, "minutes"
        if done > length:
            raise TrainingMismatchError(
                f"{out} has already trained for {done:,} {unit}, more than {length:,}: choose a "
                "longer run"
            )
    return card


def is_finished(config: TrainConfig, card: Mapping[str, Any], steps: int | None) -> bool:
    """Return whether a run is finished, by its length or by `patience`."""
    if not card["finished"] or not has_changed_length(config, card["config"]):
        return bool(card["finished"])
    is_exhausted = RunMonitor(**(card.get("monitor") or {})).is_exhausted(config)
    return is_exhausted or fraction_done(config, steps, card["step"], card["seconds"]) >= 1


def open_run(
    config: TrainConfig,
    preset: Preset,
    world: World,
    out: Path,
    card: Mapping[str, Any] | None,
    start: Path | None,
) -> Run:
    """Restore the run of a card, or make a new run that begins with the weights of `start`, if any.

    With teach=value, the weights of `start` are also the reference. Files are checked against the
    preset before a network is built, so that an invalid card allocates no memory.
    """
    tensors = None if card is None else _read_run(out, card)
    keeps_policy, start_weights = config.teach == "value", None
    if start is not None and (card is None or keeps_policy):
        start_weights = _load_start_weights(start, preset)
    run = new_run(config, preset, world)
    if card is not None and tensors is not None:
        _restore(run, card, tensors, str(out))
    elif start_weights is not None:
        for network in (run.network, run.ema):
            network.load_state_dict(start_weights)
    if start_weights is not None and keeps_policy:
        set_reference(run, start_weights)
    return run


def _read_run(out: Path, card: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    _, weights = checkpoint.read_weights(out, card)
    if card["finished"]:
        return {"weights": weights}
    size = sum(tensor.nbytes for tensor in weights.values())
    max_bytes = checkpoint.MAX_HEADER_BYTES + checkpoint.MAX_TRAINING_RATIO * size
    training = checkpoint.read_tensors(out, card, "training", max_bytes)
    return {"weights": weights, "training": training}


def _restore(
    run: Run, card: Mapping[str, Any], tensors: Mapping[str, dict[str, Tensor]], source: str
) -> None:
    """Copy the state of a save into a new run; errors name the save as `source`.

    A finished run continues from its averaged weights, before calibration, with a new optimizer.
    """
    checkpoint.copy_tensors(run.ema.state_dict(), tensors["weights"], source)
    if "training" in tensors:
        checkpoint.copy_tensors(_training_tensors(run), tensors["training"], source)
    else:
        if calibration := card.get("calibration"):
            scale_value(run.ema, 1 / calibration["factor"])
        run.network.load_state_dict(run.ema.state_dict())
        if run.best:
            checkpoint.copy_tensors(run.best, run.ema.state_dict(), source)
    run.step, run.positions, run.seconds = card["step"], card["positions"], float(card["seconds"])


def _load_start_weights(start: Path, preset: Preset) -> dict[str, Tensor]:
    network, card = checkpoint.load(start)
    if changes := changed_fields(preset, card["preset"]):
        raise TrainingMismatchError(
            f"{start} has a different preset ({', '.join(changes)} differ): start from a "
            "checkpoint with the same preset"
        )
    return network.state_dict()


@cache
def _read_commit() -> str | None:
    """Return the commit of this code's checkout, with `-dirty` if tracked files have changed.

    Returns None without a checkout, a commit or git.
    """
    if not (CODE_ROOT / ".git").exists():
        return None
    options = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    command = ["git", "--no-optional-locks", "-C", str(CODE_ROOT), *options]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()
