"""Measure players on positions whose every legal move a strong engine has scored.

A match of 400 games distinguishes 35 Elo from none. Here all players are compared on every position, so a thousand positions
distinguish 1 % of an expected score in a minute. But the engine is no referee: a claim of strength needs a match.

Each player has three losses of expected score against the best move: `policy_loss` of moves drawn from the policy without
search, `taught_loss` of moves drawn from the policy target that self-play would record, `chosen_loss` of the move that the
search plays. Three errors compare values with the engine's: the evaluator's, the search's at its root, its best move's.

Axes: N positions, M legal moves of one of them.
"""

from collections.abc import Sequence
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import from_board
from engine.encoding.planes import move_of
from engine.evaluation.evaluator import Evaluator
from engine.progress import Progress, Stop, Tick, never, silent
from engine.search import Root, Search, SearchConfig
from pipeline.errors import Stopped
from pipeline.evaluation.intervals import NORMAL_95
from pipeline.evaluation.judgements import Judged, JudgeError
from pipeline.evaluation.render import markdown
from pipeline.matches.config import SideConfig
from pipeline.matches.players import player_of

VALUES = ("value_error", "root_error", "best_error")
"""Root mean square errors of expected scores: of the evaluator's value, a search's root and its best move."""
FEWEST = 30
"""Fewest positions for an interval: the mean of fewer is not normally distributed."""
BARE = SearchConfig(simulations=1, policy_temperature=1.0)
"""A search that only expands the root: its priors are the evaluator's policy, its value the evaluator's or proven."""


Searcher = tuple[str, Evaluator, SearchConfig]
"""Name, evaluator and search of a player."""


def searchers(sides: Sequence[SideConfig]) -> list[Searcher]:
    """Return the players; raises PlayerError, and JudgeError for no player or one that does not search by simulations."""
    found = []
    for side in sides:
        player, _ = player_of(side, seed=1)
        if player.evaluator is None or player.search is None or player.limit.timed:
            raise JudgeError(f"{side.who} does not search by simulations, so it cannot be compared")
        found.append((player.name, player.evaluator, player.search))
    if not found:
        raise JudgeError("give at least one player")
    return found


def weigh(
    players: Sequence[Searcher], found: Sequence[Judged], progress: Progress = silent, stop: Stop = never
) -> dict[str, Any]:
    """Measure players on judged positions; the others are compared with the first.

    Returns a row of `players` for each, with `chosen_against_first` and its 95 % interval. Raises JudgeError for no position,
    and Stopped within one evaluation of a batch.
    """
    if not found:
        raise JudgeError("give at least one judged position")
    best_N = np.array([one.best for one in found])
    rows, first_N = list[dict[str, Any]](), None
    for number, (name, evaluator, search) in enumerate(players, 1):
        row, chosen_N = _weigh_one(_stoppable(evaluator, stop), search, found, best_N)
        first_N = chosen_N if first_N is None else first_N
        rows.append({"player": name, **row, **_compare(chosen_N - first_N)})
        progress(Tick(number, len(players), "players"))
    return {"positions": len(found), "best_score": round(float(best_N.mean()), 4), "players": rows}


def _stoppable(evaluator: Evaluator, stop: Stop) -> Evaluator:
    """Return an evaluator that raises Stopped when the work should end."""

    def evaluate(planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if stop():
            raise Stopped("stopped while players were compared; run the same command to begin the comparison again")
        return evaluator(planes_BP)

    return evaluate


def _weigh_one(
    evaluator: Evaluator, config: SearchConfig, found: Sequence[Judged], best_N: NDArray[np.float64]
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Return a player's row, and the loss of each move that it chose, float64[N]."""
    bare, searched = (_searched(evaluator, one, found) for one in (BARE, config))
    policy_N, taught_N, chosen_N = np.zeros((3, len(found)))
    values = {name: np.zeros(len(found)) for name in VALUES}
    labels, promotions = searched.choose(criterion="visits")
    for at, one in enumerate(found):
        turn, root, opened = chess.Board(one.fen).turn, searched.root(at), bare.root(at)
        chosen_N[at] = one.scores[move_of(int(labels[at]), int(promotions[at]), turn).uci()]
        policy_N[at] = _mean(one, opened, opened.priors, turn)
        best = root.value_of(int(labels[at]), int(promotions[at]))
        for name, value in zip(VALUES, (opened.value, root.value, best), strict=True):
            values[name][at] = (value + 1) / 2
        # a root that is proven at once has no visits: the target is the chosen move
        taught_N[at] = _mean(one, root, root.improved, turn) if root.improved.sum() > 0 else chosen_N[at]
    lost = {"policy_loss": policy_N, "taught_loss": taught_N, "chosen_loss": chosen_N}
    errors = {name: round(float(np.sqrt(np.mean((values_N - best_N) ** 2))), 4) for name, values_N in values.items()}
    spread = {name: round(float((best_N - scores_N).mean()), 4) for name, scores_N in lost.items()}
    evaluations = round(searched.evaluations / len(found), 1)
    return {**spread, **errors, "evaluations": evaluations}, best_N - chosen_N


def _searched(evaluator: Evaluator, config: SearchConfig, found: Sequence[Judged]) -> Search:
    """Return a finished search of all positions."""
    search = Search(evaluator, config, games=len(found), seed=1)
    for slot, one in enumerate(found):
        search.start(slot, from_board(chess.Board(one.fen)))
    search.run()
    return search


def _mean(one: Judged, root: Root, weights_M: NDArray[np.float32], turn: chess.Color) -> float:
    """Return the mean score of a root's moves by these weights."""
    moves = zip(root.labels.tolist(), root.promotions.tolist(), strict=True)
    scores_M = np.array([one.scores[move_of(label, promotion, turn).uci()] for label, promotion in moves])
    return float(np.average(scores_M, weights=weights_M))


def _compare(difference_N: NDArray[np.float64]) -> dict[str, Any]:
    """Return the mean of paired differences of loss and its 95 % interval, None below FEWEST; negative is better."""
    mean, count = float(difference_N.mean()), len(difference_N)
    row: dict[str, Any] = {"chosen_against_first": round(mean, 4), "low": None, "high": None}
    if count < FEWEST:
        return row
    half = NORMAL_95 * float(difference_N.std(ddof=1)) / count**0.5
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return row | {"low": round(low, 4), "high": round(high, 4)}


def text_of(result: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    return markdown(
        "player|policy loss|taught loss|chosen loss|against the first (95 %)|value error|root's|best move's|evaluations",
        (
            (
                row["player"],
                *(f"{row[key]:.4f}" for key in ("policy_loss", "taught_loss", "chosen_loss")),
                f"{row['chosen_against_first']:+.4f} ({_interval(row)})",
                *(f"{row[name]:.4f}" for name in VALUES),
                f"{row['evaluations']:.1f}",
            )
            for row in result["players"]
        ),
    )


def _interval(row: dict[str, Any]) -> str:
    return "too few positions" if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}"
