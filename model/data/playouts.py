"""Generate rows of random games in the shards' format, for benchmarks and tests."""

from typing import Any

import chess
import numpy as np

from engine.board.movegen import legal_planes
from engine.board.position import castling_bits, en_passant_file, from_board
from engine.encoding.planes import PLANES, label_from_move
from engine.encoding.views import LAST_MOVES, encode_last_moves

PROMOTING_FEN = "r3k2r/1P4P1/8/8/8/8/1p4p1/R3K2R w KQkq - 0 1"
"""A position in which pawns of both sides can promote, with and without a capture."""


def playout_rows(count: int, seed: int = 0) -> dict[str, Any]:
    """Return `count` rows of games with random moves, ratings and clocks, in the shards' format.

    To cover every type of move, captures and promotions are preferred half of the time, and every
    other game starts from PROMOTING_FEN. One row in four has no ratings, and one in four no clock.
    The result of a row is a win for the side with more pieces, or a draw if the numbers are equal.
    """
    random = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {}
    board, game, first = chess.Board(), 0, 0
    for number in range(count):
        if number - first >= 80 or not any(board.legal_moves):
            game, first = game + 1, number
            board = chess.Board(PROMOTING_FEN if game % 2 else chess.STARTING_FEN)
        moves = list(board.legal_moves)
        sharp = [move for move in moves if move.promotion or board.is_capture(move)]
        if sharp and random.random() < 0.5:
            moves = sharp
        move = moves[int(random.integers(len(moves)))]
        for name, value in _make_row(board, move, game, number - first, random).items():
            rows.setdefault(name, []).append(value)
        board.push(move)
    return {name: np.array(values) for name, values in rows.items()}


def _make_row(
    board: chess.Board, move: chess.Move, game: int, ply: int, random: np.random.Generator
) -> dict[str, Any]:
    position = from_board(board)
    planes_P = np.zeros(PLANES, dtype=np.uint64)
    legal_planes(position, planes_P)
    own, theirs = (board.occupied_co[color].bit_count() for color in (board.turn, not board.turn))
    is_rated, has_clock = random.random() < 0.75, random.random() < 0.75
    return {
        "planes": planes_P,
        "label": np.uint16(label_from_move(move, board.turn)),
        "promotion": np.uint8(move.promotion or 0),
        "castling": np.uint8(castling_bits(position)),
        **dict(zip(LAST_MOVES, encode_last_moves(board, len(LAST_MOVES)), strict=True)),
        "ep_file": np.uint8(en_passant_file(position)),
        "halfmove": np.uint8(min(board.halfmove_clock, 255)),
        "repetition": np.uint8(0),
        "result": np.int8((own > theirs) - (own < theirs)),
        "ply": np.uint16(ply),
        "plies": np.uint16(ply + 1 + int(random.integers(80))),
        "game": np.uint32(game),
        "elo": np.uint16(random.integers(700, 2800) if is_rated else 0),
        "opponent_elo": np.uint16(random.integers(700, 2800) if is_rated else 0),
        "clock": np.uint16(random.integers(0, 1200) if has_clock else 65535),
        "base": np.uint16(600),
        "increment": np.uint8(5),
    }
