"""Openings: generated from a seed, read from EPD and PGN, errors with the line."""

from functools import cache
from pathlib import Path

import chess
import pytest

from engine.evaluation.evaluator import uniform
from engine.evaluation.handwritten import evaluate
from engine.match.openings import BookError, Opening, choose_openings, generate_openings, read_book

PIECE_VALUES = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}


@cache
def book() -> list[Opening]:
    return generate_openings(24, evaluate, seed=3)


def count_material(board: chess.Board) -> int:
    """Return the value of White's pieces minus that of Black's, in pawns."""
    counts = {
        kind: len(board.pieces(kind, True)) - len(board.pieces(kind, False))
        for kind in PIECE_VALUES
    }
    return sum(value * counts[kind] for kind, value in PIECE_VALUES.items())


def test_generated_openings_are_different_legal_and_balanced() -> None:
    openings = book()
    boards = [opening.board() for opening in openings]
    assert len({board.epd() for board in boards}) == 24
    assert len({opening.moves[0] for opening in openings}) >= 6
    for opening, board in zip(openings, boards, strict=True):
        again = chess.Board()
        for move in opening.moves:
            assert chess.Move.from_uci(move) in again.legal_moves
            again.push_uci(move)
        assert board.ply() == 8
        assert board.turn == chess.WHITE
        assert not board.is_check()
        # a gambit or a pending recapture may cost at most a piece
        assert abs(count_material(board)) <= 3
    assert sum(count_material(board) == 0 for board in boards) >= 18


def test_the_seed_determines_the_book_and_a_longer_book_begins_with_a_shorter_one() -> None:
    assert generate_openings(8, evaluate, seed=3) == book()[:8]
    assert generate_openings(8, evaluate, seed=2) != book()[:8]
    assert generate_openings(0, evaluate) == []


def test_too_few_balanced_openings_are_an_error() -> None:
    assert generate_openings(1, uniform, plies=0) == [Opening(chess.STARTING_FEN)]
    with pytest.raises(BookError, match="only 20 balanced openings of 1 plies"):
        generate_openings(21, uniform, plies=1)
    with pytest.raises(BookError, match="0 to 60 plies"):
        generate_openings(1, uniform, plies=99)


def test_books_are_read_from_epd_and_pgn(tmp_path: Path) -> None:
    (tmp_path / "book.epd").write_text(
        "# two positions\n"
        'r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - hmvc 2; id "Open";\n\n'
        "rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq c6 0 2\n"
    )
    first, second = read_book(tmp_path / "book.epd")
    assert first.board().epd() == "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq -"
    assert second.board().fullmove_number == 2
    (tmp_path / "book.pgn").write_text(
        '[Event "?"]\n\n1. e4 {best by test} e5 (1... c5) 2. Nf3 Nc6 3. Bb5 *\n\n'
        '[FEN "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"]\n[SetUp "1"]\n\n1. e4 Kd7 *\n'
    )
    first, second = read_book(tmp_path / "book.pgn", plies=4)
    assert first.moves == ("e2e4", "e7e5", "g1f3", "b8c6")
    assert second.board().fen().startswith("8/3k4/8/8/4P3/8/8/4K3 w")
    assert len(read_book(tmp_path / "book.pgn")[0].moves) == 5


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.epd", "", "has no openings"),
        ("a.epd", "8/8/8/8/8/8/8/8 w - -\n", "line 1: not a playable position"),
        ("a.epd", "\nhello world this is\n", "line 2: not a FEN"),
        (
            "a.epd",
            "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq -\n",
            "the game is over",
        ),
        ("a.epd", "\x00\xff" * 50, "line 1"),
        ("a.pgn", "1. e4 e5 2. Ke3 *\n", "game 1: illegal san"),
        ("a.pgn", '[FEN "nonsense"]\n\n1. e4 *\n', "game 1"),
        ("a.pgn", "", "has no openings"),
    ],
)
def test_the_error_names_the_line_or_game_of_an_invalid_opening(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(BookError, match=message):
        read_book(tmp_path / name)
    with pytest.raises(BookError, match="cannot be read"):
        read_book(tmp_path / "absent.epd")


def test_openings_are_chosen_by_seed_without_repetition() -> None:
    chosen = choose_openings(book(), 24, seed=1)
    assert chosen == choose_openings(book(), 24, seed=1) != choose_openings(book(), 24, seed=2)
    assert set(chosen) == set(book())
    assert choose_openings(book(), 5, seed=1) == chosen[:5]
    with pytest.raises(BookError, match="24 openings, but 25 pairs"):
        choose_openings(book(), 25)
