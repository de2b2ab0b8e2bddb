"""Find one player's mistakes in a game, and their kinds.

The network scores each position without a search. Where a move of the player seems to lose, a
search of the position looks for a better move, and a search of the position after the move decides
what it lost. Games with [%eval] comments keep their scores.

Axes: B boards, W outcomes. Material and exchanges are in units of ten centipawns, as in
engine/evaluation/move_features.py.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import chess

from engine.encoding.planes import label_from_move, planes_of
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.move_features import CENTIPAWNS_PER_UNIT, MOVE_FEATURES, legal_move_features
from engine.evaluation.static_exchange import EXCHANGE_VALUES
from engine.player import Conditions, Play, Player, Request, Style
from engine.player.policy import evaluate
from engine.search import SearchConfig
from pipeline.board import scores
from pipeline.board.game import PlayerGame, number_moves

SIMULATIONS = 24
"""Simulations of each position before and after a suspected mistake."""
MIN_SUSPECT_LOSS = 0.08
"""Minimum loss, by the network's values without a search, for which a move is searched."""
MAX_BATCH = 64
"""Maximum number of positions that are searched together."""
LOW_TIME_SHARE = 0.1
"""Share of the starting time below which time is short."""
Row = dict[str, Any]


class GameReview(NamedTuple):
    """Results of one game."""

    mistakes: list[Row]
    """The player's mistakes, in order."""
    moves: Counter[bool]
    """Number of the player's moves with a known clock, by whether time was short."""


def review_game(checkpoint: Path, game: PlayerGame) -> GameReview:
    """Return the player's mistakes in a game, and counts of moves with and without time trouble."""
    evaluator, boards = _open_evaluator(checkpoint), _replay(game)
    white = list(game.white_scores) or _score_boards(boards, evaluator)
    for ply, board in enumerate(boards):
        if (final := scores.score_if_over(board)) is not None:
            white[ply] = final
    margin = scores.BLUNDER if game.white_scores else MIN_SUSPECT_LOSS
    suspects = [
        ply
        for ply, board in enumerate(boards[:-1])
        if board.turn == game.color
        and scores.measure_loss(white[ply], white[ply + 1], game.color) > margin
    ]
    plays = _search([boards[ply] for ply in suspects], evaluator)
    searched = zip(suspects, plays, strict=True)
    better = {ply: play for ply, play in searched if play and play.move != game.moves[ply]}
    answers = _search([boards[ply + 1] for ply in better], evaluator)
    is_short, mistakes = _find_time_trouble(game, boards), list[Row]()
    for (ply, before), after in zip(better.items(), answers, strict=True):
        if not game.white_scores:
            white[ply] = scores.score_for_white(boards[ply], before)
            if after is not None:
                white[ply + 1] = scores.score_for_white(boards[ply + 1], after)
        loss = scores.measure_loss(white[ply], white[ply + 1], game.color)
        if loss > scores.BLUNDER:
            start, end = (one if game.color else 1 - one for one in white[ply : ply + 2])
            mistake = Mistake(boards[ply], game.moves[ply], start, end, before, after)
            row = {"game": game.index, "ply": ply + 1, "loss": loss, "short": is_short.get(ply)}
            mistakes.append(_describe_mistake(mistake) | row)
    return GameReview(mistakes, Counter(is_short.values()))


@lru_cache(maxsize=1)
def _open_evaluator(checkpoint: Path) -> Evaluator:
    """Open a checkpoint's export on one thread, or the checkpoint if it has none."""
    from model.inference.onnx_evaluator import find_export

    if (exported := find_export(checkpoint)) is not None:
        return exported
    from model.inference.evaluator import evaluator

    return evaluator(checkpoint, device="cpu")


def _replay(game: PlayerGame) -> list[chess.Board]:
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
    movers = (wdl_BW[:, 0] + wdl_BW[:, 1] / 2).tolist()
    return [one if board.turn else 1 - one for one, board in zip(movers, boards, strict=True)]


