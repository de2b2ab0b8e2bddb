"""Compare the compiled FEN parser with `from_fen`, which uses python-chess."""

import random
import re

import chess
import numpy as np
import pytest

from engine.board.position import WORDS, FenError, parse_fen, position_from_board
from engine.board.read_fen import CHESS960, MALFORMED, UNPLAYABLE, VALID, read_fen

ACCEPTED = re.compile(r"[^ ]+ [wb] [^ ]+ [^ ]+( \d{1,4} \d{1,4})?")
"""FENs that the compiled parser accepts: four or six fields, separated by one space."""


def play_randomly(games: int, plies: int) -> list[str]:
    """Return the FENs of random games, with all notations of en-passant squares."""
    rng, fens = random.Random(7), []
    for _ in range(games):
        board = chess.Board()
        for _ in range(plies):
            moves = list(board.legal_moves)
            if not moves:
                break
            board.push(rng.choice(moves))
            fens.append(board.fen(en_passant=rng.choice(("fen", "legal", "xfen"))))
    return fens


def read_slowly(fen: str) -> tuple[int, np.ndarray | None]:
    """Return the result and position of a FEN by python-chess."""
    if not ACCEPTED.fullmatch(fen):
        return MALFORMED, None
    try:
        board = parse_fen(fen)
    except FenError:
        return MALFORMED, None
    is_chess960 = board.has_chess960_castling_rights()
    try:
        position = position_from_board(board, fen)
    except FenError as error:
        return (VALID if "more than the 256" in str(error) else UNPLAYABLE), None
    return (CHESS960, None) if is_chess960 else (VALID, position)


def assert_same(fen: str) -> int:
    """Compare the compiled parser with python-chess; return its result."""
    text, position = np.frombuffer(fen.encode(), dtype=np.uint8), np.zeros(WORDS, dtype=np.uint64)
    found = int(read_fen(text, 0, len(text), position))
    wanted, expected = read_slowly(fen)
    assert found == wanted, fen
    if expected is not None:
        np.testing.assert_array_equal(position, expected, err_msg=fen)
    return found


def test_random_games_agree_with_python_chess() -> None:
    fens = play_randomly(20, 120)
    assert len(fens) > 1_600
    for row, fen in enumerate(fens):
        assert_same(fen if row % 4 else " ".join(fen.split()[:4]))


def test_damaged_fens_agree_with_python_chess() -> None:
    rng, letters = random.Random(3), "pnbrqkPNBRQK12345678/-wb KQkqahAHx36~\0é"
    seen = {VALID: 0, MALFORMED: 0, UNPLAYABLE: 0, CHESS960: 0}
    for fen in play_randomly(60, 60):
        text = list(fen)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 1)] = rng.choice(letters)
        damaged = "".join(text)
        if "~" in damaged or int((re.findall(r" (\d+)$", damaged) or [0])[0]) > 9999:
            continue  # neither promoted pieces (~) nor longer counters are supported
        seen[assert_same(damaged)] += 1
    assert min(seen[VALID], seen[MALFORMED], seen[UNPLAYABLE]) > 20


@pytest.mark.parametrize(
    ("fen", "wanted"),
    [
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w HAha - 0 1", VALID),
        ("1r2k1r1/8/8/8/8/8/8/1R2K1R1 w KQkq - 0 1", CHESS960),
        ("r4k1r/8/8/8/8/8/8/R3K2R w KQkq - 0 1", CHESS960),
        ("4k3/8/8/8/8/8/8/4K3 w qK - 0 1", MALFORMED),
        ("4k3/8/8/8/4P3/8/8/4K3 b - e3", VALID),
        ("4k3/8/8/8/8/8/8/8 w - -", UNPLAYABLE),
        ("4k3/4R3/8/8/8/8/8/4K3 w - -", UNPLAYABLE),
        ("4k2P/8/8/8/8/8/8/4K3 w - -", UNPLAYABLE),
        ("", MALFORMED),
        ("44/8/8/8/8/8/8/4K2k w - -", MALFORMED),
        ("4k3/8/8/8/8/8/8/4K3 w - - 0", MALFORMED),
    ],
)
def test_unusual_fens(fen: str, wanted: int) -> None:
    assert assert_same(fen) == wanted
