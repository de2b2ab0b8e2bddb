"""Show the planes of a position as text, as a picture or on the page, and list its legal moves.

Axes: P planes.
"""

import io
from pathlib import Path

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.bitboard import DIRECTIONS
from engine.board.movegen import FIRST_KNIGHT_TYPE, legal_planes
from engine.board.position import castling_bits, en_passant_file, from_board, from_fen, to_board
from engine.encoding.planes import PIECE_PLANES, PLANES, label_from_move, planes_of, steps, unpack
from engine.encoding.views import LAST_MOVES, View, apply_labels, apply_view, encode_last_moves
from engine.encoding.views import view as find_view
from engine.errors import UserError
from pipeline.storage.stores import publish

PLANES_PER_ROW = 11
"""Planes in a row of the picture: 77 planes make seven rows."""
CELL_SQUARES = 10
"""Squares of the picture from one plane to the next."""
_PIECE_NAMES = ("pawns", "knights", "bishops", "rooks", "queens", "kings")
_DIRECTION_NAMES = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")


class ShowError(UserError):
    """The position cannot be shown in this view or file format."""


def list_titles(shown: View) -> list[str]:
    """Return the titles of a view's planes, without counters: `own pawns`, `turn`, `N1`."""
    sides = ("own", "opp.") if shown.black_planes is None else ("white", "black")
    names = [f"{side} {name}" for name in _PIECE_NAMES for side in sides]
    around = len(DIRECTIONS)
    rays = [
        f"{_DIRECTION_NAMES[kind % around]}{kind // around + 1}"
        for kind in range(FIRST_KNIGHT_TYPE)
    ]
    knights = [f"knight ({file},{rank})" for file, rank in steps()[FIRST_KNIGHT_TYPE:]]
    names += ["turn", *rays, *knights]
    if shown.white_planes is not None:
        names = [names[plane] for plane in shown.white_planes]
    attacks = [f"{name} attack" for name in names[:PIECE_PLANES]] if shown.attacks else []
    state = [*(f"castling {side}" for side in "KQkq"), "en passant"] if shown.state else []
    last = [f"move -{back + 1} {end}" for back in range(shown.last) for end in ("from", "to")]
    return [*names, *state, *last, *attacks]


def planes_of_view(board: chess.Board, view: str) -> list[tuple[str, NDArray[np.uint8]]]:
    """Return title and picture, uint8[8, 8], of each plane that a view has, without counters.

    Row 0 is on top: in the mover's view the mover's eighth rank.
    """
    shown, position = find_view(view), from_board(board)
    numbers = {"castling": castling_bits(position), "ep_file": en_passant_file(position)}
    numbers |= dict(
        zip(LAST_MOVES, encode_last_moves(board, len(LAST_MOVES)).tolist(), strict=True)
    )
    numbers["halfmove"] = 0
    columns = {name: np.array([number], dtype=np.int64) for name, number in numbers.items()}
    pictures = unpack(apply_view(shown, planes_of([board]), columns))[0]
    return list(zip(list_titles(shown), pictures, strict=True))


def _prepare_view(fen: str, view: str) -> tuple[View, chess.Board, NDArray[np.uint64]]:
    """Return the view, the position, and the view's planes uint64[1, 77]."""
    shown = find_view(view)
    if shown.planes != PLANES:
        raise ShowError(f"the view {view!r} has {shown.planes} planes; only {PLANES} can be shown")
    position = from_fen(fen)
    stored_BP = np.zeros((1, PLANES), dtype=np.uint64)
    legal_planes(position, stored_BP[0])
    return shown, to_board(position), apply_view(shown, stored_BP)


def list_moves(fen: str, view: str = "marro77") -> list[tuple[int, str]]:
    """Return the legal moves as (label in the view, UCI), by label; promotions only to a queen."""
    shown, board, _ = _prepare_view(fen, view)
    legal = [move for move in board.legal_moves if move.promotion in (None, chess.QUEEN)]
    stored = np.array([label_from_move(move, board.turn) for move in legal], dtype=np.int64)
    labels = apply_labels(shown, np.full(len(legal), board.turn == chess.BLACK), stored)
    return sorted(zip(labels.tolist(), (move.uci() for move in legal), strict=True))


def _format_grid(cells: list[tuple[str, NDArray[np.uint8]]], across: int = 6) -> list[str]:
    """Return lines of text with titled 8 x 8 pictures side by side, `across` in a row."""
    lines: list[str] = []
    for start in range(0, len(cells), across):
        row = cells[start : start + across]
        lines.append("  ".join(f"{title:<15}" for title, _ in row).rstrip())
        for rank in range(8):
            drawn = [" ".join(".x"[int(bit)] for bit in picture[rank]) for _, picture in row]
            lines.append("  ".join(drawn))
        lines.append("")
    return lines


def format_position(fen: str, view: str = "marro77") -> str:
    """Return a position, its planes that are not empty, and its legal moves as text.

    Row 0 of each plane is on top: in `marro77` the mover's eighth rank. Raises FenError,
    UnknownViewError and ShowError.
    """
    shown, board, planes_BP = _prepare_view(fen, view)
    named = list(zip(list_titles(shown), unpack(planes_BP)[0], strict=True))
    named = [(f"{number} {title}", bits) for number, (title, bits) in enumerate(named)]
    filled = [(title, bits) for title, bits in named if bits.any()]
    legal = list_moves(fen, view)
    words = [f"{label:>4} {uci:<5}" for label, uci in legal]
    listed = ["   ".join(words[i : i + 8]).rstrip() for i in range(0, len(words), 8)]
    mover = "White" if board.turn == chess.WHITE else "Black"
    lines = [board.fen(en_passant="fen"), "", str(board), ""]
    count = f"{len(filled)} of {shown.planes} planes are not empty"
    lines += [f"{mover} to move; view {shown.name}; {count}", "", *_format_grid(filled)]
    return "\n".join([*lines, f"{len(legal)} legal labels (label, move)", *listed])


def draw_picture(fen: str, view: str = "marro77", out: Path = Path("planes.png")) -> Path:
    """Draw the planes into the file `out`, whose suffix is the format; raise ShowError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown, board, planes_BP = _prepare_view(fen, view)
    pictures = unpack(planes_BP)[0]
    figure = Figure(figsize=(15.0, 11.0), dpi=100, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
    figure.suptitle(f"{board.fen(en_passant='fen')}\nview {shown.name}", fontsize=10)
    sheet = np.full(
        (shown.planes // PLANES_PER_ROW * CELL_SQUARES, PLANES_PER_ROW * CELL_SQUARES), np.nan
    )
    for number, (plane, title) in enumerate(zip(pictures, list_titles(shown), strict=True)):
        top, left = (CELL_SQUARES * at for at in divmod(number, PLANES_PER_ROW))
        sheet[top : top + 8, left : left + 8] = plane
        color = "black" if plane.any() else "darkgray"
        axes.text(left + 3.5, top - 0.8, title, ha="center", fontsize=8, color=color)
    axes.imshow(sheet, cmap="Greens", vmin=-0.15, vmax=1)
    axes.set_axis_off()
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    try:
        canvas.print_figure(drawn, format=out.suffix.removeprefix(".") or "png")
    except ValueError as error:
        raise ShowError(f"{out}: {error}") from error
    publish(out.parent, out.name, 0, lambda target: target.write(drawn.getvalue()))
    return out