def _search(boards: Sequence[chess.Board], evaluator: Evaluator) -> list[Play | None]:
    """Search positions in batches; return None for those without a legal move."""
    searched = [board for board in boards if any(board.legal_moves)]
    plays: list[Play] = []
    for first in range(0, len(searched), MAX_BATCH):
        batch = searched[first : first + MAX_BATCH]
        style = Style(search=SearchConfig(simulations=SIMULATIONS))
        # the result must not depend on the other positions of the batch
        player = Player(evaluator, style, games=len(batch), double_single_rows=True)
        requests = [Request(board=board, slot=slot) for slot, board in enumerate(batch)]
        plays += player.play_all(requests)
    left = iter(plays)
    return [next(left) if any(board.legal_moves) else None for board in boards]


def _find_time_trouble(game: PlayerGame, boards: Sequence[chess.Board]) -> dict[int, bool]:
    """Return whether less than LOW_TIME_SHARE of the starting time was left before each move.

    The keys are the half-moves played before the move; moves with an unknown clock are left out.
    """
    start = game.tag("TimeControl").partition("+")[0]
    initial = float(start) if start.isdecimal() else max(game.clocks.values(), default=0)
    return {
        ply: game.clocks[ply - 1] < LOW_TIME_SHARE * initial
        for ply in range(2, len(game.moves))
        if boards[ply].turn == game.color and ply - 1 in game.clocks
    }


# ---------------------------------------------------------------- kinds


WON_SCORE = 0.75
"""Minimum expected score of a won position."""
PAWN, TWO_PAWNS = 10, 20
"""Value of a pawn and of two, in units of ten centipawns."""
OPENING_PLIES, ENDGAME_PIECES = 24, 6
"""Half-moves of the opening, and maximum number of pieces besides kings and pawns in an endgame."""
DEFINITIONS = (
    f"A mistake loses more than {scores.BLUNDER} of the expected score, with a mate counted as ten"
    f" pawns. The opening lasts 12 moves; in an endgame at most {ENDGAME_PIECES} pieces are left"
    " besides kings and pawns; the middlegame lies between. Material is won if it is worth two"
    " pawns or more, by captures on one square unless a line is named. Best moves, answers and"
    f" lines are those of a search with {SIMULATIONS} simulations."
)


@dataclass(frozen=True)
class Mistake:
    """A move that lost expected score, with searches of the positions before and after it.

    Move features are by name (engine/evaluation/move_features.py), and all 0 for no move.
    """

    board: chess.Board
    """The position before the move, with the last moves."""
    move: chess.Move
    score: float
    """The player's expected score before the move."""
    score_after: float
    before: Play
    after: Play | None
    """None if the move ended the game."""

    @property
    def best(self) -> chess.Move:
        """The best move."""
        return self.before.move

    @cached_property
    def board_after(self) -> chess.Board:
        """The position after the move."""
        after = self.board.copy(stack=False)
        after.push(self.move)
        return after

    @cached_property
    def played(self) -> dict[str, int]:
        """Features of the move played."""
        return _read_features(self.board, self.move)

    @cached_property
    def better(self) -> dict[str, int]:
        """Features of the best move."""
        return _read_features(self.board, self.best)

    @cached_property
    def reply(self) -> dict[str, int]:
        """Features of the opponent's best answer."""
        return _read_features(self.board_after, self.after.move if self.after else None)

    @cached_property
    def gain(self) -> int:
        """Material that the player gains by the move, the best answer and its variation."""
        answers = self.after.moves[0].variation if self.after else ()
        return measure_line(self.board, [self.move, *answers])

    @cached_property
    def best_gain(self) -> int:
        """Material that the player gains by the best move and its variation."""
        return measure_line(self.board, self.before.moves[0].variation)

    @cached_property
    def is_endgame(self) -> bool:
        """Whether the position before the move is an endgame."""
        return find_phase(self.board) == "endgame"


def _read_features(board: chess.Board, move: chess.Move | None) -> dict[str, int]:
    """Return the features of a legal move by name."""
    if move is None:
        return dict.fromkeys(MOVE_FEATURES, 0)
    found = legal_move_features(planes_of([board]))
    row = found["moves"].tolist().index(label_from_move(move, board.turn))
    return dict(zip(MOVE_FEATURES, found["move_features"][row].tolist(), strict=True))


