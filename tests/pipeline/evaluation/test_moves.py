"""Kinds of moves, pieces moved and phases of the game, compared with python-chess."""

import random

import chess
import numpy as np

from engine.encoding.planes import label_from_move
from engine.encoding.views import NO_LAST_MOVE
from pipeline.evaluation.charts import decode_board
from pipeline.evaluation.figures import MOVE_KINDS, PHASE_NAMES, PIECE_NAMES
from pipeline.evaluation.measure import classify_moves
from pipeline.validation.verify import encode_castling, encode_last_moves, encode_planes

START = (
    chess.STARTING_FEN,
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "8/P6k/8/4Pp2/8/8/6p1/K7 w - f6 0 1",
)


def play_games() -> list[tuple[chess.Board, chess.Move]]:
    """Play random games that prefer en passant, castling and promotions to a queen."""
    chance, found = random.Random(0), []
    for seed in range(30):
        board = chess.Board(START[seed % len(START)])
        for _ in range(40):
            moves = [one for one in board.legal_moves if one.promotion in (None, chess.QUEEN)]
            if not moves:
                break
            rare = [
                move
                for move in moves
                if move.promotion or board.is_castling(move) or board.is_en_passant(move)
            ]
            move = chance.choice(rare or moves)
            found.append((board.copy(), move))
            board.push(move)
    return found


def test_kinds_pieces_and_phases_are_those_of_python_chess() -> None:
    rows = play_games()
    last_moves = [encode_last_moves(board)[0] for board, _ in rows]
    batch = {
        "planes": np.stack([encode_planes(board) for board, _ in rows]),
        "label": np.array(
            [label_from_move(move, board.turn) for board, move in rows], dtype=np.uint16
        ),
        "last_move": np.array(
            [NO_LAST_MOVE if one is None else one for one in last_moves], dtype=np.uint16
        ),
    }
    columns = classify_moves(batch)
    seen = dict.fromkeys(MOVE_KINDS, 0)
    for at, (board, move) in enumerate(rows):
        kinds = {
            "capture": board.is_capture(move),
            "recapture": bool(board.move_stack)
            and board.is_capture(move)
            and board.peek().to_square == move.to_square,
            "check": board.gives_check(move),
            "castling": board.is_castling(move),
            "promotion": move.promotion is not None,
        }
        kinds["quiet"] = not any(kinds.values())
        for kind, expected in kinds.items():
            assert bool(columns[kind][at]) == expected, (kind, board.fen(), move)
            seen[kind] += expected
        piece = board.piece_type_at(move.from_square)
        assert piece is not None
        assert PIECE_NAMES[columns["piece"][at]] == chess.piece_name(piece)
        count = chess.popcount(board.knights | board.bishops | board.rooks | board.queens)
        phase = "endgame" if count <= 6 else "middlegame" if count <= 10 else "opening"
        assert PHASE_NAMES[columns["phase"][at]] == phase
        if at % 7 == 0:
            ep_file = 255 if board.ep_square is None else chess.square_file(board.ep_square)
            found = decode_board(batch["planes"][at], encode_castling(board), ep_file, board.ply())
            board.halfmove_clock = 0
            assert found.fen(en_passant="fen") == board.fen(en_passant="fen")
    assert min(seen.values()) >= 5, seen
