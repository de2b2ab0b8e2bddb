"""Settings of a training run, and what follows from them at each step: rates and averaging."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from engine.errors import UserError
from model.settings import Share, settings


class TrainConfigError(UserError):
    """A training setting is invalid."""


OptimizerName = Literal["auto", "adamw", "sgd", "muon"]
Decay = Literal["cosine", "linear", "step", "none"]
Precision = Literal["auto", "bf16", "off"]
Device = Literal["auto", "cpu", "cuda"]
ValueLoss = Literal["auto", "mse", "huber"]
Teach = Literal["auto", "policy", "value", "both", "none"]

DEFAULT_PRESET = "fianchetto-human"
"""Preset that is trained when none is named."""
MUON_PRESETS = frozenset({"fianchetto-human", "fianchetto-rated"})
"""Presets that `auto` trains by Muon, as docs/benchmarks.md does."""

FREE_TO_CHANGE = frozenset({"threads", "device", "save_seconds"})
"""Settings that a resumed run may change: they change the weights by rounding at most."""
LENGTHS = ("minutes", "steps", "epochs")
"""Settings of a run's length, which a resumed run may change too, if it stays in the same unit."""


@settings(TrainConfigError)
class TrainConfig:
    """Settings of one training run. Exactly one of `minutes`, `steps` and `epochs` sets its length.

    A run, finished or not, continues with another length, at the learning rate of its share of
    that.
    """

    minutes: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None
    """Length of the run in minutes of training, summed over resumes."""
    steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Length of the run in optimizer steps."""
    epochs: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None
    """Length of the run in passes over the training rows; fractions are allowed."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 256
    """Positions in one step, over all processes."""
    norm_rows: Annotated[int, Field(ge=2, le=10**6)] = 128
    """Rows of a batch norm's statistics: a batch is cut into equal microbatches of at least this
    many rows."""
    optimizer: OptimizerName = "auto"
    """Optimizer: adamw, sgd (Nesterov momentum), muon (for convolutions and linear layers, and
    AdamW for the rest), or auto: muon for fianchetto-human and fianchetto-rated, adamw for other
    networks."""
    learning_rate: Annotated[float, Field(ge=0.0, le=10.0)] = 5e-3
    """Highest learning rate, reached at the end of the warm-up; muon's is scaled to fit AdamW's."""
    momentum: Annotated[float, Field(ge=0.0, le=0.9999)] = 0.95
    """Momentum of sgd and muon."""
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = 0.05
    """Decay of convolution and linear weights, decoupled except for sgd; norms, biases and
    embeddings have none."""
    warmup: Share = 0.02
    """Share of the run in which the learning rate rises from zero."""
    decay: Decay = "linear"
    """Decay of the learning rate after the warm-up: linear, cosine, step or none."""
    drops: Annotated[int, Field(ge=1, le=100)] = 2
    """Drops of the learning rate with step decay, evenly spread; together they reach final_rate."""
    final_rate: Share = 0.002
    """Learning rate at the end of the run as a share of the highest."""
    ema: Annotated[float, Field(ge=0.0, le=0.999999)] = 0.999
    """Decay per step of the averaged weights, which a checkpoint keeps for use; 0 keeps the last
    weights."""
    label_smoothing: Annotated[float, Field(ge=0.0, le=0.999)] = 0.0
    """Share of the policy's target that is spread evenly over all legal moves."""
    visits_temperature: Annotated[float, Field(ge=0.05, le=100.0)] = 1.0
    """Temperature of a search's visits, the policy's target in searched rows; below 1 sharpens
    them."""
    legality_weight: Annotated[float, Field(ge=0.0, le=1e3)] = 0.02
    """Weight of minus the log of the legal moves' total probability; 1 makes the policy's loss the
    unmasked cross-entropy."""
    value_weight: Annotated[float, Field(ge=0.0, le=1e3)] = 0.25
    """Weight of the value loss beside the policy's cross-entropy among legal moves."""
    value_loss: ValueLoss = "auto"
    """Value loss: mse or huber of the score, or auto: cross-entropy for win, draw and loss, squared
    error for one number."""
    eval_blend: Share = 0.5
    """Share of the engine's evaluation in the value's target, where a row has one; the rest is the
    game's result. Positions without a game use the evaluation alone; at 0 they do not train the
    value."""
    engine_moves: bool = False
    """Also train the policy on positions that have an engine's move in place of a person's."""
    teach: Teach = "policy"
    """Targets of searched rows: policy (their visits), value (the best move's value), both, or
    none; fianchetto finetune trains on human rows alone then. auto means policy. With auto,
    fianchetto finetune compares the network's search with the hand-written player's on held-out
    positions: value by the hand-written player where that one errs less, else none. It takes value
    where the hand-written player was set to search, and policy where the network plays games."""
    keep_policy: bool = True
    """With teach=value, train the policy in searched rows towards that of the checkpoint that
    training starts from. If false, train it on the move that a person played, and towards the
    starting policy only where no move is known."""
    search_value_share: Share = 1.0
    """Share of the search's value in the value's target of searched rows, with teach=value or both;
    the rest is the target of other rows. Searched rows without a game use the search's value
    alone."""
    results: bool = True
    """Use results of games as targets of the value; without them, rows that have neither an
    evaluation (by eval_blend) nor a search's value do not train it."""
    frozen_norms: bool = False
    """Keep the batch norms' running statistics fixed, for short fine-tuning on unusual rows."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed of the initial weights and of the order of batches."""
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    """Processor threads of the network; 0 for all cores."""
    device: Device = "auto"
    """Where to train: auto (a GPU when there is one), cpu or cuda."""
    amp: Precision = "auto"
    """Mixed precision: auto (bf16 where the device gains by it), bf16 or off."""
    save_seconds: Annotated[float, Field(ge=0.0, le=1e6)] = 60.0
    """Seconds between saves: a killed run loses at most this much; 0 saves after each step."""
    validation_every_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Steps between validations; 0 spends 2 % of the training time on them, with at least five in a
    run in minutes."""
    patience: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Stop after this many validations without a lower sum of cross-entropy and the calibrated
    value's Brier score, and keep the best weights; 0 never stops early."""

    def __post_init__(self) -> None:
        if sum(length is not None for length in (self.minutes, self.steps, self.epochs)) != 1:
            raise TrainConfigError(
                "set the length of the run by exactly one of minutes, steps and epochs"
            )
        if self.search_value_share != 1.0 and not self.learns_search_values:
            raise TrainConfigError(
                f"search_value_share has no effect with teach={self.teach}: set teach=both or value"
            )
        if self.patience and not self.validation_every_steps:
            raise TrainConfigError(
                "patience counts validations: set validation_every_steps, so that they are regular"
            )

    @property
    def learns_visits(self) -> bool:
        """Whether visits are the policy's target in searched rows."""
        return self.teach in ("auto", "policy", "both")

    @property
    def learns_search_values(self) -> bool:
        """Whether a search's value is the value's target in searched rows."""
        return self.teach in ("value", "both")

    @property
    def microbatches(self) -> int:
        """Number of equal microbatches of a batch, of at least `norm_rows` rows if it has them."""
        most = max(1, self.batch_size // self.norm_rows)
        return max(count for count in range(1, most + 1) if self.batch_size % count == 0)


def resolve_optimizer(config: TrainConfig, preset: str) -> TrainConfig:
    """Return the configuration with the preset's usual optimizer in place of `auto`."""
    if config.optimizer != "auto":
        return config
    return replace(config, optimizer="muon" if preset in MUON_PRESETS else "adamw")


def changed_settings(config: TrainConfig, row: Mapping[str, Any]) -> list[str]:
    """Describe the settings that differ from those of a card and that a resumed run may not change.

    A setting that the card lacks had its default.
    """
    changes = []
    for field in fields(TrainConfig):
        name, mine = field.name, getattr(config, field.name)
        was = row.get(name, field.default)
        is_free = name in FREE_TO_CHANGE or (name in LENGTHS and None not in (was, mine))
        if was != mine and not is_free:
            changes.append(f"{name} was {was}, is {mine}")
    return changes


def has_other_length(config: TrainConfig, row: Mapping[str, Any]) -> bool:
    """Return whether the length of a run differs from that of a card."""
    return any(getattr(config, name) != row.get(name) for name in LENGTHS)


def total_steps(config: TrainConfig, epoch_rows: int | None) -> int | None:
    """Return the length of a run in steps, None when it is set in minutes."""
    if config.epochs is None:
        return config.steps
    assert epoch_rows is not None, "a run in epochs needs the rows of one"
    return max(1, math.ceil(config.epochs * epoch_rows / config.batch_size))


def fraction_done(config: TrainConfig, steps: int | None, step: int, seconds: float) -> float:
    """Return the share of a run that is done, 0 to 1, before `step` and after `seconds`."""
    if steps is not None:
        return min(1.0, step / steps)
    assert config.minutes is not None
    return min(1.0, seconds / (60 * config.minutes))


def learning_rate(config: TrainConfig, fraction: float) -> float:
    """Return the learning rate when that fraction of the run is done."""
    if fraction < config.warmup:
        return config.learning_rate * max(fraction / config.warmup, 0.01)
    after = (fraction - config.warmup) / max(1e-9, 1 - config.warmup)
    return config.learning_rate * _decayed_share(config, after)


def _decayed_share(config: TrainConfig, after: float) -> float:
    """Return the rate as a share of the highest, at a fraction of the run after the warm-up."""
    if config.decay == "none":
        return 1.0
    if config.decay == "step":  # by one factor at each drop; a final rate of 0 is a thousandth
        fallen = min(config.drops, int(after * (config.drops + 1) + 1e-9))
        return float(max(config.final_rate, 1e-3) ** (fallen / config.drops))
    left = (1 + math.cos(math.pi * after)) / 2 if config.decay == "cosine" else 1 - after
    return config.final_rate + (1 - config.final_rate) * left


def ema_decay(config: TrainConfig, step: int) -> float:
    """Return the decay of the averaged weights: shorter at first, to forget the initial ones."""
    return min(config.ema, (1 + step) / (10 + step)) if config.ema else 0.0
