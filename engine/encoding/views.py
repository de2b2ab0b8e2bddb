"""Views: convert stored rows to the input planes of other systems.

A view lists the stored planes that it contains, the planes that it makes from other columns, and
the labels of moves. In the mover's view, the mover's pieces are at the bottom; in an absolute view,
White's pieces are.

view           planes, in this order
marro77        as stored: 12 pieces, turn, 64 move types; the mover's view
chessmarro77   the same in an absolute view; the turn plane is all ones if *White* is to move
marro13        the first 13 of marro77
planes18       absolute view: White's P N B R Q K, Black's; all ones if White is to move; castling
               rights K Q k q; the file of the en-passant square, after every double push
planes19       planes18 and the halfmove clock

option         planes added after those
+last          from- and to-square of the opponent's last move, one plane each; zeros if unknown
+lastN         the same for the last N half-moves (2 to 8), most recent first
+attacks       the squares attacked by the pieces of each of the 12 piece planes

Options are appended to a name: `marro13+last8+attacks`. Counters (the halfmove clock / 100, at most
1) are constant planes and come last.

Axes: B rows, P planes, Y rows of a board, C counters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import MOVE_PLANES
from engine.encoding.attacks import attack_planes
from engine.encoding.planes import LABELS, PIECE_PLANES, PLANES, TURN_PLANE, steps
from engine.errors import UserError, suggest_name

STATE_COLUMNS = ("castling", "ep_file")
"""Columns encoded as STATE_PLANES planes: four castling rights and the en-passant file."""
STATE_PLANES = 5
COUNTER_DIVISORS: Mapping[str, float] = {"halfmove": 100.0}
"""Columns encoded as constant planes, with their divisors."""
LAST_MOVE_PLANES = 2
"""Planes of one half-move: its from-square and its to-square."""
LAST_MOVES = ("last_move", *(f"last_move_{back}" for back in range(2, 9)))
"""Columns of the half-moves before a row, most recent first: from-square * 64 + to-square, in the
view of the row's mover."""
NO_LAST_MOVE = 65535
"""Value of a LAST_MOVES column if the move is unknown."""
NO_LABEL = 65535
"""Label of a row without a known move: a position that was only evaluated."""
LAST_MOVE_MIRROR = 56 * 64 + 56
"""XOR with this converts a last move to the opponent's view."""


class UnknownViewError(UserError):
    """A view that does not exist."""


