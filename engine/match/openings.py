"""Generate the openings of a match from a seed, or read them from an EPD or PGN file.

A generated opening is a short, human-like line from the initial position. Its moves are sampled by
an evaluator's policy and values, and its final position is balanced according to the evaluator. All
final positions are different. Each opening is played with both colors, so the remaining imbalance
affects both players equally.

Axes: B lines, P planes, A labels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import chess
import chess.pgn
import numpy as np
from numpy.typing import NDArray

from engine.board.position import FenError, from_board, from_fen
from engine.encoding.planes import label_from_move, planes_of
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator

MAX_IMBALANCE = 0.15
"""Maximum |win - loss| of a balanced position."""
LINES_PER_BATCH = 32
"""Number of lines generated per batch."""
VALUE_TEMPERATURE = 0.025
"""Difference of win - loss that counts as much as one nat of the policy."""
MAX_FRUITLESS_BATCHES = 20
"""Consecutive batches without a new balanced line before BookError is raised."""


class BookError(UserError):
    """A book cannot be read or generated, or has too few openings."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Opening of a game: a position and moves after it."""

    fen: str
    """Position before the first move."""
    moves: tuple[str, ...] = ()
    """Moves of the opening, in UCI notation."""

    def board(self) -> chess.Board:
        """Return the board after the moves, with the moves on its stack."""
        board = chess.Board(self.fen)
        for move in self.moves:
            board.push_uci(move)
        return board


def generate_openings(
    count: int, evaluator: Evaluator, *, seed: int = 0, plies: int = 8
) -> list[Opening]:
    """Generate `count` different openings of `plies` half-moves.

    With the same seed, a larger book begins with the openings of a smaller one. Raises BookError if
    `plies` is not 0 to 60, or if the evaluator finds too few balanced openings.
    """
    if not 0 <= plies <= 60:
        raise BookError(f"openings must have 0 to 60 plies, not {plies}")
    by_epd: dict[str, Opening] = {}
    rng = np.random.Generator(np.random.PCG64(seed))
    fruitless = 0
    while len(by_epd) < count:
        before = len(by_epd)
        for board, balance in _grow_lines(evaluator, rng, plies):
            if abs(balance) <= MAX_IMBALANCE and any(board.legal_moves) and not board.is_check():
                opening = Opening(
                    chess.STARTING_FEN, tuple(move.uci() for move in board.move_stack)
                )
                by_epd.setdefault(board.epd(), opening)
        fruitless = 0 if len(by_epd) > before else fruitless + 1
        if fruitless >= (MAX_FRUITLESS_BATCHES if plies else 1):
            raise BookError(
                f"only {len(by_epd)} balanced openings of {plies} plies were found, but {count} "
                "are needed: increase the plies"
            )
    return list(by_epd.values())[:count]


def _grow_lines(
    evaluator: Evaluator, rng: np.random.Generator, plies: int
) -> Iterator[tuple[chess.Board, float]]:
    """Generate LINES_PER_BATCH lines; yield the last board of each with its win - loss.

    Lines in which the game ends early are skipped. The value is that of the side to move.
    """
    boards = [chess.Board() for _ in range(LINES_PER_BATCH)]
    for _ in range(plies):
        boards = [board for board in boards if any(board.legal_moves)]
        drawn_B = rng.random(LINES_PER_BATCH)[: len(boards)]
        for board, (moves, scores_M), drawn in zip(
            boards, _score_moves(evaluator, boards), drawn_B, strict=True
        ):
            weights_M = np.exp(scores_M - scores_M.max())
            cumulative_M = np.cumsum(weights_M / weights_M.sum())
            board.push(moves[min(int(np.searchsorted(cumulative_M, drawn)), len(moves) - 1)])
    yield from zip(boards, _compute_balances(evaluator, boards).tolist(), strict=True)


