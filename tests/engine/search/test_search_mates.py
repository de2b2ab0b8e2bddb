"""Mates: found at once at the root, proven by search without knowledge, never claimed wrongly."""

import csv
from collections.abc import Callable, Iterator
from functools import cache

import chess
import numpy as np
import pytest

from engine.board.rules import MATE
from engine.encoding.planes import label_of
from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.conftest import shared_data
from tests.engine.search.stubs import begin, by_uci, chosen, play, searched

MATETRACK = "truth/mate/matetrack.epd"
BREADTH = {"fpu_reduction": 0.0}
"""Without reduction every move is tried early: what a search that knows nothing wants."""


@cache
def lines_of(relative: str) -> list[str]:
    return shared_data(relative).read_text().splitlines()


def fen_of(line: str) -> str:
    return " ".join(line.split()[:4]) + " 0 1"


def positions_with_mate(relative: str, moves: int) -> list[str]:
    """Give the FENs of an EPD whose side to move mates in so many moves (is mated, for a negative
    number)."""
    return [fen_of(line) for line in lines_of(relative) if f"bm #{moves};" in line]


def puzzles(theme: str) -> list[str]:
    """Give the FENs of Lichess puzzles of a theme, after the opponent's blunder."""
    fens = []
    for row in csv.DictReader(lines_of("truth/lichess_puzzles_seed_3000.csv")):
        if theme in row["Themes"].split():
            board = chess.Board(row["FEN"])
            board.push_uci(row["Moves"].split()[0])
            fens.append(board.fen())
    return fens


def solve(
    fens: list[str], simulations: int, games: int = 40, **options: float
) -> Iterator[tuple[chess.Board, Search, int]]:
    """Search positions side by side and yield (board, search, slot)."""
    for start in range(0, len(fens), games):
        part = fens[start : start + games]
        config = SearchConfig(simulations=simulations, nodes=simulations + 16, **options)  # type: ignore[arg-type]
        search = Search(uniform, config, games=len(part))
        boards = [chess.Board(fen) for fen in part]
        for slot, board in enumerate(boards):
            begin(search, slot, board)
        search.run()
        for slot, board in enumerate(boards):
            yield board, search, slot


def mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


def forces_mate_in_two(board: chess.Board, uci: str) -> bool:
    """Tell whether after a move every reply leaves a mate in one, and there is a reply."""
    board.push_uci(uci)
    replies = list(board.legal_moves)
    forced = bool(replies)
    for reply in replies:
        board.push(reply)
        forced = forced and any(mates(board, move) for move in list(board.legal_moves))
        board.pop()
    board.pop()
    return forced


slow = pytest.mark.slow


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=slow)])
def test_every_mating_move_is_recognized_at_the_root(every: int) -> None:
    lines = lines_of("truth/mate/mate_in_1_from_games_train.epd")
    assert len(lines) == 21_397
    lines = lines[::every]
    for start in range(0, len(lines), 256):
        part = lines[start : start + 256]
        search = Search(uniform, SearchConfig(simulations=16), games=len(part))
        boards = [chess.Board(fen_of(line)) for line in part]
        for slot, board in enumerate(boards):
            begin(search, slot, board)
        search.run()
        assert (search.evaluations, search.simulations) == (0, 0), "found without an evaluation"
        for slot, (line, board) in enumerate(zip(part, boards, strict=True)):
            root, sans = search.root(slot), line.split("bm ")[1].split(";")[0].split()
            wanted = {board.parse_san(san).uci() for san in sans}
            mates = by_uci(root, board.turn, "mates")
            proven = by_uci(root, board.turn, "proven")
            assert {uci for uci, plies in mates.items() if plies == 1} == wanted, line
            assert {uci for uci, proof in proven.items() if proof == 1} == wanted, line
            assert (root.mate, root.value, root.draw) == (1, 1.0, 0.0)
            assert chosen(search, slot, board.turn) in wanted
            assert chosen(search, slot, board.turn, temperature=1.0) in wanted


def check_mates_in_two(fens: list[str], simulations: int) -> int:
    solved = 0
    for board, search, slot in solve(fens, simulations, **BREADTH):
        root = search.root(slot)
        if root.mate == 0:
            continue
        solved += 1
        assert root.mate >= 3, "nothing shorter is there"
        assert root.value == 1.0
        for uci, plies in by_uci(root, board.turn, "mates").items():
            if plies == 3:  # a longer way that was proven first is too long to check by trying all
                assert forces_mate_in_two(board, uci), f"{board.fen()} {uci}"
        assert by_uci(root, board.turn, "mates")[chosen(search, slot, board.turn)] == root.mate
        assert len(search.line(slot)) == root.mate
    return solved


@pytest.mark.parametrize(
    ("fens", "simulations"),
    [
        (lambda: puzzles("mateIn2")[:40], 4000),
        pytest.param(lambda: puzzles("mateIn2"), 8000, marks=slow),
        pytest.param(
            lambda: positions_with_mate("truth/mate/matetrack.epd", 2), 60_000, marks=slow
        ),
    ],
)
def test_mates_in_two_are_proven(fens: Callable[[], list[str]], simulations: int) -> None:
    found = fens()
    assert len(found) >= 17
    assert check_mates_in_two(found, simulations) == len(found)


