"""Learning rate and decay of the averaged weights, as functions of a run's progress."""

import math

from model.training.config import TrainConfig


def total_steps(config: TrainConfig, epoch_rows: int | None) -> int | None:
    """Return the length of a run in steps, None when it is set in minutes; `epoch_rows` are the
    rows of one epoch.
    """
    if config.epochs is None:
        return config.steps
    assert epoch_rows is not None, "a run in epochs needs the rows of one"
    return max(1, math.ceil(config.epochs * epoch_rows / config.batch_size))


def fraction_done(config: TrainConfig, steps: int | None, step: int, seconds: float) -> float:
    """Return the share of a run of `steps` that is done, 0 to 1, before `step` and after `seconds`
    of training.
    """
    if steps is not None:
        return min(1.0, step / steps)
    assert config.minutes is not None
    return min(1.0, seconds / (60 * config.minutes))


def decayed_share(config: TrainConfig, after: float) -> float:
    """Return the learning rate as a share of the highest, at fraction `after` (0 to 1) of the run
    after the warm-up.
    """
    if config.decay == "none":
        return 1.0
    # fall by the same factor at each drop; a final rate of zero is taken as a thousandth
    if config.decay == "step":
        fallen = min(config.drops, int(after * (config.drops + 1) + 1e-9))
        return float(max(config.final_rate, 1e-3) ** (fallen / config.drops))
    left = (1 + math.cos(math.pi * after)) / 2 if config.decay == "cosine" else 1 - after
    return config.final_rate + (1 - config.final_rate) * left


def learning_rate(config: TrainConfig, fraction: float) -> float:
    """Return the learning rate when that fraction of the run is done: a linear warm-up, then the
    decay.
    """
    if fraction < config.warmup:
        return config.learning_rate * max(fraction / config.warmup, 0.01)
    after = (fraction - config.warmup) / max(1e-9, 1 - config.warmup)
    return config.learning_rate * decayed_share(config, after)


def ema_decay(config: TrainConfig, step: int) -> float:
    """Return the decay of the averaged weights after `step` steps: shorter at first, to forget the
    initial weights.
    """
    return min(config.ema, (1 + step) / (10 + step)) if config.ema else 0.0
