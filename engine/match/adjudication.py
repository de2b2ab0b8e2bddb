"""Optional adjudication: a game ends early when both players' scores say that one side has lost, or that it is a draw."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import UserError


class AdjudicationError(UserError):
    """Settings of adjudication out of range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjudication:
    """When games end without the rules of chess; all of it is off by default but the longest game."""

    resign_score: int = 0
    """A game ends when both players see the same side ahead by so many centipawns; 0 for never."""
    resign_moves: int = 4
    """Moves in a row of each player that must show it."""
    draw_score: int = 0
    """A game is a draw when both players' scores stay within so many centipawns of 0; 0 for never."""
    draw_moves: int = 8
    """Moves in a row of each player that must show it."""
    draw_after: int = 40
    """Moves of the game before which no draw is called."""
    max_plies: int = 600
    """Half-moves, those of the opening included, after which a game is a draw; 0 for no limit."""

    def __post_init__(self) -> None:
        for name in ("resign_score", "draw_score", "draw_after", "max_plies"):
            if getattr(self, name) < 0:
                raise AdjudicationError(f"{name.replace('_', '-')} must be 0 or more, not {getattr(self, name)}")
        for name in ("resign_moves", "draw_moves"):
            if getattr(self, name) < 1:
                raise AdjudicationError(f"{name.replace('_', '-')} must be 1 or more, not {getattr(self, name)}")


def adjudicated(rules: Adjudication, scores: Sequence[int | None], ply: int) -> str | None:
    """Return how a game is adjudicated after `ply` half-moves: `1-0`, `0-1`, `1/2-1/2`, or None while it goes on.

    `scores` are centipawns from White's view, of the players' moves so far in turn, None where a player sent no score.
    """
    if rules.max_plies and ply >= rules.max_plies:
        return "1/2-1/2"
    if rules.resign_score and (latest := _latest(scores, rules.resign_moves)):
        if min(latest) >= rules.resign_score:
            return "1-0"
        if max(latest) <= -rules.resign_score:
            return "0-1"
    if rules.draw_score and ply >= 2 * rules.draw_after:
        latest = _latest(scores, rules.draw_moves)
        if latest and max(abs(score) for score in latest) <= rules.draw_score:
            return "1/2-1/2"
    return None


def _latest(scores: Sequence[int | None], moves: int) -> list[int]:
    """Return the scores of both players' last moves, none where there are too few or one is missing."""
    latest = [score for score in scores[-2 * moves :] if score is not None]
    return latest if len(latest) == 2 * moves else []
