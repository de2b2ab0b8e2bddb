"""The hand-written evaluator: simple moves, values, and the format of its results."""

import random

import chess
import numpy as np
import pytest

from engine.encoding import planes
from engine.encoding.planes import PLANES, legal_mask, move_from_label
from engine.evaluation import handwritten, static_evaluation, static_exchange
from engine.evaluation.evaluator import Evaluator, uniform

GAINS = np.zeros(static_exchange.MAX_EXCHANGE, dtype=np.int64)
EXCHANGE_VALUES = {
    chess.PAWN: 100,
    chess.KNIGHT: 320,
    chess.BISHOP: 330,
    chess.ROOK: 500,
    chess.QUEEN: 950,
    chess.KING: 0,
}


def planes_of(board: chess.Board) -> np.ndarray:
    return planes.planes_of([board])[0]


def value(board: chess.Board) -> int:
    return int(static_evaluation.static_evaluation(planes_of(board), GAINS))


def read_move(board: chess.Board, label: int) -> chess.Move:
    """Return the move of a label; pawns promote to queens."""
    move = move_from_label(label, 0, board.turn)
    is_pawn = board.piece_type_at(move.from_square) == chess.PAWN
    if is_pawn and chess.square_rank(move.to_square) in (0, 7):
        move.promotion = chess.QUEEN
    return move


def random_boards(count: int, seed: int = 7) -> list[chess.Board]:
    rng = random.Random(seed)
    boards: list[chess.Board] = []
    board = chess.Board()
    while len(boards) < count:
        moves = list(board.legal_moves)
        if not moves or board.fullmove_number > 60:
            board = chess.Board()
            continue
        board.push(rng.choice(moves))
        boards.append(board.copy(stack=False))
    return boards


@pytest.mark.parametrize(
    ("fen", "san"),
    [
        # a queen hangs
        ("rnb1kbnr/pppp1ppp/8/4p3/3PP2q/5N2/PPP2PPP/RNBQKB1R w KQkq - 0 1", "Nxh4"),
        # the scholar's mate
        ("r1bqk1nr/pppp1ppp/2n5/2b1p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4", "Qxf7#"),
        ("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", "Ra8#"),  # the back rank
        ("7k/P7/8/8/8/8/8/K7 w - - 0 1", "a8=Q+"),
        ("4k3/8/8/3q4/4P3/8/8/4K3 w - - 0 1", "exd5"),
        ("6k1/5ppp/8/8/3R4/8/5PPP/3r2K1 w - - 0 1", "Rxd1"),  # a capture that answers a check
    ],
)
def test_the_first_choice_is_a_simple_good_move(fen: str, san: str) -> None:
    board = chess.Board(fen)
    logits_BA, _ = handwritten.evaluate(planes_of(board)[None])
    assert board.san(read_move(board, int(logits_BA[0].argmax()))) == san


def test_exactly_mates_get_the_mating_bonus() -> None:
    labels, scores = np.empty((2, 256), dtype=np.int64)
    work = (GAINS, np.empty(PLANES, dtype=np.uint64))
    # g4+ would mate, but the pawn can be captured en passant
    en_passant = chess.Board("8/8/8/6pk/5p1p/7P/5PP1/1R3RK1 w - - 0 1")
    for board in [en_passant, *random_boards(200)]:
        planes_P = planes_of(board)
        before = planes_P.copy()
        count = handwritten.score_moves(planes_P, labels, scores, work)
        assert (planes_P == before).all()
        assert np.all(np.diff(labels[:count]) > 0)
        for label, score in zip(labels[:count].tolist(), scores[:count].tolist(), strict=True):
            move = read_move(board, label)
            assert board.is_legal(move)
            board.push(move)
            assert (score > static_evaluation.MATE_VALUE // 2) == board.is_checkmate()
            board.pop()


def test_the_value_is_the_same_with_colors_swapped() -> None:
    for board in random_boards(300):
        assert value(board) == value(board.mirror())


def test_the_initial_position_is_even_and_an_extra_rook_wins() -> None:
    assert abs(value(chess.Board())) < 30
    without_rook = chess.Board("1nbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQk - 0 1")
    assert value(without_rook) > 350
    without_rook.turn = chess.BLACK
    assert value(without_rook) < -350


def test_mate_and_stalemate_are_certain() -> None:
    mated = chess.Board("R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1")
    stalemate = chess.Board("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1")
    _, wdl_B3 = handwritten.evaluate(np.stack([planes_of(mated), planes_of(stalemate)]))
    np.testing.assert_array_equal(wdl_B3, [[0, 0, 1], [0, 1, 0]])


def slow_exchange(board: chess.Board, square: int) -> int:
    """Return the gain of an exchange on a square, by recursion over python-chess; ignores pins."""
    attackers = board.attackers(board.turn, square)
    if not attackers:
        return 0
    source = min(attackers, key=lambda s: (board.piece_type_at(s) or 9, s))
    if board.piece_type_at(source) == chess.KING and board.attackers(not board.turn, square):
        return 0
    victim, piece = board.piece_at(square), board.piece_at(source)
    assert victim is not None
    assert piece is not None
    after = board.copy(stack=False)
    after.remove_piece_at(source)
    after.set_piece_at(square, piece)
    after.turn = not board.turn
    return max(0, EXCHANGE_VALUES[victim.piece_type] - slow_exchange(after, square))


def choose_greedily(board: chess.Board, seen: set[str]) -> chess.Move:
    """Return the move to the opponent's worst position; positions in `seen` are worth 0."""

    def value_after(move: chess.Move) -> int:
        board.push(move)
        worth = 0 if board.board_fen() in seen else value(board)
        board.pop()
        return worth

    return min(board.legal_moves, key=value_after)


def test_a_one_ply_search_mates_a_bare_king() -> None:
    board, seen = chess.Board("8/8/8/3k4/8/8/8/QK6 w - - 0 1"), set[str]()
    for _ in range(45):
        board.push(choose_greedily(board, seen))
        seen.add(board.board_fen())
        if board.is_game_over():
            break
        board.push(choose_greedily(board, set()))
    assert board.is_checkmate()


def test_shared_results_cannot_be_changed() -> None:
    for part in uniform(planes_of(chess.Board())[None]):
        with pytest.raises(ValueError, match="read-only"):
            part[0, 0] = 1


@pytest.mark.parametrize("evaluator", [uniform, handwritten.evaluate])
def test_logits_are_finite_on_legal_labels_and_wdl_is_a_distribution(evaluator: Evaluator) -> None:
    planes_BP = np.stack([planes_of(board) for board in random_boards(20)])
    logits_BA, wdl_B3 = evaluator(planes_BP)
    assert logits_BA.dtype == wdl_B3.dtype == np.float32
    assert (logits_BA.shape, wdl_B3.shape) == ((20, 4096), (20, 3))
    assert np.isfinite(logits_BA[legal_mask(planes_BP)]).all()
    assert (wdl_B3 >= 0).all()
    np.testing.assert_allclose(wdl_B3.sum(axis=1), 1.0, atol=1e-6)
    for row in (0, 7, 19):  # a row does not depend on its batch
        alone = evaluator(planes_BP[row : row + 1])
        np.testing.assert_array_equal(alone[0][0], logits_BA[row])
        np.testing.assert_array_equal(alone[1][0], wdl_B3[row])
    assert [part.shape for part in evaluator(planes_BP[:0])] == [(0, 4096), (0, 3)]
