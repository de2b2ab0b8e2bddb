"""Compare endings with python-chess: repetition, fifty moves, material, stalemate."""

import io
from collections import Counter
from collections.abc import Iterator

import chess
import chess.pgn
import numpy as np
import pytest

from engine.board.rules import FIFTY_MOVES, INSUFFICIENT_MATERIAL, MATE, REPETITION, STALEMATE
from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.conftest import shared_data
from tests.engine.search.stubs import (
    board_of,
    by_uci,
    choose_uci,
    play,
    search_board,
    start_board,
)

ONCE_EACH = {"c_puct": 1000.0}
"""Options with which simulations visit each of the moves once if their priors are equal."""
LAST_POSITIONS = 12
"""Number of positions at the end of each game that are compared."""
DUMP = ("pgn/lichess_dump_2021-10_999.pgn",)
EXPORTS = (*DUMP, "pgn/lichess_export_2024-05_blitz.pgn", "pgn/lichess_export_2022-2026_blitz.pgn")


def expected_ending(board: chess.Board) -> int | None:
    """Return the ending by python-chess, or None."""
    if board.is_checkmate():
        return MATE
    if board.is_stalemate():
        return STALEMATE
    if board.is_insufficient_material():
        return INSUFFICIENT_MATERIAL
    if board.halfmove_clock >= 100:
        return FIFTY_MOVES
    return REPETITION if board.is_repetition(3) else None


def read_ends(files: tuple[str, ...]) -> Iterator[list[chess.Board]]:
    """Yield the last positions of each drawn game of standard chess, with their history."""
    for file in files:
        text = shared_data(file).read_text(encoding="utf-8", errors="replace")
        for pgn in text.split("\n[Event ")[1:]:
            if '[Result "1/2-1/2"]' not in pgn or "Horde" in pgn:
                continue
            game = chess.pgn.read_game(io.StringIO("[Event " + pgn))
            if game is None or game.errors or game.board().uci_variant != "chess":
                continue
            board, boards = game.end().board(), []
            while board.move_stack and len(boards) < LAST_POSITIONS:
                boards.append(board.copy())
                board.pop()
            if boards:
                yield boards[::-1]


def check_ends(files: tuple[str, ...]) -> Counter[int | None]:
    """Compare the outcomes at roots, after `start` and after `play`, and those of their moves."""
    seen: Counter[int | None] = Counter()
    search = Search(uniform, SearchConfig(simulations=256, **ONCE_EACH), games=2)
    for boards in read_ends(files):
        start_board(search, 1, boards[0])
        for ply, board in enumerate(boards):
            if ply:
                play(search, 1, boards[ply - 1], board.peek().uci())
            start_board(search, 0, board)
            ending = expected_ending(board)
            seen[ending] += 1
            assert (search.outcome(0), search.outcome(1)) == (ending, ending), board.fen()
            if ending is None and ply >= LAST_POSITIONS - 3:
                check_moves(search, board)
    return seen


def check_moves(search: Search, board: chess.Board) -> None:
    """Check, with one visit of every move, that exactly the moves that end the game are proven."""
    if any(move.promotion for move in board.legal_moves):
        return  # the four moves of a promotion have unequal priors
    search.run(np.array([0]), simulations=board.legal_moves.count())
    root = search.root(0)
    proven = by_uci(root, board.turn, "proven")
    if 1 in proven.values():
        return  # a mate in one ends the search at once
    assert set(root.visits.tolist()) == {1}
    for move in board.legal_moves:
        board.push(move)
        drawn = expected_ending(board) is not None
        board.pop()
        assert proven[move.uci()] == (0 if drawn else 2), f"{board.fen()} {move.uci()}"
        if drawn:
            assert by_uci(root, board.turn, "values")[move.uci()] == 0.0
            assert by_uci(root, board.turn, "draws")[move.uci()] == 1.0


