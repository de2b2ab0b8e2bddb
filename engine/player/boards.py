"""Check that a player can play a position: it must be possible in standard chess."""

import chess

from engine.board.position import FenError, from_fen, parse_fen, position_from_board, to_board

INITIAL_PIECE_COUNTS = dict(zip(chess.PIECE_TYPES, (8, 2, 2, 2, 1, 1), strict=True))
"""Number of each side's pieces at the start of a game, by type."""


def parse_playable(fen: str) -> chess.Board:
    """Parse a FEN of standard chess; raise FenError if it cannot be played.

    Castling rights without the king and rook on their home squares are dropped.
    """
    rights = " ".join(fen.split()[2:3])
    if set(rights.lower()) & set("abcdefgh") and parse_fen(fen).has_chess960_castling_rights():
        raise FenError(
            f"{fen[:100]!r} has Chess960 castling rights ({rights[:10]}), but only standard chess "
            "is supported: write - for no castling rights"
        )
    board = to_board(from_fen(fen))
    _check_piece_counts(board, fen)
    return board


def castling_rights_are_kept(fen: str, board: chess.Board) -> bool:
    """Return whether a board has all castling rights of its FEN."""
    fields = fen.split()
    rights = fields[2] if len(fields) > 2 else "-"
    return rights == "-" or board.castling_rights.bit_count() == len(set(rights))


def check_board(board: chess.Board) -> chess.Board:
    """Return a playable board, without an invalid en-passant square, or raise FenError."""
    if type(board) is not chess.Board or board.chess960:
        kind = "Chess960" if type(board) is chess.Board else type(board).__name__
        raise FenError(f"the board must be a chess.Board of standard chess, not {kind}")
    if board.status() & chess.STATUS_INVALID_EP_SQUARE:
        board = board.copy()
        board.ep_square = None
    position_from_board(board.copy(stack=False), board.fen())
    _check_piece_counts(board, board.fen())
    return board


def _check_piece_counts(board: chess.Board, fen: str) -> None:
    """Raise FenError for more pieces than promotions allow, whose moves may overflow arrays."""
    for side in chess.COLORS:
        counts = {kind: len(board.pieces(kind, side)) for kind in INITIAL_PIECE_COUNTS}
        promoted = sum(
            max(counts[kind] - initial, 0)
            for kind, initial in INITIAL_PIECE_COUNTS.items()
            if kind != chess.PAWN
        )
        if counts[chess.PAWN] + promoted > INITIAL_PIECE_COUNTS[chess.PAWN]:
            side_name = chess.COLOR_NAMES[side]
            raise FenError(f"impossible position {fen[:100]!r}: {side_name} has too many pieces")
