"""Train on a person's moves, and interpolate between the base and the trained weights.

The weights of the result are base + share * (trained - base) (WiSE-FT, arXiv:2109.01903), with the
share that is best on games held out of training. The result is a single network, so it takes no
longer to play.

With few games, cross-validation provides the held-out games: each of FOLDS networks is trained on
all but one part of the games, and their weights are averaged. With many games, one network is
trained, and the validation split is held out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    train_on_datasets,
)

if TYPE_CHECKING:
    import polars as pl
    from torch import Tensor

    from model.training.config import TrainConfig

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Interpolation shares to try, besides 0, which is the base; 1 is the trained network."""
FOLDS = 4
"""Number of networks that are trained if there are few games."""
MAX_FOLDED_ROWS = 20_000
"""Number of moves below which networks are trained in folds, because the validation split alone is
too small to show a difference."""
FEW_ROWS, MANY_ROWS = 12_000, 60_000
"""Below FEW_ROWS moves, batches are smallest; from MANY_ROWS on, one epoch of larger batches is
enough."""


class TrainedWeights(NamedTuple):
    """Trained weights, and rows of games that were held out of this training."""

    weights: "dict[str, Tensor]"
    held_out: Batch


def tune(
    dataset: Dataset,
    base: Path,
    out: Path,
    player: Mapping[str, Any],
    progress: Progress,
    stop: Stop,
) -> dict[str, Any]:
    """Train networks, choose the interpolation share, and save the result in `out`.

    `player` is the card's entry about the person. The trained networks are kept next to the
    training set. Returns `share`, `seconds` of training, `games` (the number of held-out games that
    the choice is based on) and `tried` (the result of `measure.compare` on them, for each share).

    Raises Stopped, and the errors of `model.training.loop.train`.
    """
    folder, folds = dataset.path.parent / "trained", _count_folds(dataset)
    runs = _train(dataset, base, folder, player, progress, stop, folds)
    trained = [
        TrainedWeights(weights, held_out)
        for weights, held_out in zip(runs.networks, runs.held_out, strict=False)
    ]
    mean = average(runs.networks)
    if dataset.has_rows("val"):
        trained.append(TrainedWeights(mean, measure.read_rows(dataset, "val", runs.columns)))
    tables = _measure_shares(base, trained, progress, stop)
    tried = [
        {"share": share, **measure.compare("imitation", tables[0.0], tables[share])}
        for share in SHARES
    ]
    share = choose_share(tried)
    _save_interpolated(out, base, runs.cards, mean, {**player, "share": share})
    games = len(np.unique(np.concatenate([part.held_out["game"] for part in trained])))
    seconds = sum(card["seconds"] for card in runs.cards)
    return {"share": share, "games": games, "tried": tried, "seconds": seconds}


def train_on_all(
    positions: Dataset,
    training_set: Dataset,
    base: Path,
    out: Path,
    player: Mapping[str, Any],
    book: Mapping[str, Mapping[str, int]],
    progress: Progress,
    stop: Stop,
) -> None:
    """Train on all games with the settings that `tune` used, and save the result in `out`.

    `positions` has all games, and `training_set` is the dataset that `tune` read. The player's
    `share` is the interpolation share; if it is 0, the weights of the base are saved. The opening
    book is stored in the card.
    """
    from model.checkpoint import load, read_card

    work = training_set.path.parent
    if player["share"]:
        merged, folds = merge_splits(positions), _count_folds(training_set)
        runs = _train(merged, base, work / "trained-on-all", player, progress, stop, folds)
        cards, mean = runs.cards, average(runs.networks)
    else:
        cards, mean = [read_card(work / "held_out")], load(base)[0].state_dict()
    _save_interpolated(out, base, cards, mean, player, {"book": book} if book else {})


