"""Views: what other systems' encodings see, made from the stored rows by tables.

A view is a row, not a class: which stored planes it shows (and which when Black is to move, after a top-to-bottom mirror),
which planes it makes of a row's other columns, and which label each label becomes. Nothing is stored twice, and a batch is
turned when it is made.

view           planes, in this order
marro77        as stored: 12 pieces, turn, 64 move types; the mover's view
chessmarro77   the same of an absolute board; turn is all ones when *White* is to move
marro13        the first 13 of marro77
planes18       absolute board: white P N B R Q K, black likewise; all ones when White is to move; castling K Q k q;
               the en-passant file as a full column (after every double push)
planes19       planes18 and the halfmove clock

option         adds, behind those
+state         castling (own king's side, own queen's, opponent's likewise; K Q k q of an absolute board) and en-passant file
+last          where the opponent's last move began and where it ended, a plane each; zeros where it is unknown
+historyN      12 piece planes of each of the N - 1 positions before, the last one first
+counters      halfmove clock / 100, earlier occurrences / 2, ply / 200, each at most 1, each a constant plane

Options are added to a name: `planes18+counters`, `marro13+state`. Planes that are no zeros and ones come last.

A row needs the columns that `View.columns` names. Shards hold all but `history`: uint64[B, N - 1, 12], planes 0..11 of the
positions before in the view of the row's mover, zeros before the game began. Their rows are shuffled, so whoever reads
shards is refused such a view by name; a game in hand, or self-play, can supply it.

Axes: B rows, P planes, C counters, T earlier positions.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.board.bitboard import ALL, FILE_A
from engine.board.movegen import MOVE_PLANES
from engine.encoding.planes import LABELS, PIECE_PLANES, PLANES, TURN_PLANE, steps, target_table
from engine.errors import UserError

STATE = ("castling", "ep_file")
"""Columns that make five planes: four rights and the en-passant file."""
STATE_PLANES = 5
COUNTERS: Mapping[str, float] = {"halfmove": 100.0, "repetition": 2.0, "ply": 200.0}
"""Columns that are constant planes, and what each is divided by."""
LONGEST_HISTORY = 16
LAST_PLANES = 2
NO_LAST_MOVE = 65535
"""In the column `last_move`, in place of from * 64 + to in the view of the row's mover: none, or unknown."""


class UnknownViewError(UserError):
    """A view that does not exist."""


class MissingColumnError(UserError):
    """A view, or a preset, that needs a column which the data do not hold."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class View:
    """How stored rows become one system's planes and labels."""

    name: str
    """Its name, options and all."""
    white_planes: NDArray[np.int64] | None
    """Stored plane for each shown plane of a row with White to move; None shows them as they are stored."""
    black_planes: NDArray[np.int64] | None
    """The same of a row with Black to move, read top to bottom; None keeps the mover's view."""
    black_labels: NDArray[np.int64] | None
    """[4096] label in the view of each stored label of a row with Black to move, its own inverse; None as above."""
    turn_inverted: bool = False
    """Whether plane 12 is all ones when *White* is to move."""
    state: bool = False
    """Whether castling rights and the en-passant file follow."""
    counters: tuple[str, ...] = ()
    """Columns that are constant planes at the end."""
    last: bool = False
    """Whether the opponent's last move is shown."""
    history: int = 0
    """Earlier positions shown."""

    @property
    def stored(self) -> int:
        """Planes that are taken from the stored ones."""
        return PLANES if self.white_planes is None else len(self.white_planes)

    @property
    def planes(self) -> int:
        """Planes a position has in this view."""
        shown = STATE_PLANES * self.state + LAST_PLANES * self.last + PIECE_PLANES * self.history
        return self.stored + shown + len(self.counters)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a row that it needs beside `planes`."""
        state = STATE if self.state else ()
        past = (("last_move", self.last), ("history", self.history))
        return (*state, *(name for name, shown in past if shown), *self.counters)

    @property
    def absolute(self) -> bool:
        """Whether White is always below, whoever moves."""
        return self.black_labels is not None


def _mirrored_types() -> NDArray[np.int64]:
    """Give the move type that each type becomes when the board is turned top to bottom, int64[64]."""
    index = {step: kind for kind, step in enumerate(steps())}
    return np.array([index[file, -rank] for file, rank in steps()], dtype=np.int64)


@cache
def views() -> dict[str, View]:
    """Give every view without options by name."""
    kinds = _mirrored_types()
    others = np.arange(PIECE_PLANES, dtype=np.int64) ^ 1  # own and opponent's change places
    planes = np.concatenate([others, [TURN_PLANE], MOVE_PLANES + kinds]).astype(np.int64)
    labels = (kinds[:, None] * 64 + (np.arange(64) ^ 56)[None, :]).reshape(LABELS)
    white = np.array([*range(0, PIECE_PLANES, 2), *range(1, PIECE_PLANES, 2), TURN_PLANE], dtype=np.int64)
    black = np.array([*range(1, PIECE_PLANES, 2), *range(0, PIECE_PLANES, 2), TURN_PLANE], dtype=np.int64)
    planes18 = View(
        name="planes18", white_planes=white, black_planes=black, black_labels=labels, turn_inverted=True, state=True
    )
    rows = (
        View(name="marro77", white_planes=None, black_planes=None, black_labels=None),
        View(name="chessmarro77", white_planes=None, black_planes=planes, black_labels=labels, turn_inverted=True),
        View(name="marro13", white_planes=np.arange(MOVE_PLANES), black_planes=None, black_labels=None),
        planes18,
        replace(planes18, name="planes19", counters=("halfmove",)),
    )
    return {row.name: row for row in rows}


@cache
def view(name: str) -> View:
    """Give the view of that name, with its options; raises UnknownViewError with the nearest one."""
    base, *options = name.split("+")
    if base not in views():
        near = difflib.get_close_matches(base, views(), n=1, cutoff=0.0)
        raise UnknownViewError(f"no view {base[:40]!r}: did you mean {near[0]!r}? There are {', '.join(views())}")
    row = views()[base]
    state, last, counters, history = row.state, row.last, row.counters, row.history
    for option in options:
        number = option.removeprefix("history")
        if option == "state" and not state:
            state = True
        elif option == "last" and not last:
            last = True
        elif option == "counters" and counters != tuple(COUNTERS):
            counters = tuple(COUNTERS)
        elif number != option and not history and number.isdecimal() and 2 <= int(number[:3]) <= LONGEST_HISTORY:
            history = int(number) - 1
        else:
            raise UnknownViewError(
                f"the view {base!r} takes no option {option[:40]!r}, or has it already; "
                f"there are state, last, counters and history2 to history{LONGEST_HISTORY}"
            )
    return replace(row, name=name, state=state, last=last, counters=counters, history=history)


def require(needed: tuple[str, ...], columns: Mapping[str, Any], who: str) -> None:
    """Raise MissingColumnError for the first column that `who` needs and the data do not hold."""
    for name in needed:
        if name not in columns:
            why = (
                "shards hold shuffled rows without the positions before them: leave +history out"
                if name == "history"
                else "choose data that has it"
            )
            raise MissingColumnError(f"{who} needs the column {name!r}, which is not in these data: {why}")


def _black(planes_BP: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Tell the rows with Black to move, bool[B], from stored planes."""
    black_B: NDArray[np.bool_] = planes_BP[:, TURN_PLANE] != 0
    return black_B


