"""Weigh players on positions that a strong engine has judged, move by move: what they play, and what they would be taught.

A match of 400 games tells 35 Elo from none. Here every position compares all players, so a thousand tell one per cent of an
expected score, in a minute; but they tell it by the engine's opinion, and a match is what a claim of strength rests on.

Of each player: `policy_loss`, the expected score lost by drawing moves from the bare policy; `taught_loss`, the same for the
policy that self-play would record of its search; `chosen_loss`, for the move that the search plays; all against the best move.

Axes: N positions, M legal moves of one of them.
"""

import shlex
from collections.abc import Sequence
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import from_board
from engine.encoding.planes import move_of
from engine.evaluation.evaluator import Evaluator
from engine.match.players import Player
from engine.progress import Progress, Tick, silent
from engine.search import Root, Search, SearchConfig
from pipeline.matches.config import SideConfig
from pipeline.matches.judgements import Judged, JudgeError
from pipeline.matches.players import installed, player_of
from pipeline.storage.preflight import require_program

NORMAL_95 = 1.96
"""Standard errors on either side of a mean of many, for 95 %."""
FEWEST = 30
"""Positions that an interval needs: the mean of fewer is not that of many."""
BARE = SearchConfig(simulations=1, policy_temperature=1.0)
"""A root that is opened and nothing more: its priors are the evaluator's policy, its value the evaluator's or a proof."""


def judging(engine: str) -> tuple[str, ...]:
    """Give the words that start the engine that judges, found where Debian puts it too."""
    command = tuple(shlex.split(engine))
    if not command:
        raise JudgeError("give the command that starts the engine, as in --engine stockfish")
    require_program(command := installed(command))
    return command


def searchers(sides: Sequence[SideConfig]) -> list[Player]:
    """Make the players to weigh: JudgeError for one that does not search by simulations, PlayerError for none."""
    players = [player_of(side, seed=1)[0] for side in sides]
    if not players:
        raise JudgeError("give at least one player")
    for side, player in zip(sides, players, strict=True):
        if player.evaluator is None or player.search is None or player.limit.timed:
            raise JudgeError(f"{side.who}: a player that searches by simulations is weighed, and no other")
    return players


def weigh(
    sides: Sequence[SideConfig],
    found: Sequence[Judged],
    progress: Progress = silent,
    players: Sequence[Player] | None = None,
) -> dict[str, Any]:
    """Weigh players, which search by simulations, on judged positions; the first is whom the others are compared with.

    Gives `players`, a row each with `chosen_against_first` and its 95 % interval. `players` are `searchers(sides)` where
    they have been made already. Raises what `searchers` raises.
    """
    players = players or searchers(sides)
    if not found:
        raise JudgeError("give at least one judged position")
    best_N = np.array([one.best for one in found])
    rows, first_N = list[dict[str, Any]](), None
    for number, (side, player) in enumerate(zip(sides, players, strict=True)):
        assert player.evaluator is not None, "searchers() has looked"
        assert player.search is not None, "searchers() has looked"
        row, chosen_N = _weighed(player.evaluator, player.search, found, best_N)
        first_N = chosen_N if first_N is None else first_N
        rows.append({"player": player.name, "options": list(side.options), **row, **_against(chosen_N - first_N)})
        progress(Tick(number + 1, len(sides), "players"))
    return {"positions": len(found), "best_score": round(float(best_N.mean()), 4), "players": rows}


def _weighed(
    evaluator: Evaluator, config: SearchConfig, found: Sequence[Judged], best_N: NDArray[np.float64]
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Give a player's row, and what each move that it chose lost, float64[N]."""
    bare, searched = (_searched(evaluator, one, found) for one in (BARE, config))
    policy_N, taught_N, chosen_N = np.zeros((3, len(found)))
    values_N = np.zeros(len(found))
    labels, promotions = searched.choose(criterion="visits")
    for at, one in enumerate(found):
        turn, root, opened = chess.Board(one.fen).turn, searched.root(at), bare.root(at)
        chosen_N[at] = one.scores[move_of(int(labels[at]), int(promotions[at]), turn).uci()]
        policy_N[at] = _mean(one, opened, opened.priors, turn)
        values_N[at] = (opened.value + 1) / 2
        # a root that is proven at once has no visits to share out: what is taught is the move
        taught_N[at] = _mean(one, root, root.improved, turn) if root.improved.sum() > 0 else chosen_N[at]
    lost = {"policy_loss": policy_N, "taught_loss": taught_N, "chosen_loss": chosen_N}
    error = float(np.sqrt(np.mean((values_N - best_N) ** 2)))
    spread = {name: round(float((best_N - scores_N).mean()), 4) for name, scores_N in lost.items()}
    evaluations = round(searched.evaluations / len(found), 1)
    return {**spread, "value_error": round(error, 4), "evaluations": evaluations}, best_N - chosen_N


def _searched(evaluator: Evaluator, config: SearchConfig, found: Sequence[Judged]) -> Search:
    """Search all positions side by side."""
    search = Search(evaluator, config, games=len(found), seed=1)
    for slot, one in enumerate(found):
        search.start(slot, from_board(chess.Board(one.fen)))
    search.run()
    return search


def _mean(one: Judged, root: Root, weights_M: NDArray[np.float32], turn: chess.Color) -> float:
    """Give the mean score of a root's moves by their weights."""
    moves = zip(root.labels.tolist(), root.promotions.tolist(), strict=True)
    scores_M = np.array([one.scores[move_of(label, promotion, turn).uci()] for label, promotion in moves])
    return float(np.average(scores_M, weights=weights_M))


def _against(difference_N: NDArray[np.float64]) -> dict[str, Any]:
    """Give the mean of paired differences of loss and its interval, None of few; below 0 is better than the first player."""
    mean, count = float(difference_N.mean()), len(difference_N)
    told: dict[str, Any] = {"chosen_against_first": round(mean, 4), "low": None, "high": None}
    if count < FEWEST:
        return told | {"interval": f"none: {count} positions, and it takes {FEWEST} or more"}
    half = NORMAL_95 * float(difference_N.std(ddof=1)) / count**0.5
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return told | {"low": round(low, 4), "high": round(high, 4), "interval": "95 %, positions drawn"}


def text_of(result: dict[str, Any]) -> str:
    """Write the table as Markdown."""
    head = "player|policy loss|taught loss|chosen loss|against the first (95 %)|value error|evaluations"
    lines = [f"| {' | '.join(head.split('|'))} |", "|" + "---|" * len(head.split("|"))]
    for row in result["players"]:
        name = " ".join([row["player"], *row["options"]])
        between = "too few positions" if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}"
        against = f"{row['chosen_against_first']:+.4f} ({between})"
        losses = " | ".join(f"{row[key]:.4f}" for key in ("policy_loss", "taught_loss", "chosen_loss"))
        lines.append(f"| {name} | {losses} | {against} | {row['value_error']:.4f} | {row['evaluations']:.1f} |")
    return "\n".join(lines)
