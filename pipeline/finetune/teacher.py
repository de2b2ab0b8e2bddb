"""Decide whether a network learns its value from the hand-written player: compare the searches of
both on held-out positions.

    held-out positions --64 simulations each--> values
      --compared with evaluations or results--> errors --> TeacherComparison

In experiments, the only teacher that made a network stronger was the hand-written player, and only
for networks trained on few games (docs/findings.md). So a loop compares the network's own search
with the hand-written player's. If the hand-written player's error is significantly smaller, it
teaches the value. Otherwise the loop trains on human rows alone.

Errors are squared errors of the calibrated expected score. Calibration multiplies the value logits
by one factor; each half of the games uses the factor fitted on the other half. The comparison
therefore ignores how confident a player's values are, as training does, which calibrates too.

Axes: N positions, R rows, W words of a position.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.board.rules import FIFTY_MOVES_PLIES, has_insufficient_material
from engine.cores import count_cores
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from engine.progress import Progress, Stop, Tick
from engine.search import Search, SearchConfig
from engine.selfplay.generate import read_search_result
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import rows_to_positions
from pipeline.errors import ConfigError, Stopped
from pipeline.finetune.config import MIN_SOURCE_SHARE, FinetuneConfig
from pipeline.finetune.state import TEACHER_SIMULATIONS, TeacherComparison
from pipeline.selfplay.config import ONNX_DEVICE
from pipeline.selfplay.draw import MIN_PLY, rank_in_group
from pipeline.training.export import export_once

MAX_HELD_OUT_POSITIONS, MAX_POSITIONS_PER_GAME = 2000, 8
"""Maximum number of held-out positions that both players search, in total and per game."""
ROWS_PER_POSITION = 5
"""Number of rows read for each position that is drawn, so that the positions come from many
games."""
POSITIONS_PER_BATCH = 64
"""Number of positions searched together."""
MIN_EVALUATED_SHARE = 0.95
"""Minimum share of positions with an evaluation; below it, the reference is the games' results."""
LICHESS_SLOPE = 0.00368208
"""Slope of Lichess's logistic curve from centipawns to expected scores
(lichess.org/page/accuracy)."""

DEFAULT_HUMAN_SHARE = 0.15
"""Default share of human rows in a batch, if the hand-written player teaches."""
DEFAULT_TRAINING = {"epochs": 1.5, "learning_rate": 2e-3, "value_weight": 1.0, "results": False}
"""Default training settings, if the hand-written player teaches (docs/log/2026-11-25.md)."""
MANY_ROWS = 500_000
"""Number of human rows from which the defaults for many rows apply."""
DEFAULT_TRAINING_MANY_ROWS = {**DEFAULT_TRAINING, "keep_policy": False, "learning_rate": 1e-3}
"""Default training settings with many human rows, where searched rows also teach human moves."""
DEFAULT_NEAR_SHARE, DEFAULT_NEAR_SHARE_MANY_ROWS = 2 / 3, 0.3
"""Default share of positions near human positions among all searched positions, with few and with
many human rows. `games_share` reduces it in proportion."""
MAX_SEARCHED_POSITIONS, SEARCHED_POSITIONS_PER_ROW = 500_000, 2
"""Default limits on the positions that the hand-written player searches, in total and per human
row."""
HUMAN_POSITIONS_PER_ROW = 2 / 3
"""Default limit on the human positions that the hand-written player searches, per human row: some
positions repeat, others are too early in the game."""
HELD_OUT_COLUMNS = (
    "planes", "castling", "ep_file", "halfmove", "ply", "plies", "game", "eval", "result",
)  # fmt: skip
"""Columns read to draw held-out positions."""


def compare_teachers(
    checkpoint: Path, human: Sequence[Path], device: str, progress: Progress, stop: Stop
) -> TeacherComparison:
    """Compare the searches of the network and the hand-written player on held-out positions.

    `human` are the datasets or training sets with these positions. Raises ConfigError if there are
    none, and Stopped.
    """
    rows = draw_held_out(human, MAX_HELD_OUT_POSITIONS)
    positions_NW, values = rows_to_positions(rows), list[NDArray[np.float64]]()
    for evaluator in (_open_evaluator(checkpoint, human, device, progress), evaluate):
        before = len(values) * len(positions_NW)

        def report(done: int, before: int = before) -> None:
            progress(Tick(before + done, 2 * len(positions_NW), "positions compared"))

        values.append(search_values(evaluator, positions_NW, report, stop))
    network_N, hand_written_N = values
    return compare_values(network_N, hand_written_N, rows)