def check_mates_in_three(fens: list[str], simulations: int) -> int:
    """Play each mate out against every first reply; give how many were proven."""
    solved = 0
    for board, search, slot in solve(fens, simulations, games=4, **BREADTH):
        root = search.root(slot)
        if root.mate == 0:
            continue
        solved += 1
        assert root.mate >= 5
        first = chosen(search, slot, board.turn)
        assert by_uci(root, board.turn, "mates")[first] == root.mate
        if root.mate > 5:
            continue  # a longer way was proven first: too long to check by trying all
        after = board.copy()
        after.push_uci(first)
        for reply in after.legal_moves:
            third = after.copy()
            third.push(reply)
            if not any(mates(third, move) for move in third.legal_moves):
                assert any(
                    forces_mate_in_two(third, move.uci()) for move in list(third.legal_moves)
                ), third.fen()
    return solved


@pytest.mark.parametrize(
    ("count", "simulations", "least"), [(2, 60_000, 1), pytest.param(35, 150_000, 33, marks=slow)]
)
def test_mates_in_three_are_proven(count: int, simulations: int, least: int) -> None:
    assert check_mates_in_three(puzzles("mateIn3")[:count], simulations) >= least


def test_no_mate_is_claimed_shorter_than_it_is():
    """Positions whose shortest mates are known: what is proven is no shorter, and the right side
    wins."""
    proven = 0
    for moves in (2, 3, 4, -1, -2, -3):
        file = "matetrack" if moves > 0 else "matedtrack"
        for board, search, slot in solve(
            positions_with_mate(f"truth/mate/{file}.epd", moves)[:12], 3000, **BREADTH
        ):
            mate = search.root(slot).mate
            assert mate == 0 or (mate > 0) == (moves > 0), board.fen()
            assert mate == 0 or abs(mate) >= (2 * moves - 1 if moves > 0 else -2 * moves), (
                board.fen()
            )
            proven += mate != 0
    assert proven >= 15


def test_who_is_mated_in_one_has_lost_and_every_move_says_so():
    fens = positions_with_mate("truth/mate/matedtrack.epd", -1)
    assert len(fens) >= 5
    for board, search, slot in solve(fens, 2000, **BREADTH):
        root = search.root(slot)
        assert (root.mate, root.value) == (-2, -1.0), board.fen()
        assert set(root.proven.tolist()) == {-1}
        assert set(root.mates.tolist()) == {-2}
        assert chosen(search, slot, board.turn) in {move.uci() for move in board.legal_moves}


def test_who_is_lost_chooses_what_loses_slowest():
    """Ke1 allows Rb1 mate; Kc1 lives until Rbb2, Kd1, Rb1 mate."""
    search, root = searched("7k/8/8/8/8/1r6/r7/3K4 w - - 0 1", uniform, simulations=6000, **BREADTH)
    assert by_uci(root, chess.WHITE, "mates") == {"d1e1": -2, "d1c1": -4}
    assert root.mate == -4
    assert chosen(search, 0, chess.WHITE) == "d1c1"


def test_a_proven_loss_is_not_chosen_while_another_move_is_there():
    """Only one move of White's does not allow a mate in one; the evaluator likes the others far
    better."""
    board = chess.Board("6k1/5ppp/8/8/8/7P/r4PP1/1r1R2K1 w - - 0 1")
    losing = []
    for move in board.legal_moves:
        after = board.copy()
        after.push(move)
        if any(mates(after, reply) for reply in list(after.legal_moves)):
            losing.append(move.uci())
    assert 0 < len(losing) < board.legal_moves.count()

    def fond(planes_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits_BA, wdl_B3 = uniform(planes_BP)
        logits_BA = logits_BA.copy()
        for uci in losing:
            logits_BA[:, label_of(chess.Move.from_uci(uci), chess.WHITE)] = 3.0
        return logits_BA, wdl_B3

    search, root = searched(board, fond, simulations=3000)
    proven = by_uci(root, chess.WHITE, "proven")
    lost = {uci for uci, verdict in proven.items() if verdict == -1}
    assert lost >= set(losing)
    for temperature in (0.0, 1.0, 5.0):
        for _ in range(5):
            assert chosen(search, 0, chess.WHITE, temperature=temperature) not in lost


def test_after_the_mating_move_the_game_is_over():
    board = chess.Board("6k1/5ppp/8/8/8/8/8/KR6 w - - 0 1")
    search, root = searched(board, uniform, simulations=10)
    assert (root.mate, chosen(search, 0, chess.WHITE)) == (1, "b1b8")
    play(search, 0, board, "b1b8")
    assert search.outcome() == MATE
    search.run()
    assert search.root().value == -1.0


def test_proofs_are_carried_by_gumbel_too():
    fens = puzzles("mateIn2")[:10]
    proven = 0
    for board, search, slot in solve(fens, 4000, algorithm="gumbel", max_considered_actions=64):  # type: ignore[arg-type]
        root = search.root(slot)
        if root.mate:
            proven += 1
            assert root.mate == 3
            assert forces_mate_in_two(board, chosen(search, slot, board.turn))
    assert proven >= 5
