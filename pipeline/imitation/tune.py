"""Train on a person's moves, and go from the base towards them only as far as unseen games gain.

With few games, FOLDS networks each learn from all but a part of the games, so that every game is
unseen by one of them, and their mean is used. With many games one network learns, and the
validation split is unseen. The result's weights are base + share * (trained - base) (WiSE-FT,
arXiv:2109.01903): a single network, which costs nothing more when it plays.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.progress import Progress, Stop
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.shards import Batch
from pipeline.errors import Stopped
from pipeline.evaluation.figures import NORMAL_95
from pipeline.imitation import measure
from pipeline.training.train import (
    describe_data,
    describe_start,
    find_preset,
    select_columns,
    train_on,
)

if TYPE_CHECKING:
    import polars as pl
    from torch import Tensor

    from model.training.config import TrainConfig

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the way from the base to the trained weights that are tried; 0 is the base itself."""
FOLDS = 4
FOLDED_ROWS = 20_000
"""Moves below which networks are trained in folds: a tenth of fewer games shows no difference."""
FEW_ROWS, MANY_ROWS = 12_000, 60_000
"""Moves below which batches are smallest, and from which one epoch of larger batches suffices."""


class Trained(NamedTuple):
    """Trained weights, and rows of games that this training did not see."""

    weights: "dict[str, Tensor]"
    unseen: Batch


