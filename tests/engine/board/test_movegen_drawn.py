"""Boards drawn with their legal moves in tests/data/boards.txt, which a person can check by eye."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import chess
import numpy as np
import pytest

from engine.board.movegen import count_moves, legal_planes
from engine.board.position import from_fen
from engine.encoding.planes import legal_mask, move_from_label
from tests.engine.oracle import ascii_board

BOARDS = Path(__file__).parents[2] / "data" / "boards.txt"
DIRECTIONS = ["N", "NE", "E", "SE", "S", "SW", "W", "NW"]
KNIGHT = ["+1 +2", "+2 +1", "+2 -1", "+1 -2", "-1 -2", "-2 -1", "-2 +1", "-1 +2"]


@dataclass
class DrawnBoard:
    """Board of the file."""

    title: str
    fen: str
    check: bool
    moves: set[str] = field(default_factory=set)
    planes: dict[str, str] = field(default_factory=dict)


def plane_number(name: str) -> int:
    """Return the plane of `NE4`, 13 + (distance - 1) * 8 + direction, or of `knight +1 +2`."""
    if name.startswith("knight "):
        return 13 + 56 + KNIGHT.index(name.removeprefix("knight "))
    return 13 + (int(name[-1]) - 1) * 8 + DIRECTIONS.index(name[:-1])


def read_board(block: str) -> DrawnBoard:
    """Parse the text of a board, after `==`."""
    title, *lines = block.strip().splitlines()
    rows = [line.split()[1:] for line in lines[:8]]
    assert [line[0] for line in lines[:8]] == list("87654321"), title
    assert lines[8] == "  a b c d e f g h", title
    assert all(len(row) == 8 for row in rows), title
    side, castling, en_passant, *check = lines[9].split(", ")
    fen = "/".join("".join(row) for row in rows)
    for empty in range(8, 0, -1):
        fen = fen.replace("." * empty, str(empty))
    fen += f" {side[0].lower()} {castling.split()[-1]} {en_passant.split()[-1]} 0 1"
    drawn = DrawnBoard(title, fen, check == ["check"])
    rest = lines[10:]
    while rest:
        line = rest.pop(0)
        if line.startswith("plane "):
            drawn.planes[line.removeprefix("plane ")] = "\n".join(rest[:8])
            rest = rest[8:]
        elif line != "no moves":
            source, _, targets = line.partition(": ")
            drawn.moves |= {source + target for target in targets.split()}
    return drawn


@cache
def boards() -> list[DrawnBoard]:
    return [read_board(block) for block in ("\n" + BOARDS.read_text()).split("\n== ")[1:]]


@pytest.mark.parametrize("drawn", boards(), ids=lambda drawn: drawn.title)
def test_the_engine_and_python_chess_agree_with_the_drawing(drawn: DrawnBoard):
    board = chess.Board(drawn.fen)
    assert board.is_valid(), board.status()
    assert {move.uci() for move in board.legal_moves} == drawn.moves
    assert board.is_check() == drawn.check

    position, planes = from_fen(drawn.fen), np.zeros(77, dtype=np.uint64)
    assert (legal_planes(position, planes) > 0) == drawn.check
    assert count_moves(position, planes) == len(drawn.moves)
    last, moves = "8" if board.turn else "1", set()
    for label in np.flatnonzero(legal_mask(planes[None])[0]).tolist():
        uci = move_from_label(label, 0, board.turn).uci()
        promotes = uci[3] == last and board.pawns >> chess.parse_square(uci[:2]) & 1
        moves |= {uci + piece for piece in "nbrq"} if promotes else {uci}
    assert moves == drawn.moves
    drawings = {name: ascii_board(int(planes[plane_number(name)])) for name in drawn.planes}
    assert drawings == drawn.planes
