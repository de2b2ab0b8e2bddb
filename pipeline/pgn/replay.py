"""Replay PGN games into rows, in compiled code with no Python per game or per move.

Two passes read a chunk of whole games (uint8 text and the first byte of each game):
  `scan_tags`  finds the values of the tags and the start of the movetext
  `replay`     turns the movetext into rows until they are full; each game read gets a status

Moves are read as in python-chess (chess.pgn), and the tests compare the two. Variations and NAGs
are skipped, and so are comments except for clocks and evaluations. Move numbers are optional.
`e2-e4` and `e8Q` are moves, and `0-0` is castling. A promotion without a piece and an ambiguous
move are errors. A game with an unknown token is dropped, whereas python-chess skips unknown bytes;
README.md lists all differences.

Axes: G games, R rows, H earlier moves.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.board.bitboard import EMPTY, U
from engine.board.movegen import count_moves, legal_planes
from engine.board.movers import can_capture_en_passant
from engine.board.piece_codes import CODE_BITS, piece_codes
from engine.board.position import (
    COUNTERS,
    HALFMOVE_MASK,
    MAX_MOVES,
    TURN,
    castling_bits,
    en_passant_file,
    hash_position,
    push,
)
from engine.board.rng import GOLDEN_GAMMA
from engine.encoding.planes import PLANES
from engine.encoding.views import LAST_MOVE_MIRROR, NO_LAST_MOVE
from engine.kernels import NO_REFCOUNT
from pipeline.pgn.san import (
    NO_MOVE,
    UNCLOSED_TOKEN,
    UNKNOWN_RESULT,
    find_next_token,
    measure_suffix,
    read_move,
    read_result,
)
from pipeline.pgn.text import NO_CLOCK, NO_EVAL, has_board, read_comment

MAX_PLIES = 4096
"""Maximum plies of a game; longer ones are dropped. The 50-move rule allows more than 11,000, but
the longest tournament game on record has 538."""

STATUS = (
    "used", "variant", "bad FEN", "illegal move", "ambiguous move", "null move", "no moves",
    "unfinished", "result contradicts board", "unclosed comment", "too long", "bad row",
    "unreadable move",
)  # fmt: skip
"""Status of a game, as in the manifest: used, or why it was dropped. Filters add more reasons."""
(
    USED, VARIANT, BAD_FEN, ILLEGAL_MOVE, AMBIGUOUS_MOVE, NULL_MOVE, NO_MOVES, UNFINISHED,
    CONTRADICTION, UNCLOSED, TOO_LONG, BAD_ROW, UNREADABLE,
) = range(len(STATUS))  # fmt: skip

_STATUS_OF_KIND = np.array([NO_MOVES, NULL_MOVE, AMBIGUOUS_MOVE, ILLEGAL_MOVE])
"""Status for each negative kind that `read_move` returns, -4 to -1."""

NO_RESULT = 3
"""Result of an entry that is not a game but a position with its best moves. Its rows have the
result 0 and, unlike those of any game, `plies` 0."""

ROW_DTYPE = np.dtype(
    [
        *((f"codes_{bit}", np.uint64) for bit in range(CODE_BITS)),  # engine.board.piece_codes
        ("key", np.uint64),  # engine.board.position.hash_position, to find repetitions; not stored
        ("game", np.uint32),  # index of the game in the chunk
        ("label", np.uint16),
        ("last_move", np.uint16),  # NO_LAST_MOVE in the first position of a game
        ("eval", np.int16),  # the mover's centipawns, or NO_EVAL
        ("clock", np.uint16),  # the mover's seconds, or NO_CLOCK
        ("ply", np.uint16),
        ("plies", np.uint16),
        ("promotion", np.uint8),
        ("castling", np.uint8),
        ("ep_file", np.uint8),
        ("halfmove", np.uint8),
        ("repetition", np.uint8),
        ("result", np.int8),
        ("black", np.uint8),  # 1 if Black is to move
        ("unused", np.uint8),
    ]
)
"""A row in memory: 64 bytes, with the wider columns first (see pipeline.dataset.files.kernels)."""
assert ROW_DTYPE.itemsize == 64

Rows = np.recarray
"""Array of ROW_DTYPE records, [R]."""


class Games(NamedTuple):
    """Inputs and outputs of `replay` for each game, [G] unless another shape is given."""

    start: NDArray[np.int64]  # [G + 1] first byte of each game, and the end of the last one
    movetext: NDArray[np.int64]  # first byte of the movetext
    # White's 1, 0 or -1; UNKNOWN_RESULT if the tags state none; NO_RESULT if it is not a game
    result: NDArray[np.int8]
    base: NDArray[np.int32]  # initial clock time in seconds, or -1 if unknown
    setup: NDArray[np.int32]  # index of the starting position; 0 is the standard one
    status: NDArray[np.uint8]  # index into STATUS; an input and an output
    plies: NDArray[np.uint16]  # output
    stop: NDArray[np.int64]  # output: the byte after the last token that was accepted
    identity: NDArray[np.uint64]  # output: hash of the starting position and the moves


def allocate_rows(capacity: int) -> Rows:
    """Return uninitialized rows for `capacity` positions."""
    return np.empty(capacity, dtype=ROW_DTYPE).view(np.recarray)


REPLAYED_COLUMNS = (
    *("label", "promotion", "castling", "ep_file", "last_move", "halfmove"),
    *("repetition", "result", "eval", "clock", "ply", "plies"),
)
"""Columns of a shard that are copied from the rows in memory."""


def collect_earlier_moves(rows: Rows, filled: int, history: int) -> NDArray[np.uint16]:
    """Return the `history - 1` moves before each row's `last_move`, for the first `filled` rows.

    The result is uint16[R, H], most recent first; NO_LAST_MOVE before a game's first move.
    """
    earlier_RH = np.empty((filled, history - 1), dtype=np.uint16)
    _collect_earlier_moves(rows.view(ROW_DTYPE, np.ndarray), earlier_RH)
    return earlier_RH


@njit(**NO_REFCOUNT)
def _collect_earlier_moves(rows: Any, out_RH: Any) -> None:
    """Write to column `h` the `last_move` of `h + 1` plies earlier, in the row's mover's view."""
    for row in range(len(out_RH)):
        for column in range(out_RH.shape[1]):
            back, move = column + 1, U(NO_LAST_MOVE)
            if rows.ply[row] >= back:
                move = U(rows.last_move[row - back])
                if back % 2 and move != U(NO_LAST_MOVE):
                    move ^= U(LAST_MOVE_MIRROR)
            out_RH[row, column] = move


@njit(**NO_REFCOUNT)
def _count_repetitions(rows: Any, row: Any, ply: Any, halfmove: Any) -> Any:
    """Count how often a row's position occurred earlier in its game, whose rows are adjacent."""
    count, keys = 0, rows.key
    back = 4
    while back <= halfmove and back <= ply:
        count += keys[row - back] == keys[row]
        back += 2
    return count