class MissingColumnError(UserError):
    """A view or a preset needs a column that the dataset does not have."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class View:
    """How stored rows are converted to the planes and labels of one system."""

    name: str
    """Name with options, such as `marro13+last8`."""
    white_planes: NDArray[np.int64] | None = None
    """Index of the stored plane for each plane of the view if White is to move; None keeps the
    stored planes."""
    black_planes: NDArray[np.int64] | None = None
    """Index of the stored plane for each plane of the view if Black is to move; the planes are then
    mirrored top to bottom. None keeps the mover's view."""
    black_labels: NDArray[np.int64] | None = None
    """Label in the view for each stored label if Black is to move, int64[4096]; its own inverse.
    None keeps the mover's view."""
    turn_inverted: bool = False
    """Whether the turn plane is all ones if *White* is to move."""
    state: bool = False
    """Whether planes of castling rights and the en-passant file are added."""
    counters: tuple[str, ...] = ()
    """Columns that are added as constant planes at the end."""
    last: int = 0
    """Number of last half-moves whose planes are added."""
    attacks: bool = False
    """Whether attack planes are added."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row numbers of a board, int64[8]."""
        return np.arange(8)

    @property
    def planes(self) -> int:
        """Number of planes of a position in this view."""
        stored = PLANES if self.white_planes is None else len(self.white_planes)
        added = (
            STATE_PLANES * self.state + LAST_MOVE_PLANES * self.last + PIECE_PLANES * self.attacks
        )
        return stored + added + len(self.counters)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a row needs besides `planes`."""
        return (*(STATE_COLUMNS if self.state else ()), *LAST_MOVES[: self.last], *self.counters)

    @property
    def is_absolute(self) -> bool:
        """Whether White is at the bottom even when Black is to move."""
        return self.black_labels is not None


def _mirror_types() -> NDArray[np.int64]:
    """Return the move type that each type becomes when the board is flipped, int64[64]."""
    index = {step: kind for kind, step in enumerate(steps())}
    return np.array([index[file, -rank] for file, rank in steps()], dtype=np.int64)


@cache
def views() -> dict[str, View]:
    """Return all views without options, by name."""
    kinds = _mirror_types()
    swapped = np.arange(PIECE_PLANES, dtype=np.int64) ^ 1  # the mover's and the opponent's pieces
    planes = np.concatenate([swapped, [TURN_PLANE], MOVE_PLANES + kinds]).astype(np.int64)
    labels = (kinds[:, None] * 64 + (np.arange(64) ^ 56)[None, :]).reshape(LABELS)
    own, opponent = range(0, PIECE_PLANES, 2), range(1, PIECE_PLANES, 2)
    white = np.array([*own, *opponent, TURN_PLANE], dtype=np.int64)
    black = np.array([*opponent, *own, TURN_PLANE], dtype=np.int64)
    planes18 = View(
        name="planes18",
        white_planes=white,
        black_planes=black,
        black_labels=labels,
        turn_inverted=True,
        state=True,
    )
    rows = (
        View(name="marro77"),
        View(name="chessmarro77", black_planes=planes, black_labels=labels, turn_inverted=True),
        View(name="marro13", white_planes=np.arange(MOVE_PLANES)),
        planes18,
        replace(planes18, name="planes19", counters=("halfmove",)),
    )
    return {row.name: row for row in rows}


@cache
def view(name: str) -> View:
    """Return a view by its name with options; raise UnknownViewError if there is none."""
    base, *options = name.split("+")
    if base not in views():
        raise UnknownViewError(f"unknown view {base[:40]!r}: {suggest_name(base, views())}")
    row = views()[base]
    lengths = {"last": 1} | {f"last{length}": length for length in range(2, len(LAST_MOVES) + 1)}
    last, attacks = 0, False
    for option in options:
        if option == "attacks" and not attacks:
            attacks = True
        elif option in lengths and not last:
            last = lengths[option]
        else:
            raise UnknownViewError(
                f"the view {base!r} does not take the option {option[:40]!r}, or has it twice: "
                f"use last, last2 to last{len(LAST_MOVES)}, and attacks"
            )
    return replace(row, name=name, last=last, attacks=attacks)


def require_columns(needed: tuple[str, ...], columns: Mapping[str, Any], user: str) -> None:
    """Raise MissingColumnError if `columns` lacks a needed one; `user` says what needs it."""
    for name in needed:
        if name not in columns:
            raise MissingColumnError(
                f"{user} needs the column {name!r}, which this dataset does not have: use a "
                "dataset that has it"
            )


def encode_last_moves(board: chess.Board, count: int) -> NDArray[np.uint16]:
    """Return the last `count` moves of a board's stack as LAST_MOVES columns, uint16[count].

    Missing moves and null moves are NO_LAST_MOVE.
    """
    moves = np.full(count, NO_LAST_MOVE, dtype=np.uint16)
    flip = 56 if board.turn == chess.WHITE else 0
    for back, move in enumerate(board.move_stack[::-1][:count]):
        if move:
            moves[back] = (move.from_square ^ flip) * 64 + (move.to_square ^ flip)
    return moves


def pack_view_planes(
    view: View, columns: Mapping[str, Any], xp: Any, table: Callable[[str], Any]
) -> Any:
    """Return the view's planes as bytes, uint8[B, P, Y], without its counters.

    Bit X of byte Y is column X of row Y. `xp` is NumPy or torch, and `columns` are its arrays, with
    `planes` and `attacks` as bytes. `table` returns an array attribute of the view by its name, as
    an array of `xp` on the device of the columns.
    """
    planes_BPY = columns["planes"]
    black_B = planes_BPY[:, TURN_PLANE, 0] != 0
    turned_B = black_B & view.is_absolute
    parts = [_select_planes(view, planes_BPY, black_B, PLANES, xp, table)]
    if view.turn_inverted:
        assert parts[0] is not planes_BPY, "a view that inverts the turn is a copy of the planes"
        parts[0][:, TURN_PLANE] = ~planes_BPY[:, TURN_PLANE]
    if view.state:
        parts.append(_make_state_planes(columns, turned_B, xp))
    if view.last:
        rows_Y = table("rows")
        parts += [
            _make_last_planes(columns[name], turned_B, xp, rows_Y)
            for name in LAST_MOVES[: view.last]
        ]
    if view.attacks:
        parts.append(_select_planes(view, columns["attacks"], black_B, PIECE_PLANES, xp, table))
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, 1)


def _select_planes(
    view: View, planes_BPY: Any, black_B: Any, count: int, xp: Any, table: Callable[[str], Any]
) -> Any:
    """Return the first `count` of the view's stored planes, mirrored where Black is to move."""
    out = planes_BPY
    if view.white_planes is not None:
        out = planes_BPY[:, table("white_planes")[:count]]
    if view.black_planes is not None:
        mirrored = xp.flip(planes_BPY[:, table("black_planes")[:count]], (2,))
        out = xp.where(black_B[:, None, None], mirrored, out)
    return out


