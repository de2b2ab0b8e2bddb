"""Decide whether a network learns its value from the hand-written player: compare both players'
searches of held-out positions.

    held-out positions --64 simulations each--> values
      --evaluations or results--> errors --> Teacher

In experiments, the only teacher that made a network stronger was the hand-written player, and only
for networks trained on few games (docs/findings.md). So a loop compares the network's own search
with the hand-written player's. If the hand-written player's error is significantly smaller, it
teaches the value. Otherwise the loop trains on human rows alone.

Errors are squared errors of the expected score, after calibration: one factor on the value logits,
fitted on the other half of the games. The scale of a teacher must not matter, since the trained
value is calibrated too.

Axes: N positions, R rows, W words of a position.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.board.rules import FIFTY_MOVES, has_insufficient_material
from engine.cores import count_cores
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from engine.progress import Progress, Stop, Tick
from engine.search import Search, SearchConfig
from engine.selfplay.generate import read_search
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.errors import ConfigError, Stopped
from pipeline.finetune.config import MIN_SHARE, FinetuneConfig
from pipeline.finetune.state import SIMULATIONS, Teacher
from pipeline.selfplay.config import ONNX_DEVICE
from pipeline.selfplay.draw import FIRST_PLY, rank_in_group
from pipeline.training.export import export_once

HELD_OUT_POSITIONS, MAX_PER_GAME = 2000, 8
"""Maximum number of held-out positions that both players search, in total and per game."""
OVERSAMPLE = 5
"""Number of rows read for each position that is kept, so that the positions come from many
games."""
SEARCH_BATCH = 64
"""Number of positions searched together."""
MIN_EVALUATED_SHARE = 0.95
"""Minimum share of positions with an evaluation. Below it, the players are compared by results
instead."""
LICHESS_SLOPE = 0.00368208
"""Slope of Lichess's logistic curve from centipawns to expected scores
(lichess.org/page/accuracy)."""

HUMAN_SHARE = 0.15
"""Default share of human rows in a batch when the hand-written player teaches."""
TRAIN_DEFAULTS: Mapping[str, Any] = {
    "epochs": 1.5,
    "learning_rate": 2e-3,
    "value_weight": 1.0,
    "results": False,
}
"""Defaults of the training settings when the hand-written player teaches
(docs/log/2026-11-25.md)."""
MANY_ROWS = 500_000
"""Number of human rows from which the defaults for many rows apply."""
TRAIN_DEFAULTS_MANY_ROWS = {**TRAIN_DEFAULTS, "keep_policy": False, "learning_rate": 1e-3}
"""The same with many human rows, where searched rows also train the policy on human moves."""
NEAR_SHARE, NEAR_SHARE_MANY_ROWS = 2 / 3, 0.3
"""Default share of near positions among the searched ones, without games: with few and with many
human rows."""
MAX_POSITIONS, POSITIONS_PER_ROW = 500_000, 2
"""Default limits on the positions that the hand-written player searches, in total and per human
row."""
HUMAN_POSITIONS_PER_ROW = 2 / 3
"""Default limit on the human positions that it searches, per human row: some positions repeat or
are too early in the game."""

COLUMNS = ("planes", "castling", "ep_file", "halfmove", "ply", "plies", "game", "eval", "result")


def choose_teacher(
    checkpoint: Path, human: Sequence[Path], device: str, progress: Progress, stop: Stop
) -> Teacher:
    """Compare the searches of the network and the hand-written player on held-out positions.

    Raises ConfigError without held-out positions, and Stopped.
    """
    rows = draw_held_out(human, HELD_OUT_POSITIONS)
    positions_NW, values = row_positions(rows), list[NDArray[np.float64]]()
    for player in (_open(checkpoint, human, device, progress), evaluate):
        before = len(values) * len(positions_NW)

        def tick(done: int, before: int = before) -> None:
            progress(Tick(before + done, 2 * len(positions_NW), "positions compared"))

        values.append(search_values(player, positions_NW, tick, stop))
    by_network, by_hand = values
    return compare_values(by_network, by_hand, rows)


def draw_held_out(human: Sequence[Path], count: int, seed: int = 0) -> Batch:
    """Draw rows from the validation splits in random order; from test splits where there are none.

    Each row belongs to a game (`game` is dataset << 32 | game), has at least two legal moves, and
    has ply FIRST_PLY or later. Raises ConfigError if no dataset has such rows.
    """
    parts = list[Batch]()
    for number, folder in enumerate(human):
        parts += _sample(folder, number, count, seed)
    if not any(len(part["game"]) for part in parts):
        raise ConfigError(
            "no held-out positions to compare teachers on: ingest with a validation or test split, "
            "or set --teach"
        )
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order_R = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows["game"]))
    by_game_R = order_R[np.argsort(rows["game"][order_R], kind="stable")]
    rank_R = np.empty(len(order_R), dtype=np.int64)
    rank_R[by_game_R] = rank_in_group(rows["game"][by_game_R])
    chosen_N = order_R[rank_R[order_R] < MAX_PER_GAME][:count]
    return {name: column[chosen_N] for name, column in rows.items()}


def _sample(directory: Path, number: int, count: int, seed: int) -> Iterator[Batch]:
    """Yield random searchable rows of a dataset's held-out split."""
    dataset = Dataset.open(directory)
    split = next((split for split in ("val", "test") if dataset.has_rows(split)), None)
    if split is None:
        return
    batches = Batches([dataset], split, batch_size=4096, seed=seed, columns=COLUMNS)
    for batch in batches.sample(OVERSAMPLE * count):
        moves_R = np.bitwise_count(batch["planes"][:, MOVE_PLANES:]).sum(axis=1)
        dead_R = np.array(
            [has_insufficient_material(one) for one in row_positions(batch)], dtype=np.bool_
        )
        goes_on_R = (batch["halfmove"] < FIFTY_MOVES) & ~dead_R & (batch["plies"] > 0)
        rows_R = np.flatnonzero((moves_R > 1) & goes_on_R & (batch["ply"] >= FIRST_PLY))
        part = {name: column[rows_R] for name, column in batch.items()}
        yield part | {"game": part["game"].astype(np.uint64) | np.uint64(number << 32)}