def _score_moves(
    evaluator: Evaluator, boards: list[chess.Board]
) -> Iterator[tuple[list[chess.Move], NDArray[np.float64]]]:
    """Yield the moves of each board, with promotions to a queen only, and their scores.

    A score is the log-policy plus (win - loss) / VALUE_TEMPERATURE after the move, mover's view.
    """
    # copied, because the evaluator reuses its memory
    logits_BA = np.array(evaluator(planes_of(boards))[0], dtype=np.float64)
    moves_of_boards, after = [], []
    for board in boards:
        moves = [move for move in board.legal_moves if move.promotion in (None, chess.QUEEN)]
        moves_of_boards.append(moves)
        for move in moves:
            after.append(board.copy(stack=False))
            after[-1].push(move)
    values = -_compute_balances(evaluator, after)
    start = 0
    for board, moves, logits_A in zip(boards, moves_of_boards, logits_BA, strict=True):
        priors_M = logits_A[[label_from_move(move, board.turn) for move in moves]]
        values_M = values[start : start + len(moves)]
        yield moves, priors_M - priors_M.max() + values_M / VALUE_TEMPERATURE
        start += len(moves)


def _compute_balances(evaluator: Evaluator, boards: list[chess.Board]) -> NDArray[np.float64]:
    """Return win - loss for the side to move on each board, float64[B]."""
    wdl_BW = evaluator(planes_of(boards))[1].astype(np.float64)
    return np.asarray(wdl_BW[:, 0] - wdl_BW[:, 2])


def _open_text(path: Path) -> TextIO:
    return path.open(encoding="utf-8-sig", errors="replace")


def read_book(
    path: Path, *, plies: int = 0, open_text: Callable[[Path], TextIO] = _open_text
) -> list[Opening]:
    """Read the openings of a PGN file (.pgn), or of a file with one EPD or FEN per line.

    Of each PGN game, the first `plies` half-moves are read; 0 reads all. `open_text` may decompress
    the file (.pgn.zst). Raises BookError if the file is unreadable or empty, or if an opening is
    illegal or ends the game.
    """
    is_pgn = ".pgn" in (suffix.lower() for suffix in path.suffixes[-2:])
    try:
        with open_text(path) as file:
            openings = list(
                _read_pgn(path, file, plies) if is_pgn else _read_epd(path, file.read())
            )
    except BookError:
        raise
    except (OSError, UserError) as error:
        raise BookError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not openings:
        raise BookError(
            f"{path} has no openings: it must be PGN (.pgn), or EPD with one position per line"
        )
    return openings


def _read_epd(path: Path, text: str) -> Iterator[Opening]:
    """Yield the openings of EPD or FEN lines; skip blank lines and comments (#)."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        counters = words[4:6]
        if len(counters) < 2 or not all(word.isdigit() for word in counters):
            counters = ["0", "1"]
        yield _check_opening(Opening(" ".join(words[:4] + counters)), f"{path}, line {number}")


def _read_pgn(path: Path, file: TextIO, plies: int) -> Iterator[Opening]:
    """Yield the first `plies` half-moves (0: all) of each game's main line in a PGN file."""
    games = iter(partial(chess.pgn.read_game, file), None)
    for number, game in enumerate(games, 1):
        where = f"{path}, game {number}"
        if game.errors:
            raise BookError(f"{where}: {game.errors[0]}")
        moves = [move.uci() for move in game.mainline_moves()]
        yield _check_opening(Opening(game.board().fen(), tuple(moves[: plies or None])), where)


def _check_opening(opening: Opening, where: str) -> Opening:
    """Return the opening; raise BookError if it is illegal or the game is over after it."""
    try:
        from_fen(opening.fen)
        board = opening.board()
        from_board(board)
    except FenError as error:
        raise BookError(f"{where}: {error}") from error
    if board.is_game_over(claim_draw=False) or board.is_repetition(3) or board.is_fifty_moves():
        raise BookError(f"{where}: the game is over at the end of this opening")
    return opening


def choose_openings(openings: list[Opening], count: int, *, seed: int = 0) -> list[Opening]:
    """Return `count` different openings of a book, in random order.

    Raises BookError if the book is too small: with repeated openings, deterministic players would
    repeat their games.
    """
    if count > len(openings):
        raise BookError(
            f"the book has {len(openings)} openings, but {count} pairs of games need one each: "
            "play fewer games, or use a larger book"
        )
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(openings))
    return [openings[index] for index in order[:count]]
