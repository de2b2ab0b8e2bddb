"""Find one player's mistakes in a game, and their kinds.

The network scores each position without a search. Where a move of the player seems to lose, a
search of the position looks for a better move, and a search of the position after the move decides
what it lost. Games with [%eval] comments keep their scores.

Axes: B boards, F move features, M legal moves, W outcomes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import chess
import chess.pgn

from engine.encoding.planes import LABELS, label_of, planes_of
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.move_features import LEAVES, RISKS, TAKES, legal_move_features
from engine.player import Conditions, Play, Player, Request, Style
from engine.player.policy import evaluate
from engine.search import SearchConfig
from pipeline.board import scores
from pipeline.board.game import number_moves, read_rating

SIMULATIONS = 24
"""Simulations of each position before and after a suspected mistake."""
MIN_SUSPECT_LOSS = 0.08
"""Minimum loss, by the network's values without a search, for which a move is searched."""
BATCH = 64
"""Maximum number of positions that are searched together."""
WON_SCORE, TWO_PAWNS = 0.75, 20
"""Expected score of a won position, and two pawns in tens of centipawns (move features)."""
OPENING_PLIES, ENDGAME_PIECES = 24, 6
LOW_TIME_SHARE = 0.1
"""Share of the starting time below which time is short."""
KINDS = {
    "missed a mate": "The search proves a mate, and the move played keeps no win.",
    "allowed a mate": "After the move, the search proves a mate for the opponent.",
    "left a piece hanging": "After the move, the opponent wins two pawns or more by captures on one"
    " square, beyond what the move itself took.",
    "missed a capture": "The best move wins two pawns or more by captures on one square; the move"
    " played does not.",
    "let a win slip": f"The expected score falls from at least {WON_SCORE} to less.",
    "other": "Any other mistake: a longer tactic, or the position.",
}
"""Kinds of mistakes with their definitions; a mistake belongs to the first that fits."""
DEFINITIONS = (
    f"A mistake loses more than {scores.BLUNDER} of the expected score, with a mate counted as ten"
    f" pawns. The opening lasts 12 moves; in an endgame at most {ENDGAME_PIECES} pieces are left"
    " besides kings and pawns; the middlegame lies between."
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OwnGame:
    """A game from the player's side, without references to python-chess's tree of moves."""

    index: int
    """Number of the game in the text."""
    color: chess.Color
    tags: Mapping[str, str]
    start: str
    """FEN of the first position."""
    moves: tuple[chess.Move, ...]
    white_scores: tuple[float, ...]
    """White's expected score in each position by the [%eval] comments; empty without them."""
    clocks: Mapping[int, float]
    """Seconds left after a half-move on the clock of the side that made it; the first is 1."""

    def tag(self, name: str) -> str:
        """Return a tag, or "" if it is unknown."""
        return self.tags.get(name, "").strip("?")

    @property
    def score(self) -> float | None:
        """The player's score, 0 to 1; None if the game has no result."""
        white = {"1-0": 1.0, "1/2-1/2": 0.5, "0-1": 0.0}.get(self.tag("Result"))
        return white if white is None or self.color else 1 - white

    @property
    def expected(self) -> float | None:
        """The score that the ratings predict; None if one is unknown."""
        own, other = (
            read_rating(self.tags, chess.COLOR_NAMES[side]) for side in (self.color, not self.color)
        )
        return None if own is None or other is None else 1 / (1 + 10 ** ((other - own) / 400))

    @property
    def opening(self) -> str:
        """The opening's name without its variation, or else the first four half-moves."""
        if name := self.tag("Opening"):
            return name.partition(":")[0][:80]
        return " ".join(number_moves(self.moves[:4], chess.Board(self.start)))


def read_own_game(index: int, game: chess.pgn.Game, color: chess.Color) -> OwnGame:
    """Return a parsed game from the side of one of its players."""
    nodes: list[chess.pgn.GameNode] = [game, *game.mainline()]
    clocks: dict[int, float] = {}
    for ply, node in enumerate(nodes):
        with suppress(ValueError, OverflowError):  # numbers with hundreds of digits
            if (left := node.clock()) is not None:
                clocks[ply] = left
    moves = tuple(game.mainline_moves())
    has_scores = scores.has_scores(game)
    white = tuple(scores.score_in_game(node) for node in nodes) if has_scores else ()
    return OwnGame(index, color, dict(game.headers), game.board().fen(), moves, white, clocks)


class GameReview(NamedTuple):
    """Results of one game."""

    mistakes: list[Row]
    """The player's mistakes, in order."""
    moves: Counter[bool]
    """The player's moves with a known clock, by whether time was short."""


def review_game(checkpoint: Path, game: OwnGame) -> GameReview:
    """Return the player's mistakes in a game, and the number of moves by clock."""
    evaluator, boards = _open_evaluator(checkpoint), _replay(game)
    white = list(game.white_scores) or _score_boards(boards, evaluator)
    for ply, board in enumerate(boards):
        if (final := scores.final_score(board)) is not None:
            white[ply] = final
    margin = scores.BLUNDER if game.white_scores else MIN_SUSPECT_LOSS
    suspects = [
        ply
        for ply, board in enumerate(boards[:-1])
        if board.turn == game.color
        and scores.bounded_loss(white[ply], white[ply + 1], game.color) > margin
    ]
    plays = _search([boards[ply] for ply in suspects], evaluator)
    found = zip(suspects, plays, strict=True)
    better = {ply: play for ply, play in found if play and play.move != game.moves[ply]}
    answers = _search([boards[ply + 1] for ply in better], evaluator)
    short, mistakes = _short_of_time(game, boards), list[Row]()
    for (ply, before), after in zip(better.items(), answers, strict=True):
        if not game.white_scores:
            white[ply] = scores.score_for_white(boards[ply], before)
            if after is not None:
                white[ply + 1] = scores.score_for_white(boards[ply + 1], after)
        loss = scores.bounded_loss(white[ply], white[ply + 1], game.color)
        if loss > scores.BLUNDER:
            own = [score if game.color else 1 - score for score in white[ply : ply + 2]]
            row = _describe_mistake(boards[ply], game.moves[ply], own, before, after)
            row |= {"game": game.index, "ply": ply + 1, "loss": loss, "short": short.get(ply)}
            mistakes.append(row)
    return GameReview(mistakes, Counter(short.values()))


@lru_cache(maxsize=1)
def _open_evaluator(checkpoint: Path) -> Evaluator:
    """Open a checkpoint's export on one thread, or the checkpoint if it has none."""
    from model.inference.onnx_evaluator import find_export

    if (exported := find_export(checkpoint)) is not None:
        return exported
    from model.inference.evaluator import evaluator

    return evaluator(checkpoint, device="cpu")


def _replay(game: OwnGame) -> list[chess.Board]:
    """Return the board before the first move and after each move."""
    boards = [chess.Board(game.start)]
    for move in game.moves:
        # the network reads eight moves; repetitions need those since the last pawn move or capture
        boards.append(boards[-1].copy(stack=max(8, boards[-1].halfmove_clock)))
        boards[-1].push(move)
    return boards


def _score_boards(boards: Sequence[chess.Board], evaluator: Evaluator) -> list[float]:
    """Return White's expected scores by the network alone."""
    _, wdl_BW = evaluate(evaluator, boards, [Conditions()] * len(boards))
    own = (wdl_BW[:, 0] + wdl_BW[:, 1] / 2).tolist()
    return [one if board.turn else 1 - one for one, board in zip(own, boards, strict=True)]


def _search(boards: Sequence[chess.Board], evaluator: Evaluator) -> list[Play | None]:
    """Search positions in batches; return None for those without a legal move."""
    searched = [board for board in boards if any(board.legal_moves)]
    plays: list[Play] = []
    for first in range(0, len(searched), BATCH):
        part = searched[first : first + BATCH]
        style = Style(search=SearchConfig(simulations=SIMULATIONS))
        # the result must not depend on the other positions of the batch
        player = Player(evaluator, style, games=len(part), double_single_rows=True)
        requests = [Request(board=board, slot=slot) for slot, board in enumerate(part)]
        plays += player.play_all(requests)
    left = iter(plays)
    return [next(left) if any(board.legal_moves) else None for board in boards]


def _describe_mistake(
    board: chess.Board, move: chess.Move, own: Sequence[float], before: Play, after: Play | None
) -> Row:
    """Return kind, phase and text of a mistake; `own` are the player's scores around the move."""
    name, lost = number_moves([move], board)[0], scores.bounded_loss(own[0], own[1])
    return {
        "kind": _find_kind(board, move, own, before, after),
        "phase": _find_phase(board),
        "uci": move.uci(),
        "best_uci": before.move.uci(),
        "text": f"{name} lost {lost:.2f}; {board.san(before.move)} was better",
    }


def _find_kind(
    board: chess.Board, move: chess.Move, own: Sequence[float], before: Play, after: Play | None
) -> str:
    """Return the first of KINDS that fits."""
    if before.moves[0].mate > 0 and own[1] < WON_SCORE:
        return "missed a mate"
    if after is not None and after.moves[0].mate > 0:
        return "allowed a mate"
    features = legal_move_features(planes_of([board]))
    labels = (features["moves"] % LABELS).tolist()
    rows_MF = features["move_features"].astype(int)
    played_F, best_F = (
        rows_MF[labels.index(label_of(one, board.turn))] for one in (move, before.move)
    )
    if max(played_F[RISKS], played_F[LEAVES]) - played_F[TAKES] >= TWO_PAWNS:
        return "left a piece hanging"
    if best_F[TAKES] - best_F[RISKS] >= TWO_PAWNS > played_F[TAKES] - played_F[RISKS]:
        return "missed a capture"
    return "let a win slip" if own[0] >= WON_SCORE > own[1] else "other"


def _find_phase(board: chess.Board) -> str:
    pieces = board.occupied & ~board.pawns & ~board.kings
    if pieces.bit_count() <= ENDGAME_PIECES:
        return "endgame"
    return "opening" if board.ply() < OPENING_PLIES else "middlegame"


def _short_of_time(game: OwnGame, boards: Sequence[chess.Board]) -> dict[int, bool]:
    """Return whether a tenth of the starting time was left, by half-moves before the move."""
    start = game.tag("TimeControl").partition("+")[0]
    initial = float(start) if start.isdecimal() else max(game.clocks.values(), default=0)
    return {
        ply: game.clocks[ply - 1] < LOW_TIME_SHARE * initial
        for ply in range(2, len(game.moves))
        if boards[ply].turn == game.color and ply - 1 in game.clocks
    }