def _arranged(shown: View, planes_BP: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Show the stored planes that the view has, uint64[B, view.stored]."""
    out = planes_BP.copy() if shown.white_planes is None else planes_BP[:, shown.white_planes]
    if shown.black_planes is not None:
        black_B = _black(planes_BP)
        out[black_B] = planes_BP[black_B][:, shown.black_planes].byteswap()
    if shown.turn_inverted:
        out[:, TURN_PLANE] = ~planes_BP[:, TURN_PLANE]
    return out


def _state(shown: View, black_B: NDArray[np.bool_], columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Draw castling rights and the en-passant file, uint64[B, 5]."""
    turned_B = black_B & shown.absolute
    rights_B4 = columns["castling"][:, None] >> np.where(turned_B[:, None], [2, 3, 0, 1], [0, 1, 2, 3]) & 1
    file_B = columns["ep_file"].astype(np.uint64)
    column_B = np.where(file_B < 8, FILE_A << np.minimum(file_B, np.uint64(7)), np.uint64(0))
    return np.concatenate([np.where(rights_B4 != 0, ALL, np.uint64(0)), column_B[:, None]], axis=1)


def last_moves(labels_B: NDArray[np.integer]) -> NDArray[np.uint16]:
    """Write moves as the column `last_move` of the rows behind them, uint16[B]: the board has been turned since."""
    labels = labels_B.astype(np.int64)
    targets = target_table()[labels].astype(np.int64)
    return ((labels % 64 ^ 56) * 64 + (targets ^ 56)).astype(np.uint16)


def _last(shown: View, black_B: NDArray[np.bool_], columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Draw where the opponent's last move began and ended, uint64[B, 2]."""
    moves_B = columns["last_move"].astype(np.int64)
    squares_B2 = np.stack([moves_B // 64, moves_B], axis=1) % 64 ^ np.where(black_B & shown.absolute, 56, 0)[:, None]
    return np.where(moves_B[:, None] < LABELS, np.uint64(1) << squares_B2.astype(np.uint64), np.uint64(0))


def _history(shown: View, black_B: NDArray[np.bool_], columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Draw the pieces of earlier positions, uint64[B, 12 * T]."""
    past_BTP = columns["history"][:, : shown.history]
    out = past_BTP if shown.white_planes is None else past_BTP[:, :, shown.white_planes[:PIECE_PLANES]]
    if shown.black_planes is not None:
        turned_BTP = past_BTP[:, :, shown.black_planes[:PIECE_PLANES]].byteswap()
        out = np.where(black_B[:, None, None], turned_BTP, out)
    return out.reshape(len(out), -1)


def apply(
    shown: View, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[Any]] | None = None
) -> NDArray[np.uint64]:
    """Turn stored planes uint64[B, 77] into the view's packed planes, uint64[B, all but its counters].

    `columns` are the row's other columns; raises MissingColumnError where the view needs one that is not there.
    """
    require(shown.columns, columns or {}, f"the view {shown.name!r}")
    black_B = _black(planes_BP)
    parts = [_arranged(shown, planes_BP)]
    if columns and shown.state:
        parts.append(_state(shown, black_B, columns))
    if columns and shown.last:
        parts.append(_last(shown, black_B, columns))
    if columns and shown.history:
        parts.append(_history(shown, black_B, columns))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def counters(shown: View, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Give the view's constant planes as one number each, float32[B, C] from 0 to 1."""
    scaled = [np.minimum(columns[name] / COUNTERS[name], 1.0) for name in shown.counters]
    return np.stack(scaled, axis=1).astype(np.float32)


def apply_labels(shown: View, black_B: NDArray[np.bool_], labels_B: NDArray[np.integer]) -> NDArray[np.int64]:
    """Turn stored labels into the view's (or back: the mapping is its own inverse), int64[B]."""
    labels = labels_B.astype(np.int64)
    if shown.black_labels is None:
        return labels
    return np.where(black_B, shown.black_labels[labels], labels)
