"""planes18, planes19 and the options of views, drawn by python-chess; and what planes alone tell of
the other columns."""

import random
from itertools import islice

import chess
import numpy as np
import pytest

from engine.board.movegen import legal_planes
from engine.board.position import castling_bits, en_passant_file, from_board
from engine.encoding.inferred import infer_columns
from engine.encoding.planes import unpack
from engine.encoding.views import (
    NO_LAST_MOVE,
    MissingColumnError,
    UnknownViewError,
    apply,
    counters,
    last_moves_of,
    view,
)
from tests.engine import oracle
from tests.engine.encoding.test_planes_real_games import games_of

FENS = (
    chess.STARTING_FEN,
    "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1",
    "rnbqkbnr/ppp1pppp/8/8/3pP3/5N2/PPPP1PPP/RNBQKB1R b KQkq e3 0 3",
    "r3k2r/8/8/8/8/8/8/R3K1R1 w Qk - 42 61",
    "r3k2r/8/8/8/8/8/8/R3K1R1 b Qk - 142 61",
    "4k3/8/8/1pP5/8/8/8/4K3 w - b6 0 30",
)


def rows(boards: list[chess.Board]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Give stored planes and the other columns as ingest stores them."""
    planes = np.zeros((len(boards), 77), dtype=np.uint64)
    positions = [from_board(board) for board in boards]
    for row, position in zip(planes, positions, strict=True):
        legal_planes(position, row)
    columns = {
        "castling": np.array([int(castling_bits(position)) for position in positions], np.uint8),
        "ep_file": np.array([int(en_passant_file(position)) for position in positions], np.uint8),
        "halfmove": np.array([min(board.halfmove_clock, 255) for board in boards], np.uint8),
    }
    return planes, columns


def drawn18(board: chess.Board) -> np.ndarray:
    """Draw planes18 square by square, uint8[18, 8, 8]."""
    picture = np.zeros((18, 8, 8), dtype=np.uint8)
    for square, piece in board.piece_map().items():
        row, col = oracle.row_col(square, chess.WHITE)
        picture[piece.piece_type - 1 + (0 if piece.color == chess.WHITE else 6), row, col] = 1
    picture[12] = board.turn == chess.WHITE
    picture[13] = board.has_kingside_castling_rights(chess.WHITE)
    picture[14] = board.has_queenside_castling_rights(chess.WHITE)
    picture[15] = board.has_kingside_castling_rights(chess.BLACK)
    picture[16] = board.has_queenside_castling_rights(chess.BLACK)
    if board.ep_square is not None:
        picture[17, :, chess.square_file(board.ep_square)] = 1
    return picture


@pytest.mark.parametrize("fen", FENS)
def test_planes18_are_those_that_python_chess_draws(fen: str) -> None:
    board = chess.Board(fen)
    planes, columns = rows([board])
    shown = view("planes18")
    assert shown.planes == 18
    assert np.argwhere(unpack(apply(shown, planes, columns))[0] != drawn18(board)).tolist() == []


def test_planes19_add_the_fifty_move_plane() -> None:
    planes, columns = rows([chess.Board(fen) for fen in FENS])
    shown = view("planes19")
    assert shown.planes == 19
    assert (
        apply(shown, planes, columns).tolist() == apply(view("planes18"), planes, columns).tolist()
    )
    assert counters(shown, columns)[:, 0].tolist() == pytest.approx([0, 0, 0, 0.42, 1, 0])


@pytest.mark.parametrize("base", ["marro13", "planes18", "chessmarro77"])
def test_the_last_move_is_shown_where_it_began_and_where_it_ended(base: str) -> None:
    """For both colours, castling and a promotion among them; nothing at the start of a game."""
    game = chess.Board("rnbqk2r/ppppppbP/5n2/8/8/5N2/PPPPPPB1/RNBQK2R w KQkq - 0 5")
    boards, moves = [game.copy()], [NO_LAST_MOVE]
    for uci in ("e1g1", "e8g8", "h7h8q", "g8h8", "a2a4"):
        game.push(chess.Move.from_uci(uci))
        moves.append(int(last_moves_of(game, 1)[0]))
        boards.append(game.copy())
    planes, columns = rows(boards)
    shown = view(f"{base}+last")
    got = unpack(apply(shown, planes, columns | {"last_move": np.array(moves, np.uint16)}))
    at = view(base).planes
    assert got.shape[1] == shown.planes == at + 2
    assert not got[0, at:].any()
    for board, picture in zip(boards[1:], got[1:, at:], strict=True):
        turn = chess.WHITE if shown.absolute else board.turn
        for square, plane in zip(
            (board.peek().from_square, board.peek().to_square), picture, strict=True
        ):
            assert plane[oracle.row_col(square, turn)] == plane.sum() == 1


@pytest.mark.parametrize("base", ["marro13", "planes18"])
def test_earlier_moves_are_shown_behind_the_last_one_as_the_mover_sees_them(base: str) -> None:
    game = chess.Board()
    boards = [game.copy()]
    for san in ("e4", "c5", "Nf3", "d6", "Bb5+"):
        game.push_san(san)
        boards.append(game.copy())
    planes, columns = rows(boards)
    shown = view(f"{base}+last3")
    moves_BH = np.stack([last_moves_of(board, 3) for board in boards])
    columns |= dict(zip(shown.columns[-3:], moves_BH.T, strict=True))
    assert shown.columns[-3:] == ("last_move", "last_move_2", "last_move_3")
    got = unpack(apply(shown, planes, columns))[:, view(base).planes :]
    assert got.shape[1] == 6
    for board, picture in zip(boards, got, strict=True):
        turn = chess.WHITE if shown.absolute else board.turn
        expected = np.zeros((6, 8, 8), dtype=np.uint8)
        for back, move in enumerate(board.move_stack[::-1][:3]):
            expected[(2 * back, *oracle.row_col(move.from_square, turn))] = 1
            expected[(2 * back + 1, *oracle.row_col(move.to_square, turn))] = 1
        assert np.array_equal(picture, expected), board.ply()


@pytest.mark.parametrize("base", ["marro13", "planes18", "chessmarro77"])
def test_attacked_squares_are_python_chess_s(base: str) -> None:
    lots, game = (
        random.Random(3),
        chess.Board("r3k2r/pPp2ppp/2n5/3pP3/1b2q3/2N2B2/PPP2PPP/R2QK2R w KQkq d6 0 1"),
    )
    boards = [game.copy()]
    while len(boards) < 80 and not game.is_game_over():
        game.push(lots.choice(list(game.legal_moves)))
        boards.append(game.copy())
    shown = view(f"{base}+attacks")
    got = unpack(apply(shown, *rows(boards)))
    start = view(base).planes
    assert got.shape[1] == shown.planes == start + 12
    for board, picture in zip(boards, got[:, start:], strict=True):
        expected = np.zeros((12, 8, 8), dtype=np.uint8)
        for square, piece in board.piece_map().items():
            kind, turn = piece.piece_type - 1, board.turn
            plane = 2 * kind + (piece.color != turn)
            if shown.absolute:
                turn = chess.WHITE
                plane = (
                    kind + 6 * (not piece.color)
                    if base == "planes18"
                    else 2 * kind + (not piece.color)
                )
            for target in board.attacks(square):
                expected[(plane, *oracle.row_col(target, turn))] = 1
        assert np.array_equal(picture, expected), board.fen()


@pytest.mark.parametrize("option", ["last1", "last9", "last08", "last3+last", "last+last2"])
def test_lengths_that_the_past_does_not_have_are_refused(option: str) -> None:
    with pytest.raises(UnknownViewError, match="last2 to last8"):
        view(f"marro13+{option}")


@pytest.mark.parametrize("name", ["marro77+last", "planes18", "planes19", "marro13+last3"])
def test_a_column_that_is_not_there_is_named_with_the_view(name: str) -> None:
    planes, columns = rows([chess.Board()])
    columns |= {"last_move": np.zeros(1, np.uint16), "last_move_2": np.zeros(1, np.uint16)}
    missing = view(name).columns[-1]
    columns.pop(missing, None)
    with pytest.raises(
        MissingColumnError, match=rf"{name.replace('+', '.')}' needs the column '{missing}'"
    ):
        apply(view(name), planes, columns)


@pytest.mark.parametrize(
    "name", ["planes18+state", "planes18+histories", "planes18+", "marro13+attacks+attacks"]
)
def test_an_option_that_is_none_is_named(name: str) -> None:
    with pytest.raises(UnknownViewError, match="takes no option"):
        view(name)


def test_an_unknown_base_names_the_nearest() -> None:
    with pytest.raises(UnknownViewError, match="did you mean 'planes18'"):
        view("plane18+last")


def test_planes_alone_tell_rights_and_captures_that_can_be_seen() -> None:
    planes, _ = rows([chess.Board(fen) for fen in FENS])
    got = infer_columns(planes)
    # In the last but one pair the rook on h8 and a1 are at home with their kings, the rook on g1 is
    # not.
    assert got["castling"].tolist() == [15, 15, 15, 2 | 4 | 8, 8 | 1 | 2, 0]
    assert got["ep_file"].tolist() == [255, 255, 4, 255, 255, 1]


def test_supposed_columns_are_nearly_always_the_true_ones() -> None:
    boards = []
    for game in islice(games_of("pgn/lichess_dump_2021-10_999.pgn", 400), 40):
        board = game.board()
        for move in game.mainline_moves():
            boards.append(board.copy(stack=False))
            board.push(move)
    planes, columns = rows(boards)
    got = infer_columns(planes)
    takes = np.array([board.has_legal_en_passant() for board in boards])
    assert takes.any()
    assert np.array_equal(got["ep_file"] != 255, takes)
    assert np.array_equal(got["ep_file"][takes], columns["ep_file"][takes])
    assert not np.any(columns["castling"] & ~got["castling"]), (
        "a right that is there is always supposed"
    )
    assert np.mean(got["castling"] == columns["castling"]) > 0.95