@njit(**NO_REFCOUNT)
def write_position(rows: Any, row: Any, position: Any) -> None:
    """Write the columns of a row that depend only on its position, except for the key."""
    codes = piece_codes(position)
    rows.codes_0[row], rows.codes_1[row], rows.codes_2[row], rows.codes_3[row] = codes
    rows.black[row] = position[TURN] & U(1)
    rows.castling[row] = castling_bits(position)
    rows.ep_file[row] = en_passant_file(position)
    rows.halfmove[row] = min(int(position[COUNTERS] & HALFMOVE_MASK), 255)


@njit(**NO_REFCOUNT)
def _write_row(
    rows: Any, row: Any, position: Any, planes: Any, ply: Any, move: Any, last_move: Any
) -> None:
    """Write a row, except game, plies, result, eval, clock; `move` is (kind, source, promotion)."""
    kind, source, promotion = move
    halfmove = position[COUNTERS] & HALFMOVE_MASK
    write_position(rows, row, position)
    rows.last_move[row] = last_move
    rows.label[row] = kind * 64 + int(source)
    rows.promotion[row] = promotion
    rows.key[row] = hash_position(position, U(can_capture_en_passant(position, planes)))
    rows.repetition[row] = min(_count_repetitions(rows, row, ply, int(halfmove)), 255)
    # a comment after the move may evaluate the next position, and give this player's next clock
    rows.eval[row + 1] = NO_EVAL
    rows.clock[row + 2] = NO_CLOCK
    rows.ply[row] = ply


@njit(**NO_REFCOUNT, forceinline=True)  # inlined because it runs for every comment
def _store_comment(
    text: Any, at: Any, end: Any, position: Any, rows: Any, first: Any, ply: Any
) -> Any:
    """Store the eval and clock of the comment at `at` in the rows of the following moves.

    The game's rows begin at `first`. If a move has several comments, the first value counts.
    Returns (byte after the comment or -1, whether a clock was stored).
    """
    at, value, clock = read_comment(text, at, end)
    row = first + ply - 1  # of the move before the comment
    if value != NO_EVAL and ply > 0 and rows.eval[row + 1] == NO_EVAL:
        rows.eval[row + 1] = value if position[TURN] == EMPTY else -value
    has_clock = clock != NO_CLOCK and ply > 0 and rows.clock[row + 2] == NO_CLOCK
    if has_clock:
        rows.clock[row + 2] = clock
    return at, has_clock


