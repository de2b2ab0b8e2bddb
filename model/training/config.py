"""Settings of a training run, and its schedules for learning rate and weight averaging."""

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

DEFAULT_PRESET = "fianchetto-human"
"""Preset that is trained by default."""
MUON_PRESETS = frozenset(
    {"fianchetto-human", "fianchetto-human-m", "fianchetto-human-l", "fianchetto-rated"}
)
"""Presets that optimizer `auto` trains with Muon (measured in docs/benchmarks.md)."""

CHANGEABLE_SETTINGS = frozenset({"threads", "device", "graphs", "save_seconds", "log"})
"""Settings that a resumed run may change; they affect the weights by rounding at most."""
LENGTH_SETTINGS = ("minutes", "steps", "epochs")
"""Settings of a run's length. A resumed run may change the length, but not its unit."""


@settings(TrainConfigError)
class TrainConfig:
    """Settings of one training run. Exactly one of `minutes`, `steps` and `epochs` sets its length.

    A run, finished or not, can be continued with a different length. Its learning rate then follows
    the schedule of the new length.
    """

    minutes: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None
    """Length of the run in minutes, in total over all resumes; or set steps or epochs instead."""
    steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Length of the run in optimizer steps."""
    epochs: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None
    """Length of the run in passes over the training rows; may be a fraction. `finetune` accepts
    only epochs, as passes over the searched rows of recent generations."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 256
    """Positions per step, over all processes."""
    norm_rows: Annotated[int, Field(ge=2, le=10**6)] = 128
    """Minimum number of rows for batch-norm statistics: a larger batch is split into equal
    microbatches of at least this size."""
    optimizer: OptimizerName = "auto"
    """Optimizer: adamw, sgd (Nesterov momentum), muon (for convolutions and linear layers, with
    AdamW for the rest), or auto (muon for fianchetto-human, -human-m, -human-l and -rated, adamw
    for other networks)."""
    learning_rate: Annotated[float, Field(ge=0.0, le=10.0)] = 5e-3
    """Peak learning rate, reached at the end of the warm-up; muon's steps are scaled to the size of
    AdamW's."""
    momentum: Annotated[float, Field(ge=0.0, le=0.9999)] = 0.95
    """Momentum of sgd and muon."""
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = 0.05
    """Weight decay of convolution and linear weights, decoupled except for sgd; norms, biases and
    embeddings do not decay."""
    warmup: Share = 0.02
    """Share of the run during which the learning rate rises from a hundredth of its peak."""
    decay: Literal["cosine", "linear", "step", "none"] = "linear"
    """Decay of the learning rate after the warm-up: linear, cosine, step or none."""
    drops: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of evenly spaced drops of the learning rate, with decay=step; the last drop reaches
    final_rate, or 0.001 of the peak if that is higher."""
    final_rate: Share = 0.002
    """Learning rate at the end of the run, as a share of the peak; without effect if decay=none."""
    ema: Annotated[float, Field(ge=0.0, le=0.999999)] = 0.999
    """Decay per step of the averaged weights, which are used for inference; 0 uses the last weights
    instead."""
    label_smoothing: Annotated[float, Field(ge=0.0, le=0.999)] = 0.0
    """Share of the policy target that is spread evenly over all legal moves."""
    visits_temperature: Annotated[float, Field(ge=0.05, le=100.0)] = 1.0
    """Temperature of the visit distribution, which is the policy target of searched rows with
    teach=policy or both; values below 1 sharpen it."""
    legality_weight: Annotated[float, Field(ge=0.0, le=1e3)] = 0.02
    """Weight of the penalty on illegal moves, which is -log of the legal moves' total probability;
    1 makes the policy loss the unmasked cross-entropy."""
    value_weight: Annotated[float, Field(ge=0.0, le=1e3)] = 0.25
    """Weight of the value loss relative to the policy's cross-entropy."""
    value_loss: Literal["auto", "mse", "huber"] = "auto"
    """Value loss: mse or huber on the score, or auto (cross-entropy for a wdl head, mse for a tanh
    head)."""
    eval_blend: Share = 0.5
    """Share of the engine evaluation in the value target of rows that have one; the result makes
    up the rest. Positions without a game use only the evaluation; at 0 they do not train the
    value."""
    engine_moves: bool = False
    """Also train the policy on moves of engines and self-play, instead of only on human moves."""
    teach: Literal["auto", "policy", "value", "both", "none"] = "policy"
    """Heads that learn from searched rows: policy (from the visits), value (from the best move's
    value), both or none; auto chooses. In `train`, auto means policy. In `finetune`, none trains on
    human rows alone, and auto means value if --explorer is hand-written, or policy if the network
    only plays games. Otherwise, auto compares the searches of both players on held-out positions:
    it means value, searched by the hand-written player, if that player errs less, else none."""
    keep_policy: bool = True
    """With teach=value, train the policy of searched rows towards the starting checkpoint's policy.
    If false, it is trained on the human move, and towards the starting policy only in rows without
    one."""
    search_value_share: Share = 1.0
    """Share of the search's value in the value target of searched rows, with teach=value or both;
    the rest is the usual target. Searched rows without a game use only the search's value."""
    results: bool = True
    """Use game results as value targets; with false, rows without an evaluation (see eval_blend) or
    a search value do not train the value."""
    frozen_norms: bool = False
    """Normalize by the running statistics of batch norms, and freeze them; for short fine-tuning on
    unusual rows."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Random seed of the initial weights, the order of rows, and the inputs hidden in some rows."""
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    """CPU threads; 0 uses all cores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on: auto (a GPU if available), cpu or cuda."""
    amp: Literal["auto", "bf16", "off"] = "auto"
    """Mixed precision: auto (bf16 if it is faster on the device), bf16 or off."""
    graphs: bool = True
    """On a single GPU, capture the steps as CUDA graphs, which is several times as fast; with
    false, each kernel is launched separately."""
    save_seconds: Annotated[float, Field(ge=0.0, le=1e6)] = 60.0
    """Seconds between saves, which limit the work that a killed run loses; 0 saves every step."""
    log: Literal["none", "tensorboard", "wandb", "mlflow"] = "none"
    """Experiment tracker that also receives the lines of metrics.jsonl: tensorboard (written into
    the checkpoint's folder), wandb or mlflow. Its package must be installed."""
    validation_every_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Steps between validations; 0 spends up to 2 % of the training time on them, but makes at
    least five in a run whose length is in minutes."""
    patience: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Stop after this many validations without an improvement of cross-entropy plus the calibrated
    value's Brier score, and keep the best weights; 0 never stops early. Needs
    validation_every_steps."""

    def __post_init__(self) -> None:
        if sum(length is not None for length in (self.minutes, self.steps, self.epochs)) != 1:
            raise TrainConfigError(
                "set the length of the run with exactly one of minutes, steps and epochs"
            )
        if self.search_value_share != 1.0 and not self.learns_search_values:
            raise TrainConfigError(
                f"search_value_share has no effect with teach={self.teach}: set teach=both or value"
            )
        if self.patience and not self.validation_every_steps:
            raise TrainConfigError("patience needs regular validations: set validation_every_steps")

    @property
    def learns_visits(self) -> bool:
        """Whether visits are the policy target of searched rows."""
        return self.teach in ("auto", "policy", "both")

    @property
    def learns_search_values(self) -> bool:
        """Whether the search's value is the value target of searched rows."""
        return self.teach in ("value", "both")

    @property
    def microbatches(self) -> int:
        """Number of equal microbatches in a batch, each of at least `norm_rows` if possible."""
        most = max(1, self.batch_size // self.norm_rows)
        return max(count for count in range(1, most + 1) if self.batch_size % count == 0)


def resolve_optimizer(config: TrainConfig, preset: str) -> TrainConfig:
    """Return the settings with the preset's default in place of optimizer `auto`."""
    if config.optimizer != "auto":
        return config
    return replace(config, optimizer="muon" if preset in MUON_PRESETS else "adamw")


def list_changed_settings(config: TrainConfig, saved: Mapping[str, Any]) -> list[str]:
    """Describe the settings that differ between `config` and a card's `saved` configuration.

    Settings that a resumed run may change are left out. One that the card lacks had its default.
    """
    changes = []
    for field in fields(TrainConfig):
        name, value = field.name, getattr(config, field.name)
        old = saved.get(name, field.default)
        keeps_unit = name in LENGTH_SETTINGS and None not in (old, value)
        if old != value and name not in CHANGEABLE_SETTINGS and not keeps_unit:
            changes.append(f"{name} was {old}, is {value}")
    return changes


def has_changed_length(config: TrainConfig, saved: Mapping[str, Any]) -> bool:
    """Return whether the length of a run differs from that in a card's configuration."""
    return any(getattr(config, name) != saved.get(name) for name in LENGTH_SETTINGS)


def total_steps(config: TrainConfig, epoch_rows: int | None) -> int | None:
    """Return the length of a run in steps; None if it is set in minutes."""
    if config.epochs is None:
        return config.steps
    assert epoch_rows is not None, "a run in epochs needs epoch_rows"
    return max(1, math.ceil(config.epochs * epoch_rows / config.batch_size))


def fraction_done(config: TrainConfig, steps: int | None, step: int, seconds: float) -> float:
    """Return the fraction of a run that is done, 0 to 1, after `step` steps or `seconds`."""
    if steps is not None:
        return min(1.0, step / steps)
    assert config.minutes is not None
    return min(1.0, seconds / (60 * config.minutes))


def learning_rate(config: TrainConfig, fraction: float) -> float:
    """Return the learning rate at a fraction of the run."""
    if fraction < config.warmup:
        return config.learning_rate * max(fraction / config.warmup, 0.01)
    after = (fraction - config.warmup) / max(1e-9, 1 - config.warmup)
    return config.learning_rate * _decayed_share(config, after)


def _decayed_share(config: TrainConfig, after: float) -> float:
    """Return the learning rate as a share of the peak, at a fraction of the run after warm-up."""
    if config.decay == "none":
        return 1.0
    if config.decay == "step":  # the same factor at each drop; a final rate of 0 counts as 0.001
        drops = min(config.drops, int(after * (config.drops + 1) + 1e-9))
        return float(max(config.final_rate, 1e-3) ** (drops / config.drops))
    remaining = (1 + math.cos(math.pi * after)) / 2 if config.decay == "cosine" else 1 - after
    return config.final_rate + (1 - config.final_rate) * remaining


def ema_decay(config: TrainConfig, step: int) -> float:
    """Return the decay of the averaged weights, lower at first to forget the initial weights."""
    return min(config.ema, (1 + step) / (10 + step)) if config.ema else 0.0