def measure_line(board: chess.Board, line: Sequence[chess.Move]) -> int:
    """Return the material that the side to move on `board` gains in a line.

    At its end, the side then to move makes the capture that gains most by exchanges on one square.
    """
    end = board.copy(stack=False)
    for move in line:
        end.push(move)
    features = legal_move_features(planes_of([end]))["move_features"].astype(int)
    takes, risks = (features[:, MOVE_FEATURES.index(name)] for name in ("takes", "risks"))
    settled = max((takes - risks).tolist(), default=0)
    gained = _count_material(end, board.turn) - _count_material(board, board.turn)
    return gained + max(settled, 0) * (1 if end.turn == board.turn else -1)


def _count_material(board: chess.Board, color: chess.Color) -> int:
    """Return a side's material minus its opponent's."""
    worth = (EXCHANGE_VALUES[::2] // CENTIPAWNS_PER_UNIT).tolist()
    return sum(
        worth[piece.piece_type - 1] * (1 if piece.color == color else -1)
        for piece in board.piece_map().values()
    )


def _is_piece(board: chess.Board, move: chess.Move, piece: chess.PieceType) -> bool:
    return board.piece_type_at(move.from_square) == piece


def _is_recapture(board: chess.Board, move: chess.Move) -> bool:
    """Return whether a move takes the piece that has just captured."""
    if not board.move_stack or board.peek().to_square != move.to_square:
        return False
    before = board.copy(stack=1)
    return before.is_capture(before.pop())


def _measure_capture(features: Mapping[str, int]) -> int:
    """Return what a move wins by captures on its target square; negative for a loss."""
    return features["takes"] - features["risks"]


def _measure_exposure(features: Mapping[str, int]) -> int:
    """Return what the opponent can win by captures on one square, less what the move took."""
    return max(features["risks"], features["leaves"]) - features["takes"]


def _is_fork(features: Mapping[str, int]) -> bool:
    """Return whether a move is a fork: two attacks, or a check and an attack, at no loss."""
    attacked = "threatens" if features["check"] else "threatens_next"
    return _measure_capture(features) >= 0 and features[attacked] >= TWO_PAWNS


def advances_passed_pawn(board: chess.Board, move: chess.Move) -> bool:
    """Return whether a passed pawn moves: no enemy pawn is ahead of it, or beside its file."""
    if not _is_piece(board, move, chess.PAWN):
        return False
    file, rank = chess.square_file(move.from_square), chess.square_rank(move.from_square)
    ahead = range(rank + 1, 8) if board.turn else range(rank)
    return not any(
        abs(chess.square_file(pawn) - file) <= 1 and chess.square_rank(pawn) in ahead
        for pawn in board.pieces(chess.PAWN, not board.turn)
    )


def opens_king(board: chess.Board, move: chess.Move) -> bool:
    """Return whether a pawn moves that stood one or two ranks before the mover's king on a wing."""
    king = board.king(board.turn)
    if king is None or not _is_piece(board, move, chess.PAWN) or 3 <= chess.square_file(king) <= 4:
        return False
    ranks = [chess.square_rank(square) for square in (king, move.from_square)]
    home, pawn = ranks if board.turn else [7 - rank for rank in ranks]
    beside = abs(chess.square_file(move.from_square) - chess.square_file(king)) <= 1
    return beside and home <= 1 and home < pawn <= home + 2


KINDS: Mapping[str, tuple[str, Callable[[Mistake], bool]]] = {
    "missed a mate": (
        "The search proves a mate, and the move played keeps no win.",
        lambda it: it.before.moves[0].mate > 0 and it.score_after < WON_SCORE,
    ),
    "allowed a mate": (
        "After the move, the search proves a mate for the opponent.",
        lambda it: it.after is not None and it.after.moves[0].mate > 0,
    ),
    "captured at a loss": (
        "The opponent's recaptures win more than the capture took.",
        lambda it: it.played["takes"] > 0 and _measure_capture(it.played) <= -TWO_PAWNS,
    ),
    "put a piece en prise": (
        "The opponent wins the piece on the square to which it moved.",
        lambda it: _measure_capture(it.played) <= -TWO_PAWNS,
    ),
    "left a piece hanging": (
        "The opponent wins a piece on another square, worth more than the move took; after the best"
        " move it does not.",
        lambda it: _measure_exposure(it.played) >= TWO_PAWNS > _measure_exposure(it.better),
    ),
    "did not recapture": (
        "The best move takes the piece that has just captured.",
        lambda it: _is_recapture(it.board, it.best),
    ),
    "missed a capture": (
        "The best move wins material by captures on one square; the move played does not.",
        lambda it: _measure_capture(it.better) >= TWO_PAWNS > _measure_capture(it.played),
    ),
    "allowed a fork": (
        "The opponent's best answer attacks two pieces that can be won, or gives check and attacks"
        " one.",
        lambda it: _is_fork(it.reply),
    ),
    "missed a fork": (
        "The best move attacks two pieces that can be won, or gives check and attacks one.",
        lambda it: _is_fork(it.better) and not _is_fork(it.played),
    ),
    "allowed a tactic": (
        "The opponent wins material in the line that follows.",
        lambda it: it.gain <= -TWO_PAWNS,
    ),
    "missed a tactic": (
        "The best line wins material; the line after the move played does not.",
        lambda it: it.best_gain >= TWO_PAWNS > it.gain,
    ),
    "let a passed pawn advance": (
        "In an endgame, the opponent's best answer is a move of a passed pawn.",
        lambda it: (
            it.is_endgame
            and it.after is not None
            and advances_passed_pawn(it.board_after, it.after.move)
        ),
    ),
    "did not advance a passed pawn": (
        "In an endgame, the best move is made by a passed pawn.",
        lambda it: it.is_endgame and advances_passed_pawn(it.board, it.best),
    ),
    "opened the king": (
        "Before the endgame, a pawn leaves its place before the king on a wing.",
        lambda it: not it.is_endgame and opens_king(it.board, it.move),
    ),
    "should have moved the king": (
        "In an endgame, the best move is made by the king.",
        lambda it: it.is_endgame and _is_piece(it.board, it.best, chess.KING),
    ),
    "lost a pawn": (
        "The opponent wins a pawn by captures on one square, beyond what the move took; after the"
        " best move it does not.",
        lambda it: _measure_exposure(it.played) >= PAWN > _measure_exposure(it.better),
    ),
    "missed a pawn": (
        "The best move wins a pawn by captures on one square; the move played does not.",
        lambda it: _measure_capture(it.better) >= PAWN > _measure_capture(it.played),
    ),
    "traded when it should not": (
        "The move captures, and the best move does not.",
        lambda it: it.played["takes"] > 0 == it.better["takes"],
    ),
    "missed a check": (
        "The best move gives check.",
        lambda it: it.better["check"] > 0 == it.played["check"],
    ),
    "missed an attack": (
        "The best move attacks a piece that can be won; the move played does not.",
        lambda it: it.better["threatens"] >= TWO_PAWNS > it.played["threatens"],
    ),
    "other": ("Any other mistake.", lambda _: True),
}
"""Definition and rule of each kind of mistake; a mistake belongs to the first that fits."""


def find_kind(mistake: Mistake) -> str:
    """Return the first of KINDS that fits."""
    return next(name for name, (_, fits) in KINDS.items() if fits(mistake))


def find_phase(board: chess.Board) -> str:
    """Return `opening`, `middlegame` or `endgame` (DEFINITIONS)."""
    pieces = board.occupied & ~board.pawns & ~board.kings
    if pieces.bit_count() <= ENDGAME_PIECES:
        return "endgame"
    return "opening" if board.ply() < OPENING_PLIES else "middlegame"


def _describe_mistake(mistake: Mistake) -> Row:
    board, move, best = mistake.board, mistake.move, mistake.before.move
    lost = scores.measure_loss(mistake.score, mistake.score_after)
    return {
        "kind": find_kind(mistake),
        "phase": find_phase(board),
        "uci": move.uci(),
        "best_uci": best.uci(),
        "text": f"{number_moves([move], board)[0]} lost {lost:.2f}; {board.san(best)} was better",
    }
