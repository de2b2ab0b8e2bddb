"""Views: convert stored rows to the input planes of other systems.

A view defines which stored planes it shows (mirrored top to bottom if Black is to move), which
planes it makes from other columns, and how it changes labels.

view           planes, in this order
marro77        as stored: 12 pieces, turn, 64 move types; the mover's view
chessmarro77   the same in an absolute view; turn is all ones when *White* is to move
marro13        the first 13 of marro77
planes18       absolute view: white P N B R Q K, black likewise; all ones when White is to move;
               castling K Q k q; the en-passant file as a full column (after every double push).
planes19       planes18 and the halfmove clock.

option         adds planes after those:
+last          from- and to-square of the opponent's last move, one plane each; zeros if unknown
+lastN         the same for the last N half-moves (2 to 8), most recent first
+attacks       the squares attacked by the pieces of each of the 12 piece planes

Options are added to a name: `marro13+last8+attacks`. Counters (the halfmove clock / 100, at most 1)
are constant planes and come last. A row needs the columns that `View.columns` names.

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
from engine.errors import UserError, did_you_mean

STATE_COLUMNS = ("castling", "ep_file")
"""Columns encoded as five planes: four rights and the en-passant file."""
STATE_PLANES = 5
COUNTERS: Mapping[str, float] = {"halfmove": 100.0}
"""Columns encoded as constant planes, with their divisors."""
LAST_PLANES = 2
LAST_MOVES = ("last_move", *(f"last_move_{back}" for back in range(2, 9)))
"""Columns of the half-moves before a row, most recent first, in the view of the row's mover."""
NO_LAST_MOVE = 65535
"""Value of a LAST_MOVES column without a known move; otherwise it is from * 64 + to in the view of
the row's mover."""
NO_LABEL = 65535
"""Label of a row without a known move: a position that was only evaluated."""
TURNED_SQUARES = 56 * 64 + 56
"""XOR a last move with this to see it from the other side."""


class UnknownViewError(UserError):
    """A view that does not exist."""


class MissingColumnError(UserError):
    """A view or a preset needs a column that the dataset does not have."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class View:
    """How stored rows become one system's planes and labels."""

    name: str
    """Name, with its options."""
    white_planes: NDArray[np.int64] | None = None
    """Stored plane for each plane of the view with White to move; None keeps the stored planes."""
    black_planes: NDArray[np.int64] | None = None
    """The same with Black to move, then mirrored top to bottom; None keeps the mover's view."""
    black_labels: NDArray[np.int64] | None = None
    """[4096] label in the view for each stored label with Black to move; its own inverse. None
    keeps the mover's view."""
    turn_inverted: bool = False
    """Whether plane 12 is all ones when *White* is to move."""
    state: bool = False
    """Whether castling rights and the en-passant file follow."""
    counters: tuple[str, ...] = ()
    """Columns that are constant planes at the end."""
    last: int = 0
    """Number of last half-moves shown."""
    attacks: bool = False
    """Whether attack planes follow."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row numbers of a board, int64[8]."""
        return np.arange(8)

    @property
    def planes(self) -> int:
        """Number of planes of a position in this view."""
        stored = PLANES if self.white_planes is None else len(self.white_planes)
        added = STATE_PLANES * self.state + LAST_PLANES * self.last + PIECE_PLANES * self.attacks
        return stored + added + len(self.counters)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the view needs besides `planes`."""
        return (*(STATE_COLUMNS if self.state else ()), *LAST_MOVES[: self.last], *self.counters)

    @property
    def absolute(self) -> bool:
        """Whether White is at the bottom even when Black is to move."""
        return self.black_labels is not None


def _mirrored_types() -> NDArray[np.int64]:
    """Return the move type that each type becomes when the board is flipped, int64[64]."""
    index = {step: kind for kind, step in enumerate(steps())}
    return np.array([index[file, -rank] for file, rank in steps()], dtype=np.int64)


@cache
def views() -> dict[str, View]:
    """Return all views without options, by name."""
    kinds = _mirrored_types()
    # swap the mover's and the opponent's planes
    others = np.arange(PIECE_PLANES, dtype=np.int64) ^ 1
    planes = np.concatenate([others, [TURN_PLANE], MOVE_PLANES + kinds]).astype(np.int64)
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
        raise UnknownViewError(f"unknown view {base[:40]!r}: {did_you_mean(base, views())}")
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


def require_columns(needed: tuple[str, ...], columns: Mapping[str, Any], who: str) -> None:
    """Raise MissingColumnError for the first missing column that `who` needs."""
    for name in needed:
        if name not in columns:
            raise MissingColumnError(
                f"{who} needs the column {name!r}, which this dataset does not have: use a "
                "dataset that has it"
            )


def last_moves_of(board: chess.Board, count: int) -> NDArray[np.uint16]:
    """Return the last `count` moves of a board's stack as LAST_MOVES, uint16[count].

    Missing moves and null moves are NO_LAST_MOVE.
    """
    moves = np.full(count, NO_LAST_MOVE, dtype=np.uint16)
    flip = 56 if board.turn == chess.WHITE else 0
    for back, move in enumerate(board.move_stack[::-1][:count]):
        if move:
            moves[back] = (move.from_square ^ flip) * 64 + (move.to_square ^ flip)
    return moves


def pack_view_planes(
    shown: View, columns: Mapping[str, Any], xp: Any, table: Callable[[str], Any]
) -> Any:
    """Return the view's planes as bytes, uint8[B, P, Y], without its counters.

    Bit X of byte Y is column X of row Y. Works with NumPy and torch: `xp` is the module, and
    `columns` are its arrays (`planes` and `attacks` as bytes). `table` returns an array attribute
    of the View by name, as an array of `xp` on the device of the columns.
    """
    planes_BPY = columns["planes"]
    black_B = planes_BPY[:, TURN_PLANE, 0] != 0
    turned_B = black_B & shown.absolute
    parts = [_arranged(shown, planes_BPY, black_B, PLANES, xp, table)]
    if shown.turn_inverted:
        assert parts[0] is not planes_BPY, "a view that inverts the turn is a copy of the planes"
        parts[0][:, TURN_PLANE] = ~planes_BPY[:, TURN_PLANE]
    if shown.state:
        parts.append(_state(columns, turned_B, xp))
    if shown.last:
        parts += [
            _last(columns[name], turned_B, xp, table("rows")) for name in LAST_MOVES[: shown.last]
        ]
    if shown.attacks:
        parts.append(_arranged(shown, columns["attacks"], black_B, PIECE_PLANES, xp, table))
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, 1)


def _arranged(
    shown: View, planes_BPY: Any, black_B: Any, most: int, xp: Any, table: Callable[[str], Any]
) -> Any:
    """Return the first `most` of the view's stored planes, mirrored where Black is to move."""
    out = planes_BPY
    if shown.white_planes is not None:
        out = planes_BPY[:, table("white_planes")[:most]]
    if shown.black_planes is not None:
        mirrored = xp.flip(planes_BPY[:, table("black_planes")[:most]], (2,))
        out = xp.where(black_B[:, None, None], mirrored, out)
    return out


