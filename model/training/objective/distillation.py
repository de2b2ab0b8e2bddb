"""The reference policy that a fine-tune is kept near: its logits on the same rows, and the KL divergence from it.

Axes: B batch, A index of the move vocabulary.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import UserError
from model.checkpoint import load
from model.data.inputs import NetworkInput
from model.data.outputs import flat
from model.network.network import Network
from model.network.preset import Preset, changed_fields
from model.training.config import TrainConfig
from model.training.precision import autocast

OUT_OF_PLAY = -1e9
"""Logit of an illegal move: its probability is zero, and its share of a divergence is zero and no NaN."""


class ReferencePolicyError(UserError):
    """A checkpoint that cannot be this network's reference."""


@dataclass(frozen=True, slots=True)
class ReferencePolicy:
    """A frozen network whose policy is the reference."""

    network: Network
    name: str
    """The folder's name, for people."""
    weights_sha256: str
    """Hash of the file of its weights."""
    device: torch.device
    dtype: torch.dtype
    """Arithmetic of its convolutions, that of the run."""

    def on(self, device: torch.device, dtype: torch.dtype) -> "ReferencePolicy":
        """Return the same reference on a device and in an arithmetic."""
        return replace(self, network=self.network.to(device), device=device, dtype=dtype)

    def row(self) -> dict[str, str]:
        """Return what a card says of it."""
        return {"name": self.name, "weights_sha256": self.weights_sha256}

    def logits(self, read: NetworkInput) -> Tensor:
        """Return its logits, float32 `[B, A]`, on the input of the network in training; no gradient goes through them."""
        with torch.inference_mode(), autocast(self.device, self.dtype):
            logits_BA = flat(self.network(read)[0])
        return logits_BA.clone()  # made outside, so that a backward pass may keep it


def load_reference(directory: Path, preset: Preset) -> ReferencePolicy:
    """Load a checkpoint as the reference of a network, or raise ReferencePolicyError where it is of another preset."""
    network, card = load(directory)
    if changes := changed_fields(preset, card["preset"]):
        raise ReferencePolicyError(
            f"{directory} is of another preset ({', '.join(changes)} differ), and cannot be the reference of {preset.name}"
        )
    network.requires_grad_(False)
    name, weights = directory.resolve().name, card["files"]["weights"]["sha256"]
    return ReferencePolicy(network, name, weights, torch.device("cpu"), torch.float32)


def has_reference(config: TrainConfig) -> bool:
    """Return whether a run is kept near a reference policy."""
    return config.seed_kl_weight > 0 or config.seed_kl_final > 0


def divergence(reference_BA: Tensor, logits_BA: Tensor, legal_BA: Tensor) -> Tensor:
    """Return each row's KL divergence from the reference to the network's policy among legal moves, in nats `[B]`.

    It is the sum of p log(p / q), p the reference's: moves that the reference plays must not be forgotten.
    """
    log_p_BA = F.log_softmax(reference_BA.float().masked_fill(~legal_BA, OUT_OF_PLAY), 1)
    log_q_BA = F.log_softmax(logits_BA.float().masked_fill(~legal_BA, OUT_OF_PLAY), 1)
    return (log_p_BA.exp() * (log_p_BA - log_q_BA)).sum(1)