def draw_held_out(human: Sequence[Path], count: int, seed: int = 0) -> Batch:
    """Draw up to `count` rows in random order from the datasets' validation splits.

    A dataset without a validation split gives rows of its test split. Each row belongs to a game
    (`game` is dataset << 32 | game), is not a draw by the rules, and has at least two legal moves
    and ply MIN_PLY or later. A game has at most MAX_POSITIONS_PER_GAME rows. Raises ConfigError if
    no dataset has such rows.
    """
    parts = list[Batch]()
    for number, folder in enumerate(human):
        parts += _sample_searchable(folder, number, count, seed)
    if not any(len(part["game"]) for part in parts):
        raise ConfigError(
            "there are no held-out positions to compare the network with the hand-written player: "
            "ingest with a validation or test split, or set --teach"
        )
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order_R = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows["game"]))
    by_game_R = order_R[np.argsort(rows["game"][order_R], kind="stable")]
    rank_R = np.empty(len(order_R), dtype=np.int64)
    rank_R[by_game_R] = rank_in_group(rows["game"][by_game_R])
    chosen_N = order_R[rank_R[order_R] < MAX_POSITIONS_PER_GAME][:count]
    return {name: column[chosen_N] for name, column in rows.items()}


def _sample_searchable(directory: Path, number: int, count: int, seed: int) -> Iterator[Batch]:
    """Yield random rows of the held-out split of dataset `number` that can be searched."""
    dataset = Dataset.open(directory)
    split = next((split for split in ("val", "test") if dataset.has_rows(split)), None)
    if split is None:
        return
    batches = Batches([dataset], split, batch_size=4096, seed=seed, columns=HELD_OUT_COLUMNS)
    for batch in batches.sample(ROWS_PER_POSITION * count):
        moves_R = np.bitwise_count(batch["planes"][:, MOVE_PLANES:]).sum(axis=1)
        drawn_R = batch["halfmove"] >= FIFTY_MOVES_PLIES
        drawn_R |= np.fromiter(map(has_insufficient_material, rows_to_positions(batch)), np.bool_)
        in_game_R = (batch["plies"] > 0) & (batch["ply"] >= MIN_PLY)
        rows_R = np.flatnonzero((moves_R > 1) & ~drawn_R & in_game_R)
        part = {name: column[rows_R] for name, column in batch.items()}
        yield part | {"game": part["game"].astype(np.uint64) | np.uint64(number << 32)}


def _open_evaluator(
    checkpoint: Path, human: Sequence[Path], device: str, progress: Progress
) -> Evaluator:
    """Return the network's evaluator; with the device onnx, its export, made if necessary."""
    if device == ONNX_DEVICE:
        from model.inference.onnx_evaluator import open_export

        export_once(checkpoint, human, progress)
        return open_export(checkpoint, threads=count_cores())
    from model.inference.evaluator import evaluator

    return evaluator(checkpoint, device=device)


def search_values(
    evaluator: Evaluator,
    positions_NW: NDArray[np.uint64],
    report: Callable[[int], None],
    stop: Stop,
) -> NDArray[np.float64]:
    """Search positions; return the expected score of each best move, float64[N] in 0..1.

    Calls `report` with the number of positions searched. Raises Stopped.
    """
    values = list[float]()
    for first in range(0, len(positions_NW), POSITIONS_PER_BATCH):
        part = positions_NW[first : first + POSITIONS_PER_BATCH]
        search = Search(
            evaluator, SearchConfig(simulations=TEACHER_SIMULATIONS), games=len(part), seed=1
        )
        for slot, position in enumerate(part):
            search.start(slot, position, game=first + slot)
        search.run(simulations=TEACHER_SIMULATIONS, noise=False, stop=stop)
        if stop():
            raise Stopped("stopped while the hand-written player was compared with the network")
        moves = zip(*map(np.ndarray.tolist, search.choose()), strict=True)
        values += [
            read_search_result(search.root(slot), *move).best_value
            for slot, move in enumerate(moves)
        ]
        report(len(values))
    return (np.array(values) + 1.0) / 2.0


