"""Compare views with ChessMarro's published rows, and with views drawn by python-chess."""

import random
from itertools import islice

import chess
import numpy as np
import pyarrow.parquet as pq
import pytest

from engine.board.position import castling_bits, en_passant_file, from_board
from engine.encoding.inferred import infer_columns
from engine.encoding.planes import label_from_move, planes_of, unpack
from engine.encoding.views import (
    NO_LAST_MOVE,
    MissingColumnError,
    UnknownViewError,
    apply_labels,
    apply_view,
    counters,
    encode_last_moves,
    view,
)
from tests.conftest import shared_data
from tests.engine import oracle
from tests.engine.encoding.test_planes_oracle import games_of

MOVES = tuple(f"last_move_{back}" if back > 1 else "last_move" for back in range(1, 9))
FENS = (
    chess.STARTING_FEN,
    "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1",
    "rnbqkbnr/ppp1pppp/8/8/3pP3/5N2/PPPP1PPP/RNBQKB1R b KQkq e3 0 3",
    "r3k2r/8/8/8/8/8/8/R3K1R1 w Qk - 42 61",
    "r3k2r/8/8/8/8/8/8/R3K1R1 b Qk - 142 61",
    "4k3/8/8/1pP5/8/8/8/4K3 w - b6 0 30",
)


