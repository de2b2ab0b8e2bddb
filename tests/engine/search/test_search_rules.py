"""How games end: repetition with the game's real history, fifty moves, dead material, stalemate, by
python-chess's word."""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import chess
import chess.pgn
import numpy as np
import pytest

from engine.board.rules import FIFTY, MATE, MATERIAL, REPETITION, STALEMATE
from engine.evaluation.evaluator import uniform
from engine.search import Search, SearchConfig
from tests.conftest import shared_data
from tests.engine.search.stubs import begin, board_of, by_uci, chosen, play, searched

ONCE_EACH = {"c_puct": 1000.0}
"""Priors count alone, so as many simulations as moves visit each move once where all priors are
equal."""
TAIL = 12
"""Plies before the end of each game that are looked at."""
DUMP = ("pgn/lichess_dump_2021-10_999.pgn",)
EXPORTS = (*DUMP, "pgn/lichess_export_2024-05_blitz.pgn", "pgn/lichess_export_2022-2026_blitz.pgn")


def expected_ending(board: chess.Board) -> int | None:
    """Say by python-chess how the game is over, None when it is not."""
    if board.is_checkmate():
        return MATE
    if board.is_stalemate():
        return STALEMATE
    if board.is_insufficient_material():
        return MATERIAL
    if board.halfmove_clock >= 100:
        return FIFTY
    return REPETITION if board.is_repetition(3) else None


