"""Compare move features with python-chess and a slow exchange evaluation."""

import hashlib

import chess
import numpy as np

from engine.encoding.planes import LABELS, PLANES, label_from_move
from engine.evaluation.move_features import (
    CENTIPAWNS_PER_UNIT,
    MOVE_FEATURES,
    MOVE_FEATURES_VERSION,
    legal_move_features,
)
from tests.engine.encoding.test_planes_oracle import games_of
from tests.engine.evaluation.test_handwritten import (
    EXCHANGE_VALUES,
    planes_of,
    random_boards,
    slow_exchange,
)

BOARDS = (
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R b KQkq - 0 1",
    # promotions with and without a capture, castling past rooks
    "r3k2r/1P4P1/8/8/8/8/1p4p1/R3K2R w KQkq - 0 1",
    "rnbqkbnr/ppp1p1pp/8/3pPp2/8/8/PPPP1PPP/RNBQKBNR w KQkq f6 0 3",  # en passant
    "6k1/5ppp/8/8/8/8/8/R3K2R w KQ - 0 1",  # a mate, and castling without check
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "4k3/8/3r1q2/8/4N3/8/8/4K3 w - - 0 1",  # forks
)


def rank_gains(board: chess.Board, excluded: int = -1) -> list[int]:
    """Return the gains of the side to move by exchanges on each square, largest first."""
    squares = chess.SquareSet(board.occupied_co[not board.turn] & ~board.kings)
    gains = (slow_exchange(board, square) for square in squares if square != excluded)
    return [*sorted(gains, reverse=True), 0, 0]


def pass_turn(board: chess.Board) -> chess.Board:
    board = board.copy(stack=False)
    board.turn = not board.turn
    return board


def compute_slowly(board: chess.Board, move: chess.Move) -> dict[str, int]:
    """Return the features of a move by python-chess and `slow_exchange`."""
    after = board.copy(stack=False)
    after.push(move)
    victim = chess.PAWN if board.is_en_passant(move) else board.piece_type_at(move.to_square)
    takes = EXCHANGE_VALUES[victim] if victim else 0
    takes += EXCHANGE_VALUES[chess.QUEEN] - EXCHANGE_VALUES[chess.PAWN] if move.promotion else 0
    leaves, threatens = rank_gains(after, move.to_square), rank_gains(pass_turn(after))
    amounts = {
        "takes": takes,
        "risks": slow_exchange(after, move.to_square),
        "leaves": leaves[0],
        "leaves_next": leaves[1],
        "threatens": threatens[0],
        "threatens_next": threatens[1],
        "stands": rank_gains(pass_turn(board))[0],
    }
    target = move.to_square ^ (56 if board.turn == chess.WHITE else 0)
    check = int(after.is_check()) + int(after.is_checkmate())
    return {name: min(amount // CENTIPAWNS_PER_UNIT, 255) for name, amount in amounts.items()} | {
        "check": check,
        "target": target,
    }


def compare(boards: list[chess.Board]) -> dict[str, int]:
    """Compare the features of every legal move; return how often each feature was above 0."""
    found = legal_move_features(np.stack([planes_of(board) for board in boards]))
    assert found["moves"].dtype == np.int64
    assert found["move_features"].dtype == np.uint8
    counts, index = dict.fromkeys(MOVE_FEATURES, 0), 0
    for row, board in enumerate(boards):
        legal = [move for move in board.legal_moves if move.promotion in (None, chess.QUEEN)]
        moves = {label_from_move(move, board.turn): move for move in legal}
        labels = found["moves"][index : index + len(moves)] - row * LABELS
        assert labels.tolist() == sorted(moves)
        for label in labels.tolist():
            got = dict(zip(MOVE_FEATURES, found["move_features"][index].tolist(), strict=True))
            assert got == compute_slowly(board, moves[label]), (board.fen(), moves[label].uci())
            index += 1
            for name in MOVE_FEATURES:
                counts[name] += got[name] > 0
    assert index == len(found["moves"])
    return counts


def test_features_are_those_of_python_chess() -> None:
    game = next(games_of("pgn/lichess_export_2016-05.pgn", 12))
    played = [node.board() for node in game.mainline() if node.next() is not None]
    counts = compare([*map(chess.Board, BOARDS), *played[::6], *random_boards(40, seed=5)])
    assert min(counts.values()) > 20, counts


def test_the_features_have_not_changed_without_a_new_version() -> None:
    found = legal_move_features(np.stack([planes_of(chess.Board(fen)) for fen in BOARDS]))
    digest = hashlib.sha256(found["move_features"].tobytes()).hexdigest()[:16]
    assert (MOVE_FEATURES_VERSION, digest) == (1, "d1a48149720c8a69"), (
        "networks would get other inputs: raise MOVE_FEATURES_VERSION if the change is intended"
    )


def test_rows_without_moves_have_no_features() -> None:
    mated = planes_of(chess.Board("R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1"))
    for planes in (np.zeros((0, PLANES), np.uint64), mated[None]):
        found = legal_move_features(planes)
        assert found["moves"].shape == (0,)
        assert found["move_features"].shape == (0, len(MOVE_FEATURES))
    both = legal_move_features(np.stack([mated, planes_of(chess.Board())]))
    assert (both["moves"] // LABELS == 1).all()
    assert len(both["moves"]) == 20
