"""Check that boards passed to a player are reachable positions of standard chess."""

import chess

from engine.board.position import FenError, from_fen, parse_fen, playable, to_board

MOST_MEN = dict(zip(chess.PIECE_TYPES, (8, 2, 2, 2, 1, 1), strict=True))
"""Men of each kind that a side begins with."""


def parse_playable(fen: str) -> chess.Board:
    """Parse a FEN of standard chess. Raises FenError, also for more men than promotions can make.

    Rights of `KQkq` without king and rook at home are dropped.
    """
    rights = " ".join(fen.split()[2:3])
    if set(rights.lower()) & set("abcdefgh") and parse_fen(fen).has_chess960_castling_rights():
        raise FenError(
            f"{fen[:100]!r} has castling rights of Chess960 ({rights[:10]}), and only standard "
            f"chess is played: write - for no rights"
        )
    board = to_board(from_fen(fen))
    _check_men(board, fen)
    return board


def castling_rights_are_kept(fen: str, board: chess.Board) -> bool:
    """Return whether a board has all castling rights that its FEN names."""
    fields = fen.split()
    rights = fields[2] if len(fields) > 2 else "-"
    return rights == "-" or board.castling_rights.bit_count() == len(set(rights))


def check_board(board: chess.Board) -> chess.Board:
    """Return a board that can be played, with its moves, or raise FenError."""
    if type(board) is not chess.Board or board.chess960:
        kind = "Chess960" if type(board) is chess.Board else type(board).__name__
        raise FenError(f"only standard chess is played, on a chess.Board, and this is {kind}")
    if board.status() & chess.STATUS_INVALID_EP_SQUARE:
        board = board.copy()
        board.ep_square = None
    playable(board.copy(stack=False), board.fen())
    _check_men(board, board.fen())
    return board


def _check_men(board: chess.Board, fen: str) -> None:
    """Raise FenError for an impossible piece count, which would overflow the move arrays."""
    for side in chess.COLORS:
        men = {kind: len(board.pieces(kind, side)) for kind in MOST_MEN}
        promoted = sum(
            max(men[kind] - most, 0) for kind, most in MOST_MEN.items() if kind != chess.PAWN
        )
        if men[chess.PAWN] + promoted > MOST_MEN[chess.PAWN]:
            side_name = chess.COLOR_NAMES[side]
            raise FenError(f"no game leads to {fen[:100]!r}: too many men of {side_name}")
