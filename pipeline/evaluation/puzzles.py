"""Lichess puzzles solved by the bare policy: the share of puzzles whose every move is the network's first choice.

A puzzle is a CSV row `FEN,Moves,Rating,Themes,...` (database.lichess.org); its first move is the opponent's. As on Lichess,
any move that mates solves a mate in one.

Axes: B positions of a batch.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess
import numpy as np

from engine.board.movegen import legal_planes
from engine.board.position import from_board
from engine.encoding.planes import PLANES, legal_mask, move_of
from pipeline.dataset.strata import band_names
from pipeline.dumps.reader import open_text
from pipeline.errors import ConfigError, DumpError
from pipeline.evaluation.figures import wilson

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

EDGES = (1000, 1400, 1800, 2200)
THEMES = 24
"""Themes in the table: the most frequent."""
MOST = 10_000
"""Puzzles of a file that are tried."""
Puzzle = Mapping[str, Any]
"""fen, moves (UCI), rating, themes (a set)."""
NEEDED = ("FEN", "Moves", "Rating", "Themes")


def solve(puzzles: Sequence[Puzzle], network: "NetworkEvaluator") -> dict[str, Any]:
    """Return the share of solved puzzles, in all, by rating band and by theme, with Wilson's 95 % interval."""
    solved = _solved(puzzles, network)
    ratings = np.searchsorted(EDGES, [puzzle["rating"] for puzzle in puzzles], side="right")
    names = band_names(EDGES)
    themes = Counter(theme for puzzle in puzzles for theme in puzzle["themes"])
    return {
        **_share("all", solved),
        "by_rating": [_share(name, solved[ratings == at]) for at, name in enumerate(names) if (ratings == at).any()],
        "by_theme": [
            _share(theme, solved[[theme in puzzle["themes"] for puzzle in puzzles]])
            for theme, _ in themes.most_common(THEMES)
        ],
    }


def _share(name: str, solved: Any) -> dict[str, Any]:
    """Return the row of a group of puzzles."""
    rate = float(solved.mean())
    low, high = wilson(rate, len(solved))
    return {"band": name, "puzzles": len(solved), "solved": rate, "low": low, "high": high}


def read_puzzles(path: Path) -> list[Puzzle]:
    """Return the first MOST puzzles; raises ConfigError, naming the line, for a file that is not one of puzzles."""
    puzzles: list[Puzzle] = []
    try:
        with open_text(path) as file:
            reader = csv.DictReader(file)
            if missing := sorted(set(NEEDED) - set(reader.fieldnames or ())):
                raise ConfigError(f"{path} is no file of Lichess puzzles: it has no column {missing[0]}")
            for row in reader:
                if len(puzzles) == MOST:
                    break
                board, moves = chess.Board(row["FEN"]), row["Moves"].split()
                for uci in moves:
                    board.push(board.parse_uci(uci))
                if len(moves) < 2:
                    raise ValueError("a puzzle has two moves or more")
                themes = set(row["Themes"].split())
                puzzles.append({"fen": row["FEN"], "moves": moves, "rating": int(row["Rating"]), "themes": themes})
    except (OSError, DumpError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except ConfigError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}, puzzle {len(puzzles) + 1} is not a Lichess puzzle: {error}") from error
    if not puzzles:
        raise ConfigError(f"{path} has no puzzles")
    return puzzles


def _solved(puzzles: Sequence[Puzzle], network: "NetworkEvaluator") -> Any:
    """Return which puzzles are solved, bool[B]."""
    owners, boards, solutions, last_moves = [], [], [], []
    for number, puzzle in enumerate(puzzles):
        board = chess.Board(puzzle["fen"])
        for at, uci in enumerate(puzzle["moves"]):
            move = chess.Move.from_uci(uci)
            if at % 2:
                owners.append(number)
                boards.append(board.copy(stack=False))
                solutions.append(move)
                last, flip = board.peek(), 56 if board.turn else 0
                last_moves.append((last.from_square ^ flip) * 64 + (last.to_square ^ flip))
            board.push(move)
    planes_BP = np.empty((len(boards), PLANES), dtype=np.uint64)
    for board, planes_P in zip(boards, planes_BP, strict=True):
        legal_planes(from_board(board), planes_P)
    logits_BA, _ = network(planes_BP, {"last_move": np.array(last_moves, dtype=np.uint16)})
    choice_B = np.where(legal_mask(planes_BP), logits_BA, -np.inf).argmax(axis=1)
    solved = np.ones(len(puzzles), dtype=np.bool_)
    for owner, board, solution, label in zip(owners, boards, solutions, choice_B.tolist(), strict=True):
        solved[owner] &= _is_solution(board, solution, label)
    return solved


def _is_solution(board: chess.Board, solution: chess.Move, label: int) -> bool:
    """Return whether a label is the solution; promotions share the queen's label, and any mate in one is right."""
    move = move_of(label, 0, board.turn)
    if board.piece_type_at(move.from_square) == chess.PAWN and chess.square_rank(move.to_square) in (0, 7):
        move.promotion = solution.promotion or chess.QUEEN
    if move == solution:
        return True
    board.push(move)
    return board.is_checkmate()
