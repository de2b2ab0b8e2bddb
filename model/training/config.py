"""What a training run is told; `model.training.schedules` says what follows from it at each step."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from engine.errors import UserError


class TrainConfigError(UserError):
    """Name the setting that cannot be, and what it may be."""


OptimizerName = Literal["auto", "adamw", "nadamw", "sgd", "muon"]
Decay = Literal["cosine", "linear", "step", "none"]
Precision = Literal["auto", "bf16", "fp16", "off"]
Device = Literal["auto", "cpu", "cuda"]
ValueLoss = Literal["auto", "mse", "huber"]
SearchValue = Literal["root", "best"]

DEFAULT_PRESET = "fianchetto-human"
"""What is trained where nobody names a preset."""
BY_MUON = frozenset({"fianchetto-human", "fianchetto-rated"})
"""Presets that `auto` trains by Muon: those whose figures in docs/benchmarks.md are of it."""

FREE_TO_CHANGE = frozenset(
    {
        "threads",
        "device",
        "compile",
        "save_every_seconds",
        "report_every_steps",
        "validation_positions",
        "validation_share",
        "spike",
        "tensorboard",
    }
)
"""Settings that a resumed run may change: they leave the weights as they are, but for rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Settings of one training run; one of `minutes`, `steps` and `epochs` says how long it is."""

    minutes: float | None = None
    """Length of the run in minutes of training, summed over resumes."""
    steps: int | None = None
    """Length of the run in optimizer steps."""
    epochs: float | None = None
    """Length of the run in passes over the training rows; a part of one counts as a part."""
    batch_size: int = 256
    """Positions in one step, of all processes together."""
    parts: int = 0
    """Parts that a batch is cut into, each with batch norms of its own. A processor's threads work on several at once; a GPU
    takes one after the other, which needs less memory. 0: parts of about 128 positions on a processor, one part on each
    GPU."""
    optimizer: OptimizerName = "auto"
    """Optimizer: adamw, nadamw, sgd (Nesterov momentum), muon (for convolutions and linear layers, and AdamW for the rest),
    or auto: muon for fianchetto-human and fianchetto-rated, adamw for others; a run that is continued keeps its own."""
    learning_rate: float = 5e-3
    """Highest rate of the optimizer, reached at the end of the warm-up; muon's is scaled to fit AdamW's."""
    momentum: float = 0.95
    """Share of the last step's direction that sgd and muon keep."""
    weight_decay: float = 0.05
    """Decay of convolution and linear weights, decoupled but for sgd; norms, biases and embeddings have none."""
    warmup: float = 0.02
    """Share of the run in which the rate rises from zero."""
    decay: Decay = "linear"
    """How the rate falls after the warm-up: linear, cosine, step or none."""
    drops: int = 2
    """With decay step, how many times the rate falls, evenly spread; together they reach final_rate."""
    final_rate: float = 0.002
    """Rate at the end of the run as a share of the highest."""
    ema: float = 0.999
    """Decay per step of the averaged weights, which are the ones that are kept for use; 0 keeps the last weights."""
    clip: float = 1.0
    """Largest norm of the gradient; longer ones are scaled down to it."""
    label_smoothing: float = 0.0
    """Share of the policy's target that is spread evenly over the legal moves."""
    visits_share: float = 1.0
    """Share of the policy's target that is a search's visits, in rows that have them; the rest is the played move."""
    visits_temperature: float = 1.0
    """Visits are raised to one over this and rescaled: below 1 sharpens them, above 1 flattens."""
    conditional_weight: float = 1.0
    """In a factored policy, weight of the loss of a move's target beside that of its piece; 1 is the plain cross-entropy."""
    legality_weight: float = 0.02
    """Weight of minus the logarithm of the legal moves' total probability; with 1 the policy's loss is the unmasked
    cross-entropy."""
    value_weight: float = 0.25
    """Weight of the value loss beside the policy's cross-entropy among legal moves."""
    value_loss: ValueLoss = "auto"
    """Value loss: mse or huber of the score, or auto: cross-entropy where the network gives win, draw and loss, squared
    error where it gives one number."""
    huber_delta: float = 0.5
    """Error of the score (from -1 to 1) beyond which huber grows linearly."""
    eval_blend: float = 0.0
    """Share of the value's target that is the engine's evaluation, in rows that have one; the rest is the game's result."""
    root_value_share: float = 0.0
    """Share of the value's target that is a search's value, in rows that have one; the rest is as in rows without. In searched
    rows that belong to no game it is all of it, or with 0 they teach no value."""
    search_value: SearchValue = "root"
    """Which value of a search: root, the mean of its simulations; or best, that of its best move where a row has it."""
    frozen_norms: bool = False
    """Leave the batch norms' running statistics as they are and use them: for few steps on rows unlike those before."""
    seed_kl_weight: float = 0.0
    """Weight of the Kullback-Leibler divergence from the reference policy: that of the checkpoint in --start, or of the
    supervised one."""
    seed_kl_final: float = 0.0
    """That weight at the end of the run; in between it changes linearly."""
    moves_left_weight: float = 0.05
    """Weight of the moves-left loss, in a network that predicts how long the game will last."""
    seed: int = 0
    """Seed of the fresh weights and of the order of batches."""
    threads: int = 0
    """Processor threads of the network; 0 for all cores that torch sees."""
    device: Device = "auto"
    """Where to train: auto (a GPU when there is one), cpu or cuda."""
    amp: Precision = "auto"
    """Half-width arithmetic: auto (bf16 where the device gains by it), bf16, fp16 (with a scaled loss) or off."""
    compile: bool = False
    """Compile the network with torch.compile: a minute or so at the start, for faster steps on a GPU."""
    save_every_seconds: float = 60.0
    """Seconds between saves; a killed run loses at most so much."""
    report_every_steps: int = 50
    """Steps averaged in one line of metrics.jsonl."""
    spike: float = 3.0
    """Stop the run when the mean loss of a line of metrics.jsonl is so many nats above the lowest one; 0 for never."""
    validation_positions: int = 16384
    """Unseen positions that each measurement takes."""
    validation_share: float = 0.02
    """Largest share of the training time that measurements may take; the last one is not counted."""
    validation_every_steps: int = 0
    """Steps between measurements; 0 for as often as validation_share allows."""
    patience: int = 0
    """End the run after so many measurements without a lower validation cross-entropy, and keep the best weights; 0 for
    never."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too, into the checkpoint's folder (needs the extra `tensorboard`)."""

    def __post_init__(self) -> None:
        if sum(length is not None for length in (self.minutes, self.steps, self.epochs)) != 1:
            raise TrainConfigError("say how long to train: either minutes or steps or epochs, and just one of them")
        for name, choices in words().items():
            if getattr(self, name) not in choices:
                raise TrainConfigError(f"{name} is {getattr(self, name)!r}, and must be one of {', '.join(choices)}")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # false for NaN too
                raise TrainConfigError(f"{name} is {value}, and must be from {low} to {high}")
        if self.parts and self.batch_size % self.parts:
            raise TrainConfigError(f"a batch_size of {self.batch_size} cannot be cut into {self.parts} equal parts")
        if self.patience and not self.validation_every_steps:
            raise TrainConfigError("patience counts measurements: say validation_every_steps, so that they are regular")


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Return the settings that are words, each with the words there are."""
    kinds = get_type_hints(TrainConfig)
    return {name: get_args(kind) for name, kind in kinds.items() if get_origin(kind) is Literal}


LIMITS: dict[str, tuple[float, float]] = {
    "minutes": (1e-3, 1e6),
    "steps": (1, 10**9),
    "epochs": (1e-6, 1e6),
    "batch_size": (2, 10**6),
    "parts": (0, 10**4),
    "learning_rate": (0.0, 10.0),
    "momentum": (0.0, 0.9999),
    "weight_decay": (0.0, 10.0),
    "warmup": (0.0, 1.0),
    "drops": (1, 100),
    "final_rate": (0.0, 1.0),
    "ema": (0.0, 0.999999),
    "clip": (1e-6, 1e6),
    "label_smoothing": (0.0, 0.999),
    "visits_share": (0.0, 1.0),
    "visits_temperature": (0.05, 100.0),
    "conditional_weight": (0.0, 1e3),
    "legality_weight": (0.0, 1e3),
    "value_weight": (0.0, 1e3),
    "huber_delta": (1e-3, 2.0),
    "eval_blend": (0.0, 1.0),
    "root_value_share": (0.0, 1.0),
    "seed_kl_weight": (0.0, 1e3),
    "seed_kl_final": (0.0, 1e3),
    "moves_left_weight": (0.0, 1e3),
    "seed": (0, 2**63 - 1),
    "threads": (0, 4096),
    "save_every_seconds": (0.0, 1e6),
    "report_every_steps": (1, 10**6),
    "spike": (0.0, 1e6),
    "validation_positions": (1, 10**9),
    "validation_share": (0.0, 1.0),
    "validation_every_steps": (0, 10**9),
    "patience": (0, 10**6),
}
"""The settings that are numbers: least and most."""


def config_row(config: TrainConfig) -> dict[str, Any]:
    """Write a configuration as the plain values that a checkpoint's card holds."""
    return asdict(config)


def with_optimizer(config: TrainConfig, preset: str, row: Mapping[str, Any] | None = None) -> TrainConfig:
    """Return the configuration with an optimizer in place of `auto`: that of `row`, a card's settings, or the preset's."""
    if config.optimizer != "auto":
        return config
    usual: OptimizerName = "muon" if preset in BY_MUON else "adamw"
    return replace(config, optimizer=usual if row is None else row.get("optimizer", "adamw"))


def changed_settings(config: TrainConfig, row: dict[str, Any]) -> list[str]:
    """Describe the settings in which a run differs from the one that a card describes and that it may not change.

    A setting that is younger than the card did then what its default does now; the optimizer was adamw, and `auto` keeps it.
    """
    changes = []
    row = {"optimizer": "adamw"} | row
    for field in fields(TrainConfig):
        mine = getattr(config, field.name)
        was = row.get(field.name, None if field.default is MISSING else field.default)
        if field.name == "optimizer" and mine == "auto":
            continue
        if field.name not in FREE_TO_CHANGE and was != mine:
            changes.append(f"{field.name} was {was}, is {mine}")
    return changes