def _state(columns: Mapping[str, Any], turned_B: Any, xp: Any) -> Any:
    """Return castling rights and the en-passant file, uint8[B, 5, Y]."""
    rights_B, file_B = columns["castling"], columns["ep_file"]
    rights_B = xp.where(turned_B, (rights_B >> 2) | ((rights_B & 3) << 2), rights_B)
    rows = [(rights_B >> right & 1) * 255 for right in range(4)]
    rows.append(xp.where(file_B < 8, 1 << file_B.clip(max=7), 0))
    planes_B5 = xp.asarray(xp.stack(rows, 1), dtype=xp.uint8)
    return xp.broadcast_to(planes_B5[:, :, None], (*planes_B5.shape, 8))


def _last(moves_B: Any, turned_B: Any, xp: Any, rows_Y: Any) -> Any:
    """Return planes of a last move's from- and to-square, uint8[B, 2, Y]; zeros if unknown."""
    squares_B2 = xp.stack((moves_B // 64, moves_B), 1) % 64 ^ xp.where(turned_B, 56, 0)[:, None]
    bits_B2 = xp.where(moves_B[:, None] < LABELS, 1 << squares_B2 % 8, 0)
    planes_B2Y = xp.where(squares_B2[:, :, None] // 8 == rows_Y, bits_B2[:, :, None], 0)
    return xp.asarray(planes_B2Y, dtype=xp.uint8)


def apply_view(
    shown: View, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]] | None = None
) -> NDArray[np.uint64]:
    """Return the view's packed planes without counters, uint64[B, P], from stored planes.

    Raises MissingColumnError if the view needs a column that is not in `columns`.
    """
    columns = columns or {}
    require_columns(shown.columns, columns, f"the view {shown.name!r}")
    found = {name: columns[name] for name in shown.columns} | {"planes": planes_BP.copy()}
    if shown.attacks:
        found["attacks"] = attack_planes(planes_BP)
    for name in {"planes", "attacks"} & found.keys():
        found[name] = (
            np.ascontiguousarray(found[name], "<u8").view(np.uint8).reshape(*found[name].shape, 8)
        )
    out_BPY = pack_view_planes(shown, found, np, partial(getattr, shown))
    return np.ascontiguousarray(out_BPY).view("<u8")[..., 0].astype(np.uint64, copy=False)


def counters(shown: View, columns: Mapping[str, Any], xp: Any = np) -> Any:
    """Return the view's constant planes as numbers from 0 to 1, [B, C]; `xp` is NumPy or torch."""
    return xp.stack([(columns[name] / COUNTERS[name]).clip(max=1.0) for name in shown.counters], 1)


def apply_labels(
    shown: View, black_B: NDArray[np.bool_], labels_B: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Convert stored labels to the view's or back (the mapping is its own inverse), int64[B]."""
    labels = labels_B.astype(np.int64)
    if shown.black_labels is None:
        return labels
    return np.where(black_B, shown.black_labels[labels], labels)