def _open(checkpoint: Path, human: Sequence[Path], device: str, progress: Progress) -> Evaluator:
    """Return the network's evaluator; with the device onnx, its 8-bit export."""
    if device == ONNX_DEVICE:
        from model.inference.onnx_evaluator import open_export

        export_once(checkpoint, human, progress)
        return open_export(checkpoint, threads=count_cores())
    from model.inference.evaluator import evaluator

    return evaluator(checkpoint, device=device)


def search_values(
    evaluator: Evaluator, positions_NW: NDArray[np.uint64], tick: Callable[[int], None], stop: Stop
) -> NDArray[np.float64]:
    """Search positions; return the expected score of each best move, float64[N] in 0..1."""
    found = list[float]()
    for first in range(0, len(positions_NW), SEARCH_BATCH):
        part = positions_NW[first : first + SEARCH_BATCH]
        search = Search(evaluator, SearchConfig(simulations=SIMULATIONS), games=len(part), seed=1)
        for slot, position in enumerate(part):
            search.start(slot, position, game=first + slot)
        search.run(simulations=SIMULATIONS, noise=False, stop=stop)
        if stop():
            raise Stopped("stopped while the hand-written player was compared with the network")
        moves = zip(*map(np.ndarray.tolist, search.choose()), strict=True)
        found += [
            read_search(search.root(slot), *move).best_value for slot, move in enumerate(moves)
        ]
        tick(len(found))
    return (np.array(found) + 1.0) / 2.0


def compare_values(
    network_N: NDArray[np.float64], by_hand_N: NDArray[np.float64], rows: Batch
) -> Teacher:
    """Compare both players' expected scores with evaluations or, if too few, with results."""
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
        np.square(calibrate_halves(one[known_N], truth_N, games_N) - truth_N)
        for one in (network_N, by_hand_N)
    ]
    _, low, high = clustered_mean(errors[1] - errors[0], games_N)
    return Teacher(
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
    """Calibrate the expected scores of each half of the games with the other half's factor."""
    import torch

    from model.calibration import fit_factor, scale_wdl

    wdl, target = (
        np.stack([one, np.zeros_like(one), 1 - one], axis=1) for one in (values_N, truth_N)
    )
    half_N = np.unique(games_N, return_inverse=True)[1] % 2 == 0
    found_N = np.empty(len(values_N))
    for mine_N in (half_N, ~half_N):
        seen = torch.from_numpy(wdl[~mine_N]), torch.from_numpy(target[~mine_N])
        factor = fit_factor(*seen, games_N[~mine_N])
        found_N[mine_N] = scale_wdl(torch.from_numpy(wdl[mine_N]), factor)[:, 0].numpy()
    return found_N


def teach_by_hand(config: FinetuneConfig, rows: int) -> FinetuneConfig:
    """Return the settings for learning the value from the hand-written player.

    Only settings with default values are changed, including the search. The searches teach the
    value, not the policy.
    """
    defaults, many = FinetuneConfig(generations=1), rows >= MANY_ROWS
    near_share = (NEAR_SHARE_MANY_ROWS if many else NEAR_SHARE) * (1.0 - config.games_share)
    changes: dict[str, Any] = {"near_share": near_share, "human_share": HUMAN_SHARE}
    config = _replace_defaults(config, defaults, changes)
    people = max(1.0 - config.near_share - config.games_share, MIN_SHARE)
    from_people = round(HUMAN_POSITIONS_PER_ROW * rows / people)
    count = max(1, min(MAX_POSITIONS, POSITIONS_PER_ROW * rows, from_people))
    own_search = replace(defaults.explore.search, algorithm="puct", simulations=SIMULATIONS)
    changes = {"count": count, "search": own_search}
    explore = _replace_defaults(config.explore, defaults.explore, changes)
    changes = dict(TRAIN_DEFAULTS_MANY_ROWS if many else TRAIN_DEFAULTS)
    train = _replace_defaults(config.train, defaults.train, changes)
    return replace(
        config,
        explore=replace(explore, explorer="hand-written"),
        train=replace(train, teach="value"),
    )


def _replace_defaults(settings: Any, defaults: Any, changes: Mapping[str, Any]) -> Any:
    applied = {
        name: value
        for name, value in changes.items()
        if getattr(settings, name) == getattr(defaults, name)
    }
    return replace(settings, **applied)