def rows(boards: list[chess.Board]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the stored planes of boards and the other columns."""
    positions = [from_board(board) for board in boards]
    moves_BH = np.stack([encode_last_moves(board, len(MOVES)) for board in boards])
    columns = {
        "castling": np.array([int(castling_bits(position)) for position in positions], np.uint8),
        "ep_file": np.array([int(en_passant_file(position)) for position in positions], np.uint8),
        "halfmove": np.array([min(board.halfmove_clock, 255) for board in boards], np.uint8),
        **dict(zip(MOVES, moves_BH.T, strict=True)),
    }
    return planes_of(boards), columns


def test_chessmarros_published_planes_and_labels() -> None:
    path = shared_data("chessmarro/linchess_converted_stockfish99.parquet")
    published = pq.read_table(path).to_pylist()
    boards = [chess.Board(row["fen_original"]) for row in published]
    assert len(published) == 100
    planes = np.array([row["board"] for row in published], dtype=np.uint8).reshape(100, 77, 8, 8)
    ours = unpack(apply_view(view("chessmarro77"), rows(boards)[0]))
    assert np.argwhere(ours != planes).tolist() == []
    black = np.array([board.turn == chess.BLACK for board in boards])
    assert 20 < black.sum() < 80, "both sides must be to move"
    best = [chess.Move.from_uci(row["best_uci"]) for row in published]
    stored = [label_from_move(move, board.turn) for move, board in zip(best, boards, strict=True)]
    labels = apply_labels(view("chessmarro77"), black, np.array(stored, dtype=np.uint16))
    assert labels.tolist() == [row["best"] for row in published]


def draw_view(name: str, board: chess.Board) -> np.ndarray:
    """Draw a view of a board with python-chess, uint8[P, 8, 8], without its counters."""
    base, *options = name.split("+")
    absolute = not base.startswith("marro")
    below = chess.WHITE if absolute else board.turn
    by_side = base.startswith("planes")

    def plane_of(piece: chess.Piece) -> int:
        other = piece.color != (chess.WHITE if absolute else board.turn)
        kind = piece.piece_type - 1
        return kind + 6 * other if by_side else 2 * kind + other

    def mark(plane: np.ndarray, squares: chess.SquareSet) -> None:
        for square in squares:
            plane[oracle.row_col(square, below)] = 1

    pieces, attacks = np.zeros((2, 12, 8, 8), dtype=np.uint8)
    for square, piece in board.piece_map().items():
        mark(pieces[plane_of(piece)], chess.SquareSet([square]))
        mark(attacks[plane_of(piece)], board.attacks(square))
    turn = np.full((1, 8, 8), (board.turn == chess.WHITE) == absolute, dtype=np.uint8)
    parts = [pieces, turn]
    if base.endswith("77"):
        moves = np.zeros((64, 8, 8), dtype=np.uint8)
        for move in board.legal_moves:
            kind, bit = oracle.type_and_bit(move.from_square, move.to_square, below)
            moves[kind, bit // 8, bit % 8] = 1
        parts.append(moves)
    if by_side:
        state = np.zeros((5, 8, 8), dtype=np.uint8)
        for place, color in ((0, chess.WHITE), (2, chess.BLACK)):
            state[place] = board.has_kingside_castling_rights(color)
            state[place + 1] = board.has_queenside_castling_rights(color)
        if board.ep_square is not None:
            state[4, :, chess.square_file(board.ep_square)] = 1
        parts.append(state)
    for option in options:
        if option == "attacks":
            parts.append(attacks)
            continue
        last = np.zeros((2 * int(option[4:] or 1), 8, 8), dtype=np.uint8)
        for back, move in enumerate(board.move_stack[::-1][: len(last) // 2]):
            mark(last[2 * back], chess.SquareSet([move.from_square]))
            mark(last[2 * back + 1], chess.SquareSet([move.to_square]))
        parts.append(last)
    return np.concatenate(parts)


def play_boards() -> list[chess.Board]:
    """Return FENS, and positions of a game with castling and promotions and of a random game."""
    game = chess.Board("rnbqk2r/pPpppp1b/5n2/8/8/5N2/P1PPPPB1/RNBQK2R w KQkq - 0 5")
    boards = [*map(chess.Board, FENS), game.copy()]
    for uci in ("e1g1", "e8g8", "b7a8q", "a7a6", "a2a4"):
        game.push_uci(uci)
        boards.append(game.copy())
    rng = random.Random(3)
    game = chess.Board("r3k2r/pPp2ppp/2n5/3pP3/1b2q3/2N2B2/PPP2PPP/R2QK2R w KQkq d6 0 1")
    while len(boards) < 90 and not game.is_game_over():
        game.push(rng.choice(list(game.legal_moves)))
        boards.append(game.copy())
    return boards


@pytest.mark.parametrize(
    "name",
    [
        *("marro77", "marro13", "chessmarro77", "planes18", "planes19", "marro13+last"),
        *("marro77+last8+attacks", "planes18+last3+attacks", "chessmarro77+last2+attacks"),
    ],
)
def test_views_equal_those_drawn_with_python_chess(name: str) -> None:
    boards = play_boards()
    planes, columns = rows(boards)
    stored = planes.copy()
    shown = view(name)
    packed = apply_view(shown, planes, columns)
    for board, picture in zip(boards, unpack(packed), strict=True):
        assert np.array_equal(picture, draw_view(name, board)), board.fen()
    assert packed.shape[1] + len(shown.counters) == shown.planes
    packed[:] = 0
    assert np.array_equal(planes, stored), "a view must be a copy"
    if name == "planes19":
        assert counters(shown, columns)[:6, 0].tolist() == pytest.approx([0, 0, 0, 0.42, 1, 0])
    assert (columns["last_move"][: len(FENS)] == NO_LAST_MOVE).all()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("chesmarro77", "did you mean 'chessmarro77'"),
        ("plane18+last", "did you mean 'planes18'"),
        *((f"marro13+{option}", "last2 to last8") for option in ("last1", "last9", "last+last2")),
        ("planes18+", "does not take the option"),
        ("marro13+attacks+attacks", "does not take the option"),
    ],
)
def test_unknown_views_and_options_are_errors(name: str, problem: str) -> None:
    with pytest.raises(UnknownViewError, match=problem):
        view(name)


def test_the_error_names_a_missing_column_and_the_view() -> None:
    planes, columns = rows([chess.Board()])
    for name in ("marro77+last", "planes19", "marro13+last3"):
        missing = view(name).columns[-1]
        others = {column: values for column, values in columns.items() if column != missing}
        with pytest.raises(MissingColumnError) as caught:
            apply_view(view(name), planes, others)
        assert name in str(caught.value)
        assert missing in str(caught.value)


def test_inferred_columns_are_nearly_always_the_true_ones() -> None:
    games = islice(games_of("pgn/lichess_dump_2021-10_999.pgn", 400), 20)
    boards = [node.board() for game in games for node in game.mainline()]
    boards += [chess.Board(fen) for fen in FENS]
    planes, columns = rows(boards)
    got = infer_columns(planes)
    # in the fourth and fifth FEN, the rook on g1 is not on its home square
    assert got["castling"][-6:].tolist() == [15, 15, 15, 2 | 4 | 8, 8 | 1 | 2, 0]
    assert got["ep_file"][-6:].tolist() == [255, 255, 4, 255, 255, 1]
    can_capture = np.array([board.has_legal_en_passant() for board in boards])
    assert can_capture.any()
    assert np.array_equal(got["ep_file"] != 255, can_capture)
    assert np.array_equal(got["ep_file"][can_capture], columns["ep_file"][can_capture])
    assert not np.any(columns["castling"] & ~got["castling"]), "no right is missed"
    assert np.mean(got["castling"] == columns["castling"]) > 0.95
