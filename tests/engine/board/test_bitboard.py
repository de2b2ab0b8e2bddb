"""The bit order, the steps of knight and king, and the guard that keeps boards unsigned."""

from typing import Any

import numpy as np
import pytest
from numba import njit, types

from engine.board import bitboard, movegen, movers, position
from engine.board.bitboard import flip, king_attacks, knight_attacks, lowest, popcount
from tests.engine.compiled import kernels, not_unsigned
from tests.engine.oracle import ascii_board

U = np.uint64


@njit
def _popcount(board: Any) -> Any:
    return popcount(board)


@njit
def _lowest(board: Any) -> Any:
    return lowest(board)


@njit
def _flip(board: Any) -> Any:
    return flip(board)


@pytest.mark.parametrize(
    ("board", "bits", "first"),
    [
        (0, 0, 64),
        (1, 1, 0),
        (1 << 63, 1, 63),
        (2**64 - 1, 64, 0),
        (0xF0, 4, 4),
        (0x8000_0001_0000_0000, 2, 32),
    ],
)
def test_bits_are_counted_and_found(board: int, bits: int, first: int):
    assert _popcount(U(board)) == bits
    assert _lowest(U(board)) == first


def test_bit_zero_is_the_mover_s_a8_and_a_flip_swaps_rows():
    assert ascii_board(1).splitlines()[0] == "x . . . . . . ."
    assert ascii_board(1 << 7).splitlines()[0] == ". . . . . . . x"
    assert ascii_board(1 << 56).splitlines()[7] == "x . . . . . . ."
    board = 0x0123_4567_89AB_CDEF
    assert ascii_board(int(_flip(U(board)))).splitlines() == ascii_board(board).splitlines()[::-1]


def _near(square: int, steps: set[tuple[int, int]]) -> int:
    """Walk from a square by (row, column) steps, staying on the board."""
    board = 0
    for row, col in steps:
        if 0 <= square // 8 + row < 8 and 0 <= square % 8 + col < 8:
            board |= 1 << (square // 8 + row) * 8 + square % 8 + col
    return board


def test_leapers_never_wrap_around_the_edge():
    around = {(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)} - {(0, 0)}
    jumps = {(row, col) for row in (-2, -1, 1, 2) for col in (-2, -1, 1, 2) if abs(row) != abs(col)}
    for square in range(64):
        assert int(king_attacks(U(1 << square))) == _near(square, around)
        assert int(knight_attacks(U(1 << square))) == _near(square, jumps)


def _exercise() -> None:
    """Call every entry point, so that each has a signature; those they call get theirs as they are
    compiled."""
    words = position.from_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -")
    planes = np.zeros(77, dtype=np.uint64)
    position.key(words, False)
    position.castling_bits(words)
    position.en_passant_file(words)
    position.word_on(words, U(1 << 60), 0)
    position.occupied_squares(words)
    movegen.legal_planes(words, planes)
    movegen.en_passant_legal(words, planes)
    movegen.legal_key(words, planes)
    movegen.no_moves(planes)
    movers.legal_movers(words, 0, U(1 << 36), U(2**64 - 1))
    movers.may_capture_en_passant(words, planes)
    movegen.perft(words, 1)
    position.push(words, 52, 36, 0)
    position.mirror(words)


def test_every_kernel_stays_unsigned():
    _exercise()
    found = kernels(bitboard, position, movegen, movers)
    assert len(found) > 15
    seen: set[tuple[str, Any]] = set()
    while new := [
        (name, s)
        for name, kernel in found.items()
        for s in kernel.signatures
        if (name, s) not in seen
    ]:
        for name, signature in new:
            seen.add((name, signature))
            mixed = not_unsigned(found[name], signature)
            assert not mixed, f"{name} mixes signed and unsigned integers, or divides: {mixed}"
    inlined = {
        "engine.board.bitboard.bit",
        "engine.board.movegen.pawn_attacks_down",
        "engine.board.movegen.pawn_attacks_up",
        "engine.board.position._mix",
    }  # seen inside those that use them
    assert {name for name, _ in seen} | inlined == set(found), (
        "a kernel was never compiled: call it in _exercise"
    )


def _add(board: Any, number: Any) -> Any:
    return (board + number) >> U(63)


def _merge(board: Any, number: Any) -> Any:
    merged = 0
    if number:
        merged = board
    return merged


def _nothing_wrong(board: Any, number: Any) -> Any:
    return (board + U(number)) >> U(63)


def test_the_guard_sees_a_mix_of_signed_and_unsigned():
    signature = (types.uint64, types.int64)
    top = U(2**63)
    assert njit(_nothing_wrong)(top, 0) == 1
    assert njit(_add)(top, 0) != 1, "Numba mends this: the guard may go"
    assert isinstance(njit(_merge)(top, 1), float), "Numba mends this: the guard may go"
    assert not_unsigned(njit(_nothing_wrong), signature) == []
    assert any("of uint64, int64 is int64" in line for line in not_unsigned(njit(_add), signature))
    assert any("float64" in line for line in not_unsigned(njit(_merge), signature))
