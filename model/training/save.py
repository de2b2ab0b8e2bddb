"""Save a run, and find and restore the run of a directory."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import UserError
from model.card import CARD
from model.checkpoint import (
    LARGEST_HEADER,
    LARGEST_TRAINING,
    fit,
    load,
    read_card,
    read_tensors,
    read_weights,
    save,
    total_bytes,
)
from model.network.network import parameters
from model.network.preset import Preset, changed_fields, preset_row
from model.training.config import TrainConfig, changed_settings
from model.training.provenance import commit, dtype_name
from model.training.reference import ReferencePolicy
from model.training.step import Run

Tensors = dict[str, dict[str, Tensor]]
"""Tensors by kind: `weights` and `training`."""


class TrainingMismatchError(UserError):
    """The directory holds a run of another preset, configuration or data."""


def save_run(run: Run, out: Path, *, finished: bool, more: Mapping[str, Any]) -> dict[str, Any]:
    """Save a run and return its card; `more` are the entries that the loop keeps."""
    card = {
        "preset": preset_row(run.preset),
        "parameters": parameters(run.network),
        "step": run.step,
        "positions": run.positions,
        "seconds": round(run.seconds, 3),
        "finished": finished,
        **more,
        "config": asdict(run.config),
        "reference": run.reference.row() if run.reference is not None else None,
        "device": run.device.type,
        "dtype": dtype_name(run.dtype, run.config.amp),
        "threads": torch.get_num_threads(),
        "processes": run.world.size,
        "torch": torch.__version__,
        "commit": commit(),
    }
    tensors = {"weights": dict(run.ema.state_dict())}
    if not finished:
        tensors["training"] = _training_tensors(run)
    return save(out, card, tensors)


def _training_tensors(run: Run) -> dict[str, Tensor]:
    """Return what a run needs to continue, beside its averaged weights."""
    tensors = {f"network.{name}": tensor for name, tensor in run.network.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in run.optimizer.tensors().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in run.best.items()}
    if run.scaler.is_enabled():
        state = run.scaler.state_dict()
        tensors["scaler"] = torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
    return tensors


def find_run(
    config: TrainConfig, preset: Preset, out: Path, data: Mapping[str, Any], reference: ReferencePolicy | None
) -> dict[str, Any] | None:
    """Return the card of the run in a directory, None where there is none; TrainingMismatchError for another run."""
    if not (out / CARD).exists():
        return None
    card = read_card(out)
    changes = [f"preset field {name} differs" for name in changed_fields(preset, card["preset"])]
    changes += changed_settings(config, card["config"])
    changes += [] if card["data"] == dict(data) else ["the data are others"]
    was = (card.get("reference") or {}).get("weights_sha256")
    changes += [] if was == (reference and reference.weights_sha256) else ["the reference policy is another"]
    if changes:
        raise TrainingMismatchError(
            f"{out} holds another run ({'; '.join(changes[:4])})",
            remedy="choose a new directory, or remove it",
            code="taken",
        )
    return card


def read_run(out: Path, card: Mapping[str, Any]) -> Tensors:
    """Read the tensors of a run that is not finished."""
    _, weights = read_weights(out, card)
    largest = LARGEST_HEADER + LARGEST_TRAINING * total_bytes(weights)
    return {"weights": weights, "training": read_tensors(out, card, "training", largest)}


def restore(run: Run, card: Mapping[str, Any], tensors: Tensors, where: str) -> None:
    """Copy the state of a save into a new run."""
    fit(run.ema.state_dict(), tensors["weights"], where)
    training = _training_tensors(run)
    fit(training, tensors["training"], where)
    if run.scaler.is_enabled():
        scale, growth = training["scaler"].tolist()
        run.scaler.load_state_dict(run.scaler.state_dict() | {"scale": scale, "_growth_tracker": int(growth)})
    run.step, run.positions, run.seconds = card["step"], card["positions"], float(card["seconds"])


def load_start(start: Path, preset: Preset) -> dict[str, Tensor]:
    """Load the averaged weights that a new run of the preset begins with."""
    network, card = load(start)
    if changes := changed_fields(preset, card["preset"]):
        raise TrainingMismatchError(
            f"{start} is of another preset ({', '.join(changes)} differ): start from one of this"
        )
    return network.state_dict()