def merge_splits(dataset: Dataset) -> Dataset:
    """Return a dataset whose train split has the rows of all splits."""
    files = [entry | {"split": entry["split"] and "train"} for entry in dataset.manifest["files"]]
    count = dataset.manifest["positions"]["total"]
    positions = {"total": count, "train": count, "val": 0, "test": 0}
    return replace(dataset, manifest=dataset.manifest | {"files": files, "positions": positions})


def _count_folds(dataset: Dataset) -> int:
    """Return the number of networks to train: several if there are few moves."""
    return FOLDS if dataset.count_rows("train") < MAX_FOLDED_ROWS else 1


class _TrainingRuns(NamedTuple):
    """The finished training runs of one person's imitation."""

    cards: list[dict[str, Any]]
    networks: "list[dict[str, Tensor]]"
    """Trained weights of each run."""
    held_out: list[Batch]
    """Rows that each fold's run did not train on; empty if there is one run."""
    columns: tuple[str, ...]
    """Columns that the preset is trained on."""


def _train(
    dataset: Dataset,
    base: Path,
    out: Path,
    player: Mapping[str, Any],
    progress: Progress,
    stop: Stop,
    folds: int,
) -> _TrainingRuns:
    """Train one network for each fold, or a single one on all rows of the train split."""
    from model.checkpoint import load

    start, start_card = load(base)
    columns = select_columns(training_config(1), start.preset)
    folders = [out / str(fold) for fold in range(folds)]
    preset, held_out = start_card["preset"]["name"], list[Batch]()
    if folds == 1:
        config = training_config(dataset.count_rows("train"))
        card = train_on_datasets(
            [dataset], preset, config, folders[0], progress, stop, base, dict(player)
        )
        cards = [_require_finished(card)]
    else:
        rows = measure.read_rows(dataset, "train", columns)
        data = describe_data([dataset]) | {"start": describe_start(base), "player": dict(player)}
        cards, held_out = _train_folds(rows, preset, base, folders, data, progress, stop)
    networks = [load(folder)[0].state_dict() for folder in folders]
    return _TrainingRuns(cards, networks, held_out, columns)


def _save_interpolated(
    out: Path,
    base: Path,
    cards: Sequence[Mapping[str, Any]],
    mean: "Mapping[str, Tensor]",
    player: Mapping[str, Any],
    entries: Mapping[str, Any] | None = None,
) -> None:
    """Save the weights between the base and the trained mean, unless `out` has them already.

    `cards` describe the training runs, and `entries` are added to the card.
    """
    from model.checkpoint import CARD_FILE, load, read_card, save

    data = {**cards[0]["data"], "player": dict(player)}
    data.pop("fold", None)
    if (out / CARD_FILE).exists() and read_card(out)["data"] == data:
        return
    totals = {name: sum(card[name] for card in cards) for name in ("step", "positions", "seconds")}
    # these entries describe a trained network, not the interpolated one
    dropped = ("files", "superseded", "monitor", "calibration", "message")
    kept = {name: value for name, value in cards[0].items() if name not in dropped}
    network, _ = load(base)
    weights = interpolate(network.state_dict(), mean, player["share"])
    card = {**kept, **totals, "metrics": {}, "data": data, **(entries or {})}
    out.mkdir(parents=True, exist_ok=True)
    save(out, card, {"weights": weights})


def _train_folds(
    rows: Batch,
    preset_name: str,
    base: Path,
    folders: Sequence[Path],
    data: Mapping[str, Any],
    progress: Progress,
    stop: Stop,
) -> tuple[list[dict[str, Any]], list[Batch]]:
    """Train a network for each fold on the games of the other folds.

    Returns their cards, and the rows that each was not trained on.
    """
    from model.training.loop import train

    fold_R = np.unique(rows["game"], return_inverse=True)[1] % len(folders)
    cards, held_out = [], []
    for fold, folder in enumerate(folders):
        others = {name: values[fold_R != fold] for name, values in rows.items()}
        config = training_config(len(others["ply"]))
        card = train(
            config,
            find_preset(preset_name, folder, base),
            partial(open_batches, others, config.batch_size, fold),
            folder,
            validation=None,
            data={**data, "fold": fold},
            progress=progress,
            stop=stop,
            start=base,
        )
        cards.append(_require_finished(card))
        held_out.append({name: values[fold_R == fold] for name, values in rows.items()})
    return cards, held_out


