"""Mates: found at the root without search, proven by a uniform search, and never wrong."""

import csv
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import chess
import pytest

from engine.board.rules import MATE
from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.conftest import shared_data
from tests.engine.search.stubs import by_uci, choose_uci, play, search_board, start_board

BREADTH = {"fpu_reduction": 0.0}
"""Options with which a uniform search tries every move early."""


@cache
def lines_of(relative: str) -> list[str]:
    return shared_data(relative).read_text().splitlines()


def fen_of(line: str) -> str:
    return " ".join(line.split()[:4]) + " 0 1"


def positions_with_mate(relative: str, moves: int) -> list[str]:
    """Return FENs in which the mover mates in `moves` moves or, if negative, is mated."""
    return [fen_of(line) for line in lines_of(relative) if f"bm #{moves};" in line]


def puzzles(theme: str) -> list[str]:
    """Return the FENs of Lichess puzzles of a theme, after the opponent's blunder."""
    fens = []
    for row in csv.DictReader(lines_of("truth/lichess_puzzles_seed_3000.csv")):
        if theme in row["Themes"].split():
            board = chess.Board(row["FEN"])
            board.push_uci(row["Moves"].split()[0])
            fens.append(board.fen())
    return fens


def solve(
    fens: list[str], simulations: int, games: int = 40, **options: Any
) -> Iterator[tuple[chess.Board, Search, int]]:
    """Search positions, `games` at a time, and yield (board, search, slot) of each."""
    for start in range(0, len(fens), games):
        part = fens[start : start + games]
        config = SearchConfig(simulations=simulations, nodes=simulations + 16, **options)
        search = Search(uniform, config, games=len(part))
        boards = [chess.Board(fen) for fen in part]
        for slot, board in enumerate(boards):
            start_board(search, slot, board)
        search.run()
        for slot, board in enumerate(boards):
            yield board, search, slot


def forces_mate_in_two(board: chess.Board, uci: str) -> bool:
    """Return whether every reply to a move, and there is one, allows a mate in one."""

    def has_mate(after: chess.Board) -> bool:
        for move in list(after.legal_moves):
            after.push(move)
            mate = after.is_checkmate()
            after.pop()
            if mate:
                return True
        return False

    board = board.copy()
    board.push_uci(uci)
    for reply in list(board.legal_moves):
        board.push(reply)
        if not has_mate(board):
            return False
        board.pop()
    return any(board.legal_moves)


slow = pytest.mark.slow


@pytest.mark.parametrize("every", [60, pytest.param(1, marks=slow)])
def test_every_mating_move_is_recognized_at_the_root(every: int) -> None:
    lines = lines_of("truth/mate/mate_in_1_from_games_train.epd")
    assert len(lines) == 21_397
    lines = lines[::every]
    for start in range(0, len(lines), 256):
        part = lines[start : start + 256]
        search = Search(uniform, SearchConfig(simulations=16), games=len(part))
        boards = [chess.Board(fen_of(line)) for line in part]
        for slot, board in enumerate(boards):
            start_board(search, slot, board)
        search.run()
        assert (search.evaluations, search.simulations) == (0, 0), "found without an evaluation"
        for slot, (line, board) in enumerate(zip(part, boards, strict=True)):
            root, sans = search.root(slot), line.split("bm ")[1].split(";")[0].split()
            wanted = {board.parse_san(san).uci() for san in sans}
            for field in ("mates", "proven"):
                found = by_uci(root, board.turn, field)
                assert {uci for uci, number in found.items() if number == 1} == wanted, line
            assert (root.mate, root.value, root.draw) == (1, 1.0, 0.0)
            assert choose_uci(search, slot, board.turn) in wanted
            assert choose_uci(search, slot, board.turn, temperature=1.0) in wanted


GUMBEL = {"algorithm": "gumbel", "max_considered_actions": 64}


@pytest.mark.parametrize(
    ("fens", "simulations", "options", "min_share"),
    [
        (lambda: puzzles("mateIn2")[:30], 4000, BREADTH, 1.0),
        (lambda: puzzles("mateIn2")[:10], 4000, GUMBEL, 0.5),
        pytest.param(lambda: puzzles("mateIn2"), 8000, BREADTH, 1.0, marks=slow),
        pytest.param(
            lambda: positions_with_mate("truth/mate/matetrack.epd", 2),
            *(60_000, BREADTH, 1.0),
            marks=slow,
        ),
    ],
)
def test_mates_in_two_are_proven(
    fens: Callable[[], list[str]], simulations: int, options: dict[str, Any], min_share: float
) -> None:
    solved = []
    for board, search, slot in solve(fens(), simulations, **options):
        root = search.root(slot)
        solved.append(root.mate != 0)
        if root.mate == 0:
            continue
        assert root.mate >= 3, "there is no shorter mate"
        assert root.value == 1.0
        mates = by_uci(root, board.turn, "mates")
        for uci, plies in mates.items():
            if plies == 3:  # longer mates would take too long to check
                assert forces_mate_in_two(board, uci), f"{board.fen()} {uci}"
        assert mates[choose_uci(search, slot, board.turn)] == root.mate
        assert len(search.line(slot)) == root.mate
    assert len(solved) >= 10
    assert sum(solved) >= min_share * len(solved)


def test_no_mate_is_reported_shorter_than_it_is():
    proven = 0
    for moves in (2, 3, 4, -1, -2, -3):
        file = "matetrack" if moves > 0 else "matedtrack"
        fens = positions_with_mate(f"truth/mate/{file}.epd", moves)[:8]
        for board, search, slot in solve(fens, 2000, **BREADTH):
            root = search.root(slot)
            assert root.mate == 0 or (root.mate > 0) == (moves > 0), board.fen()
            plies = 2 * moves - 1 if moves > 0 else -2 * moves
            assert root.mate == 0 or abs(root.mate) >= plies, board.fen()
            proven += root.mate != 0
            if moves == -1:
                assert (root.mate, root.value) == (-2, -1.0), board.fen()
                assert set(root.mates.tolist()) == {-2}
                assert choose_uci(search, slot, board.turn) in map(
                    chess.Move.uci, board.legal_moves
                )
    assert proven >= 12


def test_a_mated_root_is_lost():
    fen = "6k1/5ppp/8/8/8/8/8/KR6 w - - 0 1"
    search, _ = search_board(fen, uniform, simulations=10)
    play(search, 0, chess.Board(fen), "b1b8")
    assert search.outcome() == MATE
    search.run()
    assert search.root().value == -1.0


def test_a_lost_side_chooses_the_slowest_loss():
    # Ke1 allows Rb1 mate, and Kc1 allows Rbb2, Kd1, Rb1 mate
    search, root = search_board(
        "7k/8/8/8/8/1r6/r7/3K4 w - - 0 1", uniform, simulations=6000, **BREADTH
    )
    assert by_uci(root, chess.WHITE, "mates") == {"d1e1": -2, "d1c1": -4}
    assert root.mate == -4
    assert choose_uci(search, 0, chess.WHITE) == "d1c1"