def compare_values(
    network_N: NDArray[np.float64], hand_written_N: NDArray[np.float64], rows: Batch
) -> TeacherComparison:
    """Compare both players' expected scores with the evaluations or, if too few, the results."""
    # imported here because it imports polars, which Dagster's code server does not load
    from pipeline.evaluation.figures import clustered_mean

    known_N = rows["eval"] != BATCH_SENTINELS["eval"]
    if evaluated := bool(known_N.mean() >= MIN_EVALUATED_SHARE):
        truth_N = 1.0 / (1.0 + np.exp(-LICHESS_SLOPE * rows["eval"][known_N].astype(np.float64)))
    else:
        known_N = np.ones(len(known_N), dtype=np.bool_)
        truth_N = (rows["result"] + 1.0) / 2.0
    games_N = rows["game"][known_N]
    errors = [
        np.square(calibrate_halves(values_N[known_N], truth_N, games_N) - truth_N)
        for values_N in (network_N, hand_written_N)
    ]
    _, low, high = clustered_mean(errors[1] - errors[0], games_N)
    return TeacherComparison(
        truth="evaluations" if evaluated else "results",
        positions=len(games_N),
        games=len(np.unique(games_N)),
        network=float(errors[0].mean()),
        hand_written=float(errors[1].mean()),
        low=low,
        high=high,
    )


def calibrate_halves(
    values_N: NDArray[np.float64], truth_N: NDArray[np.float64], games_N: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Calibrate expected scores; the factor of each half of the games is fitted on the other."""
    import torch

    from model.calibration import fit_factor, scale_wdl

    wdl, target = (
        torch.from_numpy(np.stack([scores_N, np.zeros_like(scores_N), 1 - scores_N], axis=1))
        for scores_N in (values_N, truth_N)
    )
    even_N = np.unique(games_N, return_inverse=True)[1] % 2 == 0
    calibrated_N = np.empty(len(values_N))
    for half_N in (even_N, ~even_N):
        factor = fit_factor(wdl[~half_N], target[~half_N], games_N[~half_N])
        calibrated_N[half_N] = scale_wdl(wdl[half_N], factor)[:, 0].numpy()
    return calibrated_N


def adapt_to_hand_written(config: FinetuneConfig, rows: int) -> FinetuneConfig:
    """Return the settings for learning the value from the hand-written player's searches.

    `rows` is the number of human rows. Settings that the user changed from their defaults are kept.
    """
    defaults, many = FinetuneConfig(generations=1), rows >= MANY_ROWS
    near_share = DEFAULT_NEAR_SHARE_MANY_ROWS if many else DEFAULT_NEAR_SHARE
    near_share *= 1.0 - config.games_share
    shares = {"near_share": near_share, "human_share": DEFAULT_HUMAN_SHARE}
    config = _replace_defaults(config, defaults, shares)
    people_share = max(1.0 - config.near_share - config.games_share, MIN_SOURCE_SHARE)
    max_by_people = round(HUMAN_POSITIONS_PER_ROW * rows / people_share)
    count = max(1, min(MAX_SEARCHED_POSITIONS, SEARCHED_POSITIONS_PER_ROW * rows, max_by_people))
    search = replace(defaults.explore.search, algorithm="puct", simulations=TEACHER_SIMULATIONS)
    changes = {"count": count, "search": search}
    explore = _replace_defaults(config.explore, defaults.explore, changes)
    training = DEFAULT_TRAINING_MANY_ROWS if many else DEFAULT_TRAINING
    train = _replace_defaults(config.train, defaults.train, training)
    explore, train = replace(explore, explorer="hand-written"), replace(train, teach="value")
    return replace(config, explore=explore, train=train)


def _replace_defaults(settings: Any, defaults: Any, changes: Mapping[str, Any]) -> Any:
    """Apply `changes` to those settings that have their default values."""
    applied = {
        name: value
        for name, value in changes.items()
        if getattr(settings, name) == getattr(defaults, name)
    }
    return replace(settings, **applied)
