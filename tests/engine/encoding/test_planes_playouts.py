"""Properties over random games, which go where people do not: many promotions, kings in the open,
odd material."""

from random import Random

import chess
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.board import position as words
from engine.board.movegen import count_moves, legal_planes
from engine.board.position import from_board, from_fen, mirror, push, to_fen
from engine.encoding.planes import label_of, legal_mask, move_of, target_table
from tests.engine import oracle

STARTS = [
    chess.STARTING_FEN,
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1",
]


@st.composite
def boards(draw: st.DrawFn) -> chess.Board:
    """Draw a board that random legal moves have reached."""
    board = chess.Board(draw(st.sampled_from(STARTS)))
    random = Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(0, 120))):
        moves = list(board.legal_moves)
        if not moves:
            break
        board.push(random.choice(moves))
    return board


def planes_of(position: words.Position) -> np.ndarray:
    planes = np.zeros((1, 77), dtype=np.uint64)
    legal_planes(position, planes[0])
    return planes


@settings(max_examples=200)
@given(boards())
def test_planes_and_mask_are_python_chess_s(board: chess.Board):
    way_back = board.copy()
    while way_back.move_stack:
        way_back.pop()
        assert planes_of(from_board(way_back))[0].tolist() == oracle.planes(way_back), (
            way_back.fen()
        )
    position = from_board(board)
    planes = planes_of(position)
    assert planes[0].tolist() == oracle.planes(board)
    labels = {label_of(move, board.turn) for move in board.legal_moves}
    assert set(np.flatnonzero(legal_mask(planes)[0]).tolist()) == labels
    assert count_moves(position, planes[0]) == board.legal_moves.count()


@settings(max_examples=200)
@given(boards())
def test_every_legal_move_has_a_label_that_leads_back_and_pushes_alike(board: chess.Board):
    position = from_board(board)
    for move in board.legal_moves:
        label = label_of(move, board.turn)
        assert move_of(label, move.promotion or 0, board.turn) == move
        child = position.copy()
        push(child, label % 64, int(target_table()[label]), move.promotion or 0)
        board.push(move)
        assert child.tolist() == from_board(board).tolist()
        board.pop()


@settings(max_examples=200)
@given(boards())
def test_mirror_is_python_chess_s_and_its_own_inverse(board: chess.Board):
    position = from_board(board)
    turned = position.copy()
    mirror(turned)
    null = board.copy(stack=False)
    # mirroring a position gives the other side the move on the same board
    null.turn = not board.turn
    assert turned[: words.COUNTERS].tolist() == from_board(null)[: words.COUNTERS].tolist()
    mirror(turned)
    assert turned.tolist() == position.tolist()


@settings(max_examples=200)
@given(boards())
def test_colours_swapped_look_the_same_to_the_mover(board: chess.Board):
    ours, theirs = planes_of(from_board(board))[0], planes_of(from_board(board.mirror()))[0]
    assert ours[12] == ~theirs[12]
    assert np.delete(ours, 12).tolist() == np.delete(theirs, 12).tolist()


@settings(max_examples=200)
@given(boards())
def test_fen_goes_round(board: chess.Board):
    fen = board.fen(en_passant="fen")
    assert to_fen(from_fen(fen)) == fen
    assert from_fen(fen).tolist() == from_board(board).tolist()
