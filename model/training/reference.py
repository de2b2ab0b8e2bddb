"""The reference policy that fine-tuning stays near: a frozen network, called on the same rows as the one in training.

Axes: B batch, A index of the move vocabulary.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import UserError
from model.checkpoint import load
from model.data.inputs import NetworkInput
from model.data.outputs import flatten_policy
from model.network.network import Network
from model.network.preset import Preset, changed_fields
from model.training.config import TrainConfig, TrainConfigError
from model.training.precision import autocast


class ReferencePolicyError(UserError):
    """A checkpoint that cannot be this network's reference."""


@dataclass(frozen=True, slots=True)
class ReferencePolicy:
    """A frozen network whose policy is the reference."""

    network: Network
    name: str
    """Name of its folder."""
    weights_sha256: str
    """Hash of its weights' file."""
    device: torch.device
    dtype: torch.dtype
    """Arithmetic of its convolutions, that of the run."""

    def on(self, device: torch.device, dtype: torch.dtype) -> "ReferencePolicy":
        """Return the same reference on a device and in an arithmetic."""
        return replace(self, network=self.network.to(device), device=device, dtype=dtype)

    def row(self) -> dict[str, str]:
        """Return its entry in a card."""
        return {"name": self.name, "weights_sha256": self.weights_sha256}

    def logits(self, read: NetworkInput) -> Tensor:
        """Return its logits, float32 `[B, A]`, on the inputs of the network in training, without gradients."""
        with torch.inference_mode(), autocast(self.device, self.dtype):
            logits_BA = flatten_policy(self.network(read)[0])
        return logits_BA.clone()  # made outside inference mode, so that a backward pass may keep it


def load_reference(config: TrainConfig, preset: Preset, directory: Path | None) -> ReferencePolicy | None:
    """Load the checkpoint that a run stays near; None where the configuration gives its divergence no weight.

    Raises TrainConfigError without a checkpoint, and ReferencePolicyError for one of another preset.
    """
    if not config.reference_kl_weight and not config.reference_kl_final:
        return None
    if directory is None:
        raise TrainConfigError(
            "reference_kl_weight and reference_kl_final keep a run near the checkpoint that it starts from: name one"
        )
    network, card = load(directory)
    if changes := changed_fields(preset, card["preset"]):
        raise ReferencePolicyError(
            f"{directory} is of another preset ({', '.join(changes)} differ), and cannot be the reference of {preset.name}"
        )
    network.requires_grad_(False)
    name, weights = directory.resolve().name, card["files"]["weights"]["sha256"]
    return ReferencePolicy(network, name, weights, torch.device("cpu"), torch.float32)