def _require_finished(card: dict[str, Any]) -> dict[str, Any]:
    """Return a training run's card, or raise Stopped if the run is not finished."""
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']} and saved; run the same command to continue")
    return card


def open_batches(rows: Batch, size: int, seed: int, step: int) -> Iterator[Batch]:
    """Yield random batches of `size` rows without end, from a step on.

    Each row occurs once per epoch, and `seed` determines the order.
    """
    count = len(rows["ply"])
    epoch, skipped = divmod(step * size, count)
    order = np.empty(0, dtype=np.int64)
    while True:
        while len(order) < skipped + size:
            order = np.concatenate([order, np.random.default_rng((seed, epoch)).permutation(count)])
            epoch += 1
        at, order, skipped = order[skipped : skipped + size], order[skipped + size :], 0
        yield {name: values[at] for name, values in rows.items()}


def average(networks: "Sequence[Mapping[str, Tensor]]") -> "dict[str, Tensor]":
    """Return the mean of several networks' weights; integers are those of the first network."""
    import torch

    first = networks[0]
    return {
        name: torch.stack([weights[name] for weights in networks]).mean(0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


def interpolate(
    base: "Mapping[str, Tensor]", trained: "Mapping[str, Tensor]", share: float
) -> "dict[str, Tensor]":
    """Return base + share * (trained - base) for each weight; integers are those of the base."""
    return {
        name: tensor + share * (trained[name] - tensor) if tensor.is_floating_point() else tensor
        for name, tensor in base.items()
    }


def _measure_shares(
    base: Path, trained: Sequence[TrainedWeights], progress: Progress, stop: Stop
) -> "dict[float, pl.DataFrame]":
    """Measure the base (share 0) and each of SHARES on the rows held out of each training."""
    import polars as pl

    from model.checkpoint import load
    from model.inference.evaluator import NetworkEvaluator

    network, _ = load(base)
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def measure_share(share: float) -> pl.DataFrame:
        tables = []
        for part in trained:
            if stop():
                raise Stopped(
                    "stopped before the interpolation share was chosen; run the same command to "
                    "continue"
                )
            network.load_state_dict(interpolate(start, part.weights, share))
            evaluator = NetworkEvaluator(network)
            tables.append(measure.measure_policy(evaluator, part.held_out, progress))
        return pl.concat(tables)

    return {share: measure_share(share) for share in (0.0, *SHARES)}


def choose_share(tried: Sequence[Mapping[str, Any]]) -> float:
    """Return the share with the largest gain on late moves, of those that gain on all moves, or 0.

    A gain is the reduction of cross-entropy less one standard error, so few games lead to a small
    share. Cross-entropy shows a gain with far fewer games than top-1 does.
    """
    best, chosen = 0.0, 0.0
    for row in tried:
        late = _cautious_gain(row.get("late"))
        if late > best and _cautious_gain(row.get("all")) > 0:
            best, chosen = late, float(row["share"])
    return chosen


def _cautious_gain(figures: Mapping[str, Any] | None) -> float:
    """Return the gain in nats less its standard error, or 0 with too few games."""
    if figures is None or figures["cross_entropy_high"] is None:
        return 0.0
    change, high = figures["cross_entropy_difference"], figures["cross_entropy_high"]
    return float(-change - (high - change) / NORMAL_95)


def training_config(rows: int) -> "TrainConfig":
    """Return the training settings for `rows` moves of a person.

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
        # training the value on one person's results made it worse, and the moves no better
        value_weight=0.0,
        results=False,
        frozen_norms=True,
        ema=max(0.0, min(0.999, 1 - 10 / steps)),
        validation_every_steps=steps,
    )
