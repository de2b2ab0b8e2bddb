"""The seed that a fine-tune is kept near: its policy on the same rows, and how far the network's is from it.

Axes: B batch, A index of the move vocabulary.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import UserError
from model.checkpoint import load
from model.data.outputs import flat
from model.network.network import Network
from model.network.preset import Preset, changed_fields
from model.training.config import TrainConfig
from model.training.precision import autocast

OUT_OF_PLAY = -1e9
"""Logit of an illegal move: its probability is zero, and its share of a divergence is zero and no NaN."""


class TeacherError(UserError):
    """A checkpoint that cannot teach this network."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A network that only answers."""

    network: Network
    name: str
    """The folder's name, for people."""
    weights_sha256: str
    """Hash of the file of its weights."""
    device: torch.device
    dtype: torch.dtype
    """Arithmetic of its convolutions, that of the run."""

    def on(self, device: torch.device, dtype: torch.dtype) -> "Teacher":
        """Give the same teacher on a device and in an arithmetic."""
        return replace(self, network=self.network.to(device), device=device, dtype=dtype)

    def row(self) -> dict[str, str]:
        """Write who it is as a card's plain values."""
        return {"name": self.name, "weights_sha256": self.weights_sha256}

    def logits(self, read: Tensor | dict[str, Tensor]) -> Tensor:
        """Answer what the network in training is called with: logits float32 `[B, A]`, through which no gradient goes."""
        with torch.inference_mode(), autocast(self.device, self.dtype):
            logits_BA = flat(self.network(read)[0])
        return logits_BA.clone()  # made outside, so that a backward pass may keep it


def teacher_of(directory: Path, preset: Preset) -> Teacher:
    """Load a checkpoint as the teacher of a network, or raise TeacherError where it is of another preset."""
    network, card = load(directory)
    if changes := changed_fields(preset, card["preset"]):
        raise TeacherError(
            f"{directory} is of another preset ({', '.join(changes)} differ), and cannot teach {preset.name}: its policy "
            "answers another question"
        )
    network.requires_grad_(False)
    name, weights = directory.resolve().name, card["files"]["weights"]["sha256"]
    return Teacher(network, name, weights, torch.device("cpu"), torch.float32)


def is_kept_near(config: TrainConfig) -> bool:
    """Tell whether a run has a teacher."""
    return config.seed_kl_weight > 0 or config.seed_kl_final > 0


def divergence(seed_BA: Tensor, logits_BA: Tensor, legal_BA: Tensor) -> Tensor:
    """Give each row's Kullback-Leibler divergence from the seed's policy to the network's among legal moves, in nats `[B]`.

    It is the sum of p log(p / q), p the seed's: moves that the seed plays must not be forgotten.
    """
    log_p_BA = F.log_softmax(seed_BA.float().masked_fill(~legal_BA, OUT_OF_PLAY), 1)
    log_q_BA = F.log_softmax(logits_BA.float().masked_fill(~legal_BA, OUT_OF_PLAY), 1)
    return (log_p_BA.exp() * (log_p_BA - log_q_BA)).sum(1)
