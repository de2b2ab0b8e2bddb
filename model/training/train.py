"""The trainer: batches in, a checkpoint out, resumable at any moment.

It knows nothing of files of positions: whoever calls it hands it a function that opens batches at a step. Started by
torchrun, it is one process of several, and is handed its share of each batch.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import UserError
from engine.progress import Progress, Stop
from model.checkpoint import (
    CARD,
    LARGEST_HEADER,
    LARGEST_TRAINING,
    load,
    locked,
    read_card,
    read_tensors,
    read_weights,
    total_bytes,
)
from model.data.inputs import Batch
from model.network.memory import memory_errors
from model.network.preset import Preset, changed_fields
from model.training.config import TrainConfig, TrainConfigError, changed_settings, with_optimizer
from model.training.distributed import World, broadcast, process_group, run_on_first, world
from model.training.objective.distillation import ReferencePolicy, has_reference, load_reference
from model.training.precision import device_for, keep_freed_memory
from model.training.state import DivergedError, begin, restore
from model.training.trainer import Batches, Loop, TrainingDataError, Validation

__all__ = [
    "Batch",
    "DivergedError",
    "TrainConfig",
    "TrainingDataError",
    "TrainingMismatchError",
    "train",
]


class TrainingMismatchError(UserError):
    """The directory holds a run of another preset, configuration or data."""


def train(
    config: TrainConfig,
    preset: Preset,
    open_batches: Batches,
    out: Path,
    *,
    validation: Validation | None,
    data: Mapping[str, Any],
    progress: Progress,
    stop: Stop,
    epoch_rows: int | None = None,
    start: Path | None = None,
    reference: Path | None = None,
    admit: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train a preset until its minutes, steps or epochs are over and return the checkpoint's card, with a `message`.

    A run found in `out` is continued from its last save, and a finished one is given back as it is. `stop` is asked before
    each step and now and then inside of one; when it says True, the run is saved as of its last whole step and given back
    unfinished. Minutes count from the first step: what is compiled and measured before it is no part of them. `epoch_rows`
    is the number of training rows of an epoch, in all processes. A fresh run begins with the weights of the
    checkpoint `start`, where one is given; where the configuration says so, its policy is kept near that of the checkpoint
    `reference`, which the card names. `admit` is called before anything is written, and raises where `out` is somebody
    else's. Raises TrainingMismatchError for a run that is not this one, or a start of another preset,
    CheckpointBusyError while another trainer is at it, DivergedError when the loss is not finite or rose by `config.spike`
    (the last save stays), TrainingDataError when the batches end too soon, CheckpointError.
    """
    if config.epochs is not None and not epoch_rows:
        raise TrainConfigError("a run given in epochs must be told how many rows an epoch has")
    if config.patience and validation is None:
        raise TrainConfigError("patience counts measurements, and there are no validation positions to measure on")
    kept_near = _reference(config, preset, reference)
    place = world()
    device = device_for(config.device, place.local if place.size > 1 else None)
    with process_group(place, device), _alone(out, place, admit):
        card = run_on_first(place, lambda: _found(config, preset, out, data, kept_near))
        if card is not None and card["finished"]:
            did = f"{card['step']} steps, {card['positions']} positions"
            return {**card, "message": f"{out} is finished already: {did}"}
        config = with_optimizer(config, preset.name, None if card is None else card["config"])
        threads = torch.get_num_threads()
        try:
            if config.threads:
                torch.set_num_threads(config.threads)
            if device.type == "cpu":
                keep_freed_memory()
            # Files are compared with the preset before the run is built: who made them is not known
            tensors = None if card is None else _read_run(out, card)
            start_weights = None if start is None or card is not None else _load_start(start, preset)
            # A run keeps its parts on another device: one from before there were parts had one
            run = begin(config, preset, place, kept_near, 0 if card is None else card.get("parts", 1))
            if card is not None and tensors is not None:
                restore(run, card, tensors, str(out))
            elif start_weights is not None:
                for network in (run.network, run.ema):
                    network.load_state_dict(start_weights)
            broadcast(place, [0.0])  # all have read what process 0 is about to replace
            with memory_errors(f"training {preset.name}", "choose a smaller --batch-size, or free some"):
                return Loop(run, out, card, validation, data, progress, epoch_rows).go(open_batches, stop)
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _alone(out: Path, place: World, admit: Callable[[], None]) -> Iterator[None]:
    """Make the directory of a run, and keep other trainers out of it meanwhile; process 0 does it for all."""
    with ExitStack() as held:

        def enter() -> None:
            admit()
            held.enter_context(locked(out))

        run_on_first(place, enter)
        yield


def _read_run(out: Path, card: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Read the tensors of a run that is not finished."""
    _, weights = read_weights(out, card)
    largest = LARGEST_HEADER + LARGEST_TRAINING * total_bytes(weights)
    return {"weights": weights, "training": read_tensors(out, card, "training", largest)}


def _load_start(start: Path, preset: Preset) -> dict[str, Tensor]:
    """Load the averaged weights that a new run of the preset begins with."""
    network, card = load(start)
    if changes := changed_fields(preset, card["preset"]):
        raise TrainingMismatchError(
            f"{start} is of another preset ({', '.join(changes)} differ): start from one of this"
        )
    return network.state_dict()


def _reference(config: TrainConfig, preset: Preset, directory: Path | None) -> ReferencePolicy | None:
    """Load the policy that the run is kept near; None where the configuration asks for none."""
    if not has_reference(config):
        return None
    if directory is None:
        raise TrainConfigError(
            "seed_kl_weight and seed_kl_final keep a run near the checkpoint that it begins with: name one"
        )
    return load_reference(directory, preset)


def _found(
    config: TrainConfig, preset: Preset, out: Path, data: Mapping[str, Any], reference: ReferencePolicy | None
) -> dict[str, Any] | None:
    """Find the run to continue: None when the directory is free, TrainingMismatchError when another's run is in it."""
    if not (out / CARD).exists():
        return None
    card = read_card(out)
    changes = [f"preset field {name} differs" for name in changed_fields(preset, card["preset"])]
    changes += changed_settings(config, card["config"])
    changes += [] if card["data"] == dict(data) else ["the data are others"]
    near = card.get("teacher")
    near_hash = near.get("weights_sha256") if isinstance(near, dict) else None
    changes += [] if near_hash == (reference and reference.weights_sha256) else ["the reference policy is another"]
    if changes:
        raise TrainingMismatchError(
            f"{out} holds another run ({'; '.join(changes[:4])}): choose a new directory, or remove it"
        )
    return card