@njit(**NO_REFCOUNT)
def _replay_game(
    text: Any, games: Any, game: Any, position: Any, planes: Any, rows: Any, first: Any
) -> Any:
    """Replay one game from `position` into rows from `first` on.

    Returns (status, plies, result in the movetext, whether it has clocks). `position` is changed.
    `planes` is scratch memory, uint64[77].
    """
    start, end = games.movetext[game], games.start[game + 1]
    last_move, numbered = U(NO_LAST_MOVE), games.setup[game] == 0
    # typed, since Numba would compile every callee once more for the literal 0
    at, ply, result, has_clocks = start, np.int64(0), UNKNOWN_RESULT, False
    has_ended, has_two_results = False, False
    identity = hash_position(position, U(1))
    rows.eval[first] = NO_EVAL
    rows.clock[first] = rows.clock[first + 1] = NO_CLOCK
    status, token = USED, start
    while True:
        token = at
        at = find_next_token(text, at, end, start, ply, numbered)
        if at < 0:
            status = UNCLOSED if at == UNCLOSED_TOKEN else UNREADABLE
            break
        if at >= end:
            break
        char = text[at]
        if char == 123:  # {
            at, has_clock = _store_comment(text, at, end, position, rows, first, ply)
            has_clocks = has_clocks or has_clock
            if at < 0:
                status = UNCLOSED
                break
            continue
        if char == 42:  # *
            at, has_ended = at + 1, True
            continue
        if char == 48 or char == 49:
            found, length = read_result(text, at, end)
            if length > 0:
                if result == UNKNOWN_RESULT and not has_two_results:
                    result = found
                elif found != result:
                    result, has_two_results = UNKNOWN_RESULT, True
                at, has_ended = at + length, True
                continue
        row = first + ply
        kind, source, target, promotion, after = read_move(text, at, end, position, planes)
        if kind == NO_MOVE:
            at += measure_suffix(text, at, end)
            if at < after:
                status = UNREADABLE
                break
            continue
        if ply == 0 and numbered and has_board(text, start, at):
            status = BAD_FEN  # a comment sets up a position, but there is no FEN tag
            break
        at = after
        if has_ended:
            status = UNREADABLE  # the move after the result may belong to another game
            break
        if kind < 0:
            status = _STATUS_OF_KIND[kind]
            break
        if ply == MAX_PLIES:
            status = TOO_LONG
            break
        if games.setup[game] > 0:  # only positions from a FEN can have more than MAX_MOVES moves
            legal_planes(position, planes)
            if count_moves(position, planes) > MAX_MOVES:
                status = BAD_FEN
                break
        _write_row(rows, row, position, planes, ply, (kind, source, promotion), last_move)
        # in the view of the next mover, for whom the board is mirrored top to bottom
        last_move = (U(source) ^ U(56)) * U(64) + (U(target) ^ U(56))
        identity = (identity ^ U(rows.label[row]) ^ (U(promotion) << U(16))) * GOLDEN_GAMMA
        identity ^= identity >> U(32)
        push(position, source, target, promotion)
        ply += 1
    games.identity[game] = identity
    games.stop[game] = token
    return status, ply, result, has_clocks


@njit(**NO_REFCOUNT)
def _check_result(position: Any, planes: Any, result: Any) -> Any:
    """Return CONTRADICTION if the result contradicts mate or stalemate on the board, else USED."""
    checkers = legal_planes(position, planes)
    if count_moves(position, planes) > 0:
        return USED
    result_on_board = 0 if checkers == 0 else (-1 if position[TURN] == EMPTY else 1)
    return USED if result == result_on_board else CONTRADICTION


def replay(
    text: NDArray[np.uint8], games: Games, setups: NDArray[np.uint64], first_game: int, rows: Rows
) -> tuple[int, int]:
    """Replay games from `first_game` on while MAX_PLIES + 2 rows are free.

    Returns (next game, rows filled). `setups`, uint64[S, 16], are the starting positions. Games
    with a status other than USED are skipped.
    """
    game, filled = _replay(text, games, setups, first_game, rows.view(ROW_DTYPE, np.ndarray))
    return int(game), int(filled)


@njit(cache=True, nogil=True)
def _replay(text: Any, games: Any, setups: Any, first_game: Any, rows: Any) -> Any:
    position = np.empty(setups.shape[1], dtype=np.uint64)
    planes = np.empty(PLANES, dtype=np.uint64)
    filled, game = np.int64(0), first_game  # typed, as in _replay_game
    while game < len(games.status) and filled + MAX_PLIES + 2 <= len(rows):
        games.plies[game] = 0
        if games.status[game] == USED:
            position[:] = setups[games.setup[game]]
            status, plies, result, has_clocks = _replay_game(
                text, games, game, position, planes, rows, filled
            )
            if games.result[game] != UNKNOWN_RESULT:
                result = games.result[game]
            games.result[game] = result
            games.plies[game] = length = plies
            if status == USED:
                if plies == 0:
                    status = NO_MOVES
                elif result == NO_RESULT:
                    result, length = 0, 0
                elif result == UNKNOWN_RESULT:
                    status = UNFINISHED
                else:
                    status = _check_result(position, planes, result)
            games.status[game] = status
            if status == USED:
                base = games.base[game]
                if has_clocks and 0 <= base < NO_CLOCK:
                    rows.clock[filled] = rows.clock[filled + 1] = base
                mover = -result if rows.black[filled] else result
                for row in range(filled, filled + plies):
                    rows.game[row] = game
                    rows.plies[row] = length
                    rows.result[row] = mover
                    mover = -mover
                filled += plies
        game += 1
    return game, filled