def _make_state_planes(columns: Mapping[str, Any], turned_B: Any, xp: Any) -> Any:
    """Return castling rights and the en-passant file, uint8[B, 5, Y]."""
    rights_B, file_B = columns["castling"], columns["ep_file"]
    rights_B = xp.where(turned_B, (rights_B >> 2) | ((rights_B & 3) << 2), rights_B)
    rows = [(rights_B >> right & 1) * 255 for right in range(4)]
    rows.append(xp.where(file_B < 8, 1 << file_B.clip(max=7), 0))
    planes_B5 = xp.asarray(xp.stack(rows, 1), dtype=xp.uint8)
    return xp.broadcast_to(planes_B5[:, :, None], (*planes_B5.shape, 8))


def _make_last_planes(moves_B: Any, turned_B: Any, xp: Any, rows_Y: Any) -> Any:
    """Return planes of a move's from- and to-square, uint8[B, 2, Y]; zeros if it is unknown."""
    squares_B2 = xp.stack((moves_B // 64, moves_B), 1) % 64 ^ xp.where(turned_B, 56, 0)[:, None]
    bits_B2 = xp.where(moves_B[:, None] < LABELS, 1 << squares_B2 % 8, 0)
    planes_B2Y = xp.where(squares_B2[:, :, None] // 8 == rows_Y, bits_B2[:, :, None], 0)
    return xp.asarray(planes_B2Y, dtype=xp.uint8)


def apply_view(
    view: View, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]] | None = None
) -> NDArray[np.uint64]:
    """Convert stored planes to the view's planes without counters, uint64[B, P].

    Raises MissingColumnError if the view needs a column that is not in `columns`.
    """
    columns = columns or {}
    require_columns(view.columns, columns, f"the view {view.name!r}")
    inputs = {name: columns[name] for name in view.columns} | {"planes": planes_BP.copy()}
    if view.attacks:
        inputs["attacks"] = attack_planes(planes_BP)
    for name in {"planes", "attacks"} & inputs.keys():
        packed = np.ascontiguousarray(inputs[name], "<u8")
        inputs[name] = packed.view(np.uint8).reshape(*packed.shape, 8)
    out_BPY = pack_view_planes(view, inputs, np, partial(getattr, view))
    return np.ascontiguousarray(out_BPY).view("<u8")[..., 0].astype(np.uint64, copy=False)


def counters(view: View, columns: Mapping[str, Any], xp: Any = np) -> Any:
    """Return the values of the view's constant planes, 0 to 1, [B, C]; `xp` is NumPy or torch."""
    return xp.stack(
        [(columns[name] / COUNTER_DIVISORS[name]).clip(max=1.0) for name in view.counters], 1
    )


def apply_labels(
    view: View, black_B: NDArray[np.bool_], labels_B: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Convert stored labels to those of the view, or back, int64[B]: it is its own inverse."""
    labels = labels_B.astype(np.int64)
    if view.black_labels is None:
        return labels
    return np.where(black_B, view.black_labels[labels], labels)
