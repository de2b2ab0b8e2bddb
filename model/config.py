"""What a training run is told, and the rates that follow from how far it has come."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from engine.errors import UserError


class TrainConfigError(UserError):
    """Name the setting that cannot be, and what it may be."""


Decay = Literal["cosine", "linear", "none"]
Precision = Literal["auto", "bf16", "off"]
Device = Literal["auto", "cpu", "cuda"]

FREE_TO_CHANGE = frozenset(
    {"threads", "device", "save_every_seconds", "report_every_steps", "validation_positions", "validation_share"}
)
"""Settings that a resumed run may change: they leave the weights as they are, but for rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Settings of one training run; either `minutes` or `steps` says how long it is."""

    minutes: float | None = None
    """Length of the run in minutes of training, summed over resumes."""
    steps: int | None = None
    """Length of the run in optimizer steps."""
    batch_size: int = 256
    """Positions in one step."""
    learning_rate: float = 5e-3
    """Highest rate of AdamW, reached at the end of the warm-up."""
    weight_decay: float = 0.05
    """Decoupled decay of convolution and linear weights; norms and biases have none."""
    warmup: float = 0.02
    """Share of the run in which the rate rises from zero."""
    decay: Decay = "cosine"
    """How the rate falls after the warm-up: cosine, linear or none."""
    final_rate: float = 0.002
    """Rate at the end of the run as a share of the highest."""
    ema: float = 0.999
    """Decay per step of the averaged weights, which are the ones that are kept for use; 0 keeps the last weights."""
    clip: float = 1.0
    """Largest norm of the gradient; longer ones are scaled down to it."""
    value_weight: float = 0.25
    """Weight of the value loss beside the policy's cross-entropy among legal moves."""
    legality_weight: float = 0.02
    """Weight of minus the log of the probability on legal moves, which keeps the unmasked policy sane."""
    seed: int = 0
    """Seed of the fresh weights and of the order of batches."""
    threads: int = 0
    """Processor threads of the network, 0 for all that torch sees."""
    device: Device = "auto"
    """Where to train: auto (a GPU when there is one), cpu or cuda."""
    amp: Precision = "auto"
    """Half-width arithmetic: auto (bf16 where the processor has it), bf16 or off."""
    save_every_seconds: float = 60.0
    """Time between saves, at most this much work is lost."""
    report_every_steps: int = 50
    """Steps averaged in one line of metrics.jsonl."""
    validation_positions: int = 16384
    """Unseen positions that the averaged weights are measured on each time."""
    validation_share: float = 0.02
    """Largest share of the time that measuring may take before the end."""

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise TrainConfigError("say how long to train: either minutes or steps, and not both")
        for name, kind in (("decay", Decay), ("amp", Precision), ("device", Device)):
            if getattr(self, name) not in get_args(kind):
                raise TrainConfigError(
                    f"{name} is {getattr(self, name)!r}, and must be one of {', '.join(get_args(kind))}"
                )
        for name, low, high in (
            ("minutes", 1e-3, 1e6),
            ("steps", 1, 10**9),
            ("batch_size", 2, 10**6),
            ("learning_rate", 0.0, 10.0),
            ("weight_decay", 0.0, 10.0),
            ("warmup", 0.0, 1.0),
            ("final_rate", 0.0, 1.0),
            ("ema", 0.0, 0.999999),
            ("clip", 1e-6, 1e6),
            ("value_weight", 0.0, 1e3),
            ("legality_weight", 0.0, 1e3),
            ("seed", 0, 2**63 - 1),
            ("threads", 0, 4096),
            ("save_every_seconds", 0.0, 1e6),
            ("report_every_steps", 1, 10**6),
            ("validation_positions", 1, 10**9),
            ("validation_share", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # false for NaN too
                raise TrainConfigError(f"{name} is {value}, and must be from {low} to {high}")


def config_row(config: TrainConfig) -> dict[str, Any]:
    """Write a configuration as the plain values that a checkpoint's card holds."""
    return asdict(config)


def changed_settings(config: TrainConfig, row: dict[str, Any]) -> list[str]:
    """Describe the settings in which a run differs from the one that a card describes and that it may not change."""
    mine = config_row(config)
    names = [field.name for field in fields(TrainConfig) if field.name not in FREE_TO_CHANGE]
    return [f"{name} was {row.get(name)}, is {mine[name]}" for name in names if row.get(name) != mine[name]]


def progressed(config: TrainConfig, step: int, seconds: float) -> float:
    """Tell how much of the run is done, 0 to 1, before `step` and after `seconds` of training."""
    if config.steps is not None:
        return min(1.0, step / config.steps)
    assert config.minutes is not None
    return min(1.0, seconds / (60 * config.minutes))


def learning_rate(config: TrainConfig, fraction: float) -> float:
    """Give the rate when that fraction of the run is done: a straight rise, then the decay."""
    if fraction < config.warmup:
        return config.learning_rate * max(fraction / config.warmup, 0.01)
    after = (fraction - config.warmup) / max(1e-9, 1 - config.warmup)
    shape = {"cosine": (1 + math.cos(math.pi * after)) / 2, "linear": 1 - after, "none": 1.0}[config.decay]
    return config.learning_rate * (config.final_rate + (1 - config.final_rate) * shape)


def ema_decay(config: TrainConfig, step: int) -> float:
    """Give the decay of the average after `step` steps: short at first, to forget the fresh weights."""
    return min(config.ema, (1 + step) / (10 + step)) if config.ema else 0.0