def tune(
    dataset: Dataset,
    base: Path,
    out: Path,
    player: Mapping[str, Any],
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Train beside the training set, choose how far to go, and save the network in `out`.

    Returns `share`, `games` and `tried`: figures of each share on games that training did not see,
    as `measure.compare` has them. Raises Stopped, and the errors of `model.training.loop.train`.
    """
    from model.checkpoint import CARD, load, read_card, save

    start, started = load(base)
    columns = select_columns(recipe(1), start.preset)
    folders = [dataset.path.parent / "trained" / str(fold) for fold in range(FOLDS)]
    preset, folded = started["preset"]["name"], list[Batch]()
    if (count := dataset.count("train")) >= FOLDED_ROWS:
        card = train_on(
            [dataset], preset, recipe(count), folders[0], progress, stop, base, dict(player)
        )
        cards = [_finish(card)]
    else:
        rows = measure.read_rows(dataset, "train", columns)
        data = describe_data([dataset]) | {"start": describe_start(base), "player": dict(player)}
        cards, folded = _train_folds(rows, preset, base, folders, data, progress, stop)
    networks = [load(folder)[0].state_dict() for folder in folders[: len(cards)]]
    mean = average(networks)
    trained = [Trained(weights, unseen) for weights, unseen in zip(networks, folded, strict=False)]
    if dataset.has("val"):
        trained.append(Trained(mean, measure.read_rows(dataset, "val", columns)))
    tables = _measure_shares(base, trained, progress, stop)
    tried = [
        {"share": share, **measure.compare("imitation", tables[0.0], tables[share])}
        for share in SHARES
    ]
    share = choose_share(tried)
    data = {**cards[0]["data"], "player": {**player, "share": share}}
    data.pop("fold", None)
    if not (out / CARD).exists() or read_card(out)["data"] != data:
        summed = ("step", "positions", "seconds")
        totals = {name: sum(card[name] for card in cards) for name in summed}
        # of a network that was not mixed
        left_out = ("files", "superseded", "monitor", "calibration", "message")
        kept = {name: value for name, value in cards[0].items() if name not in left_out}
        start.load_state_dict(interpolate(start.state_dict(), mean, share))
        card = {**kept, **totals, "metrics": {}, "data": data}
        save(out, card, {"weights": start.state_dict()})
    games = len(np.unique(np.concatenate([one.unseen["game"] for one in trained])))
    seconds = sum(card["seconds"] for card in cards)
    return {"share": share, "games": games, "tried": tried, "seconds": seconds}


def _train_folds(
    rows: Batch,
    preset_name: str,
    base: Path,
    folders: Sequence[Path],
    data: Mapping[str, Any],
    progress: Progress,
    stop: Stop,
) -> tuple[list[dict[str, Any]], list[Batch]]:
    """Train a network on all parts of the games but one, for each part."""
    from model.training.loop import train

    part_R = np.unique(rows["game"], return_inverse=True)[1] % len(folders)
    cards, unseen = [], []
    for fold, folder in enumerate(folders):
        seen = {name: values[part_R != fold] for name, values in rows.items()}
        config = recipe(len(seen["ply"]))
        card = train(
            config,
            find_preset(preset_name, folder, base),
            partial(open_batches, seen, config.batch_size, fold),
            folder,
            validation=None,
            data={**data, "fold": fold},
            progress=progress,
            stop=stop,
            start=base,
        )
        cards.append(_finish(card))
        unseen.append({name: values[part_R == fold] for name, values in rows.items()})
    return cards, unseen


def _finish(card: dict[str, Any]) -> dict[str, Any]:
    """Return a finished run's card; raises Stopped for another."""
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']} and saved; run the same command to continue")
    return card


def open_batches(rows: Batch, size: int, seed: int, step: int) -> Iterator[Batch]:
    """Yield random batches without end from a step on: each row once in an epoch."""
    count = len(rows["ply"])
    epoch, left = divmod(step * size, count)
    order = np.empty(0, dtype=np.int64)
    while True:
        while len(order) < left + size:
            order = np.concatenate([order, np.random.default_rng((seed, epoch)).permutation(count)])
            epoch += 1
        at, order, left = order[left : left + size], order[left + size :], 0
        yield {name: values[at] for name, values in rows.items()}


def average(networks: "Sequence[Mapping[str, Tensor]]") -> "dict[str, Tensor]":
    """Return the mean of networks' weights."""
    import torch

    first = networks[0]
    return {
        name: torch.stack([one[name] for one in networks]).mean(0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


def interpolate(
    base: "Mapping[str, Tensor]", trained: "Mapping[str, Tensor]", share: float
) -> "dict[str, Tensor]":
    """Return weights at a share of the way from the base to the trained ones."""
    return {
        name: tensor + share * (trained[name] - tensor) if tensor.is_floating_point() else tensor
        for name, tensor in base.items()
    }


def _measure_shares(
    base: Path, trained: Sequence[Trained], progress: Progress, stop: Stop
) -> "dict[float, pl.DataFrame]":
    """Measure the base (0) and each share on the rows that its training did not see."""
    import polars as pl

    from model.checkpoint import load
    from model.inference.evaluator import NetworkEvaluator

    network, _ = load(base)
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def measure_share(share: float) -> pl.DataFrame:
        tables = []
        for one in trained:
            if stop():
                raise Stopped("stopped before the choice; run the same command to continue")
            network.load_state_dict(interpolate(start, one.weights, share))
            tables.append(measure.measure(NetworkEvaluator(network), one.unseen, progress))
        return pl.concat(tables)

    return {share: measure_share(share) for share in (0.0, *SHARES)}


def choose_share(tried: Sequence[Mapping[str, Any]]) -> float:
    """Return the share that gains most on late moves and also on all moves, 0 without one.

    Gains are of cross-entropy, which needs far fewer games than top-1 to be seen, less one standard
    error: the fewer games, the less far.
    """
    best, chosen = 0.0, 0.0
    for row in tried:
        late = _cautious_gain(row.get("late"))
        if late > best and _cautious_gain(row.get("all")) > 0:
            best, chosen = late, float(row["share"])
    return chosen


def _cautious_gain(figures: Mapping[str, Any] | None) -> float:
    """Return the gain in nats less its standard error; 0 with too few games for one."""
    if figures is None or figures["cross_entropy_high"] is None:
        return 0.0
    loss, high = figures["cross_entropy_difference"], figures["cross_entropy_high"]
    return float(-loss - (high - loss) / NORMAL_95)


def recipe(rows: int) -> "TrainConfig":
    """Return the settings for `rows` moves of a person; fewer moves take smaller batches.

    docs/log/2026-11-24.md lists the settings that were compared.
    """
    from model.training.config import TrainConfig

    batch = 32 if rows < FEW_ROWS else 64 if rows < MANY_ROWS else 128
    epochs, rate = (2, 3e-4) if rows < MANY_ROWS else (1, 5e-4)
    steps = max(10, epochs * rows // batch)
    return TrainConfig(
        steps=steps,
        batch_size=batch,
        norm_rows=batch,
        optimizer="muon",
        learning_rate=rate,
        warmup=0.05,
        # trained on one person's results, the value got worse, and the moves no better
        value_weight=0.0,
        results=False,
        frozen_norms=True,
        ema=max(0.0, min(0.999, 1 - 10 / steps)),
        validation_every_steps=steps,
    )
