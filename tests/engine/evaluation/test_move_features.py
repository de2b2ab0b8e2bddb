"""Compare move features with python-chess and a slow exchange evaluation."""

import hashlib

import chess
import numpy as np

from engine.encoding.planes import LABELS, PLANES, label_of
from engine.evaluation.move_features import (
    CENTIPAWNS_PER_UNIT,
    FEATURES,
    FEATURES_VERSION,
    legal_move_features,
)
from tests.engine.encoding.test_planes_oracle import games_of
from tests.engine.evaluation.test_handwritten import WORTH, planes_of, random_boards, slow_exchange

BOARDS = (
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R b KQkq - 0 1",
    # promotions with and without a capture, castling past rooks
    "r3k2r/1P4P1/8/8/8/8/1p4p1/R3K2R w KQkq - 0 1",
    "rnbqkbnr/ppp1p1pp/8/3pPp2/8/8/PPPP1PPP/RNBQKBNR w KQkq f6 0 3",  # en passant
    "6k1/5ppp/8/8/8/8/8/R3K2R w KQ - 0 1",  # a mate, and castling without check
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "4k3/8/3r1q2/8/4N3/8/8/4K3 w - - 0 1",  # forks
)


def lost(board: chess.Board, besides: int = -1) -> list[int]:
    """Return the gains of the side to move by exchanges on each square, largest first."""
    squares = board.occupied_co[not board.turn] & ~board.kings
    won = (slow_exchange(board, at) for at in chess.SquareSet(squares) if at != besides)
    return [*sorted(won, reverse=True), 0, 0]


def turned(board: chess.Board) -> chess.Board:
    other = board.copy(stack=False)
    other.turn = not board.turn
    return other


def features_by_hand(board: chess.Board, move: chess.Move) -> dict[str, int]:
    after = board.copy(stack=False)
    after.push(move)
    victim = chess.PAWN if board.is_en_passant(move) else board.piece_type_at(move.to_square)
    takes = (WORTH[victim] if victim else 0) + (
        WORTH[chess.QUEEN] - WORTH[chess.PAWN] if move.promotion else 0
    )
    leaves, threatens = lost(after, move.to_square), lost(turned(after))
    amounts = {
        "takes": takes,
        "risks": slow_exchange(after, move.to_square),
        "leaves": leaves[0],
        "leaves_next": leaves[1],
        "threatens": threatens[0],
        "threatens_next": threatens[1],
        "stands": lost(turned(board))[0],
    }
    target = move.to_square ^ (56 if board.turn == chess.WHITE else 0)
    check = int(after.is_check()) + int(after.is_checkmate())
    return {name: min(amount // CENTIPAWNS_PER_UNIT, 255) for name, amount in amounts.items()} | {
        "check": check,
        "target": target,
    }


def compare(boards: list[chess.Board]) -> dict[str, int]:
    """Compare every legal move's features; return how often each was above 0."""
    found = legal_move_features(np.stack([planes_of(board) for board in boards]))
    assert found["moves"].dtype == np.int64
    assert found["move_features"].dtype == np.uint8
    met, place = dict.fromkeys(FEATURES, 0), 0
    for row, board in enumerate(boards):
        moves = {
            label_of(m, board.turn): m
            for m in board.legal_moves
            if m.promotion in (None, chess.QUEEN)
        }
        labels = found["moves"][place : place + len(moves)] - row * LABELS
        assert labels.tolist() == sorted(moves)
        for label in labels.tolist():
            got = dict(zip(FEATURES, found["move_features"][place].tolist(), strict=True))
            assert got == features_by_hand(board, moves[label]), (board.fen(), moves[label].uci())
            place += 1
            for name in FEATURES:
                met[name] += got[name] > 0
    assert place == len(found["moves"])
    return met


def test_features_are_those_of_python_chess() -> None:
    game = next(games_of("pgn/lichess_export_2016-05.pgn", 12))
    played = [node.board() for node in game.mainline() if node.next() is not None]
    met = compare([*map(chess.Board, BOARDS), *played[::6], *random_boards(40, seed=5)])
    assert min(met.values()) > 20, met


def test_the_features_have_not_changed_without_a_new_version() -> None:
    found = legal_move_features(np.stack([planes_of(chess.Board(fen)) for fen in BOARDS]))
    digest = hashlib.sha256(found["move_features"].tobytes()).hexdigest()[:16]
    assert (FEATURES_VERSION, digest) == (1, "d1a48149720c8a69"), (
        "A network would be told other features: raise FEATURES_VERSION if the change is meant"
    )


def test_rows_without_moves_have_no_features() -> None:
    mated = planes_of(chess.Board("R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1"))
    for planes in (np.zeros((0, PLANES), np.uint64), mated[None]):
        found = legal_move_features(planes)
        assert found["moves"].shape == (0,)
        assert found["move_features"].shape == (0, len(FEATURES))
    both = legal_move_features(np.stack([mated, planes_of(chess.Board())]))
    assert (both["moves"] // LABELS == 1).all()
    assert len(both["moves"]) == 20