def drawn_games(path: Path) -> Iterator[chess.pgn.Game]:
    """Yield the drawn games of standard chess; others are passed by unread, since reading is
    slow."""
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n[Event ")[1:]:
        if '[Result "1/2-1/2"]' in text and "Horde" not in text:
            game = chess.pgn.read_game(io.StringIO("[Event " + text))
            if (
                game is not None
                and not game.errors
                and game.next() is not None
                and game.board().uci_variant == "chess"
            ):
                yield game


def tails(files: tuple[str, ...]) -> Iterator[list[chess.Board]]:
    """Yield the last positions of each drawn game, with their history."""
    for file in files:
        for game in drawn_games(shared_data(file)):
            board = game.end().board()
            boards = []
            while board.move_stack and len(boards) < TAIL:
                boards.append(board.copy())
                board.pop()
            yield boards[::-1]


def check_tails(files: tuple[str, ...]) -> Counter[int | None]:
    """Compare outcomes at the root, started and reached by play, and of every move below it."""
    seen: Counter[int | None] = Counter()
    search = Search(uniform, SearchConfig(simulations=256, **ONCE_EACH), games=2)
    for boards in tails(files):
        begin(search, 1, boards[0])
        for ply, board in enumerate(boards):
            if ply:
                play(search, 1, boards[ply - 1], board.peek().uci())
            begin(search, 0, board)
            ending = expected_ending(board)
            seen[ending] += 1
            assert (search.outcome(0), search.outcome(1)) == (ending, ending), board.fen()
            if ending is None and ply >= TAIL - 3:
                check_moves(search, board)
    return seen


def check_moves(search: Search, board: chess.Board) -> None:
    """Visit every move once: exactly those that end the game are proven, as what they are."""
    if any(move.promotion for move in board.legal_moves):
        return  # the four moves of a promotion have unequal priors
    one = np.array([0], dtype=np.int64)
    search.run(one, simulations=board.legal_moves.count())
    root = search.root(0)
    proven = by_uci(root, board.turn, "proven")
    if 1 in proven.values():
        return  # a mate in one ends the search at once; other tests are about those
    assert set(root.visits.tolist()) == {1}
    for move in board.legal_moves:
        board.push(move)
        drawn = expected_ending(board) is not None
        board.pop()
        assert proven[move.uci()] == (0 if drawn else 2), f"{board.fen()} {move.uci()}"
        if drawn:
            assert by_uci(root, board.turn, "values")[move.uci()] == 0.0
            assert by_uci(root, board.turn, "draws")[move.uci()] == 1.0


def test_real_drawn_games_end_as_python_chess_says():
    seen = check_tails(DUMP)
    assert seen[REPETITION] >= 5
    assert seen[MATERIAL] >= 3
    assert seen[None] > 300


@pytest.mark.slow
def test_many_real_drawn_games_end_as_python_chess_says():
    seen = check_tails(EXPORTS)
    assert seen[REPETITION] >= 50
    assert seen[MATERIAL] >= 50
    assert seen[STALEMATE] >= 5


def test_stalemates_are_draws_at_the_root_and_below():
    lines = shared_data("truth/stalemate_finals.epd").read_text().splitlines()
    search = Search(uniform, SearchConfig(simulations=8), games=len(lines))
    for slot, line in enumerate(lines):
        begin(search, slot, chess.Board(" ".join(line.split()[:4]) + " 0 1"))
    search.run()
    assert search.evaluations == 0
    labels, promotions = search.choose()
    assert set(labels.tolist()) == {-1}
    assert set(promotions.tolist()) == {0}
    for slot in range(len(lines)):
        assert search.outcome(slot) == STALEMATE
        root = search.root(slot)
        assert (root.value, root.draw, len(root.labels), search.line(slot)) == (0.0, 1.0, 0, [])


DANCE = "g1f3 g8f6 f3g1 f6g8 g1f3 g8f6 f3g1"
"""After Black's f6g8 the first position comes for the third time."""


def test_a_third_occurrence_needs_the_game_s_past():
    board = board_of(chess.STARTING_FEN, DANCE)
    _, root = searched(board, uniform, simulations=40, c_puct=1000.0)
    assert by_uci(root, chess.BLACK, "proven")["f6g8"] == 0
    assert by_uci(root, chess.BLACK, "draws")["f6g8"] == 1.0
    forgetful = chess.Board(board.fen())
    _, root = searched(forgetful, uniform, simulations=40, c_puct=1000.0)
    assert by_uci(root, chess.BLACK, "proven")["f6g8"] == 2


def test_a_second_occurrence_within_the_tree_is_worth_a_draw_and_is_not_searched():
    """Each side has one move but for the pair that shuffles: see the tree's end at the root's
    position again."""
    board = chess.Board("7k/8/8/3p4/3P4/8/8/K7 w - - 0 1")
    search, _ = searched(board, uniform, simulations=3000, c_puct=1000.0)
    for uci in ("a1a2", "h8g8", "a2a1"):
        assert play(search, 0, board, uci)
        board.push_uci(uci)
    # The root was the tree's own, so g8h8 stands there as a draw by repetition; it was never
    # opened.
    root = search.root(0)
    visits, draws = by_uci(root, chess.BLACK), by_uci(root, chess.BLACK, "draws")
    assert visits["g8h8"] >= 2
    assert draws["g8h8"] == 1.0
    assert by_uci(root, chess.BLACK, "proven")["g8h8"] == 2, (
        "no proof: another way here may not repeat"
    )
    assert all(draw < 0.9 for uci, draw in draws.items() if uci != "g8h8")


def test_what_repeats_is_searched_again_once_it_lies_in_the_past():
    """Played into, the repeated position is a second occurrence of the past: the game goes on, and
    so does the tree."""
    board = chess.Board("7k/8/8/3p4/3P4/8/8/K7 w - - 0 1")
    search, _ = searched(board, uniform, simulations=3000, c_puct=1000.0)
    for uci in ("a1a2", "h8g8", "a2a1", "g8h8"):
        play(search, 0, board, uci)
        board.push_uci(uci)
        search.run(simulations=60)
    assert search.outcome() is None
    root = search.root(0)
    assert root.visits.sum() >= 60
    assert root.draw < 0.9


@pytest.mark.parametrize(
    ("fen", "drawing"),
    [
        ("4k3/8/8/8/8/8/4p3/4K3 w - - 0 1", {"e1e2"}),  # takes the last pawn
        ("4k3/8/3K4/8/8/8/1R6/8 w - - 99 80", None),  # every move is the hundredth half-move
        ("7k/8/6K1/8/8/8/8/R7 w - - 99 80", set()),  # a8 mates: the hundredth does not undo it
    ],
)
def test_rules_of_draws_by_hand(fen: str, drawing: set[str] | None):
    board = chess.Board(fen)
    search, root = searched(board, uniform, simulations=board.legal_moves.count(), **ONCE_EACH)
    proven = by_uci(root, chess.WHITE, "proven")
    wanted = {move.uci() for move in board.legal_moves} if drawing is None else drawing
    assert {uci for uci, verdict in proven.items() if verdict == 0} == wanted
    if not wanted:
        assert proven["a1a8"] == 1
        assert chosen(search, 0, chess.WHITE) == "a1a8"