@pytest.mark.parametrize(
    ("files", "repetitions", "material", "stalemates"),
    [(DUMP, 5, 3, 0), pytest.param(EXPORTS, 50, 50, 5, marks=pytest.mark.slow)],
)
def test_drawn_games_end_as_in_python_chess(
    files: tuple[str, ...], repetitions: int, material: int, stalemates: int
):
    seen = check_ends(files)
    assert seen[REPETITION] >= repetitions
    assert seen[INSUFFICIENT_MATERIAL] >= material
    assert seen[STALEMATE] >= stalemates
    assert seen[None] > 300


def test_stalemates_are_draws_at_the_root_and_below():
    lines = shared_data("truth/stalemate_finals.epd").read_text().splitlines()
    search = Search(uniform, SearchConfig(simulations=8), games=len(lines))
    for slot, line in enumerate(lines):
        start_board(search, slot, chess.Board(" ".join(line.split()[:4]) + " 0 1"))
    search.run()
    assert search.evaluations == 0
    assert set(search.choose()[0].tolist()) == {-1}
    for slot in range(len(lines)):
        assert search.outcome(slot) == STALEMATE
        root = search.root(slot)
        assert (root.value, root.draw, len(root.labels), search.line(slot)) == (0.0, 1.0, 0, [])


def test_a_third_occurrence_is_found_only_with_the_game_s_history():
    # f6g8 repeats the initial position for the third time
    board = board_of(chess.STARTING_FEN, "g1f3 g8f6 f3g1 f6g8 g1f3 g8f6 f3g1")
    for start, proof in ((board, 0), (chess.Board(board.fen()), 2)):
        _, root = search_board(start, uniform, simulations=40, **ONCE_EACH)
        assert by_uci(root, chess.BLACK, "proven")["f6g8"] == proof
        assert (by_uci(root, chess.BLACK, "draws")["f6g8"] == 1.0) == (proof == 0)


def test_a_second_occurrence_is_a_draw_only_within_the_tree():
    board = chess.Board("7k/8/8/3p4/3P4/8/8/K7 w - - 0 1")
    search, _ = search_board(board, uniform, simulations=3000, **ONCE_EACH)
    for uci in ("a1a2", "h8g8", "a2a1"):
        assert play(search, 0, board, uci)
        board.push_uci(uci)
    # g8h8 repeats the first root, so in the tree it was a draw, which was not expanded
    root = search.root(0)
    visits, draws = by_uci(root, chess.BLACK), by_uci(root, chess.BLACK, "draws")
    assert visits["g8h8"] >= 2
    assert by_uci(root, chess.BLACK, "proven")["g8h8"] == 2, "other paths may not repeat"
    assert {uci for uci, draw in draws.items() if draw >= 0.9} == {"g8h8"}
    # in the game, it is only the second occurrence, and the game goes on
    play(search, 0, board, "g8h8")
    search.run(simulations=60)
    assert search.outcome() is None
    assert search.root(0).visits.sum() >= 60
    assert search.root(0).draw < 0.9


@pytest.mark.parametrize(
    ("fen", "drawing"),
    [
        ("4k3/8/8/8/8/8/4p3/4K3 w - - 0 1", {"e1e2"}),  # captures the last pawn
        ("4k3/8/3K4/8/8/8/1R6/8 w - - 99 80", None),  # every move is the hundredth
        ("7k/8/6K1/8/8/8/8/R7 w - - 99 80", set()),  # a8 mates first
    ],
)
def test_draws_below_the_root_follow_the_rules(fen: str, drawing: set[str] | None):
    board = chess.Board(fen)
    search, root = search_board(board, uniform, simulations=board.legal_moves.count(), **ONCE_EACH)
    proven = by_uci(root, chess.WHITE, "proven")
    wanted = {move.uci() for move in board.legal_moves} if drawing is None else drawing
    assert {uci for uci, verdict in proven.items() if verdict == 0} == wanted
    if not wanted:
        assert proven["a1a8"] == 1
        assert choose_uci(search, 0, chess.WHITE) == "a1a8"
