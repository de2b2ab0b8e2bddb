"""Boards of a report: which rows are shown, and their pictures.

Axes: B rows of a batch, P planes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import chess
import numpy as np
from numpy.typing import NDArray

from engine.board.position import to_board
from engine.encoding.planes import move_of
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.dataset.strata import RATING_EDGES, rating_band

BOARDS = 12
"""Boards of a section."""
HUMAN, NETWORK = "#15781b", "#003088"

Columns = Mapping[str, NDArray[Any]]


def _sure_and_wrong(rows: Columns) -> NDArray[np.float64]:
    return np.where(rows["rank"] > 1, rows["choice_probability"], -1.0)


def _disagreement(rows: Columns) -> NDArray[np.float64]:
    return np.where(rows["rank"] > 1, rows["nll"], -1.0)


def _quiet_finds(rows: Columns) -> NDArray[np.float64]:
    """Score quiet moves that were found by how unlikely the hand-written evaluator thought them."""
    found = (rows["rank"] == 1) & rows["quiet"]
    return np.where(found, rows["classical_nll"] - rows["nll"], -1.0)


SECTIONS: Mapping[str, tuple[str, Callable[[Columns], NDArray[np.float64]], bool]] = {
    "sure_and_wrong": ("Most confident in a move that was not played", _sure_and_wrong, False),
    "disagreement": (
        "Moves that were played and it thought least likely, by rating",
        _disagreement,
        True,
    ),
    "quiet_finds": (
        "Quiet moves that it found and the hand-written evaluator did not expect",
        _quiet_finds,
        False,
    ),
}
"""Section: its title, the score by which rows are kept, and whether each rating band keeps its
own."""


class BoardSelection:
    """The rows with the highest score of each section, at most one per game."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[int, list[dict[str, Any]]]] = {name: {} for name in SECTIONS}

    def add(self, batch: Batch, columns: Columns) -> None:
        """Consider the rows of a batch; `columns` are the measured ones."""
        band_B = rating_band(batch["elo"], RATING_EDGES)
        for name, (_, score, by_band) in SECTIONS.items():
            score_B = score(columns)
            for band in np.unique(band_B).tolist() if by_band else [-1]:
                mine_B = score_B if band < 0 else np.where(band_B == band, score_B, -1.0)
                best = np.argsort(-mine_B, kind="stable")[: 2 * BOARDS]
                rows = [
                    board_row(batch, columns, at, float(mine_B[at]))
                    for at in best.tolist()
                    if mine_B[at] >= 0
                ]
                self.kept[name][band] = best_boards([*self.kept[name].get(band, []), *rows])

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Return the boards of each section, equally many of each band, lowest ratings first."""
        found: dict[str, list[dict[str, Any]]] = {}
        for name, bands in self.kept.items():
            known = {
                band: rows for band, rows in bands.items() if rows and band <= len(RATING_EDGES)
            }
            share = -(-BOARDS // max(1, len(known)))
            found[name] = []
            for band in sorted(known):
                # two bands may have kept the same game
                games = {row["game"] for row in found[name]}
                found[name] += [row for row in known[band] if row["game"] not in games][:share]
            del found[name][BOARDS:]
        return found


def best_boards(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the BOARDS rows of highest score, at most one per game and per position."""
    games, positions, found = set[int](), set[str](), list[dict[str, Any]]()
    for row in sorted(rows, key=lambda row: -row["score"]):
        if row["game"] not in games and row["fen"] not in positions and len(found) < BOARDS:
            games.add(row["game"])
            positions.add(row["fen"])
            found.append(row)
    return found


def board_row(batch: Batch, columns: Columns, at: int, score: float) -> dict[str, Any]:
    """Return one row as JSON: its FEN, both moves in UCI, ratings, clock and time control."""
    ply = int(batch["ply"][at])
    board = board_of(
        batch["planes"][at], int(batch["castling"][at]), int(batch["ep_file"][at]), ply
    )
    played = move_on(board, int(batch["label"][at]), int(batch["promotion"][at]))
    chosen = move_on(board, int(columns["choice"][at]))
    known = {
        name: int(batch[name][at]) for name in ("elo", "opponent_elo", "clock", "base", "increment")
    }
    return {
        "fen": board.fen(),
        "played": played.uci(),
        "chosen": chosen.uci(),
        "played_probability": float(np.exp(-columns["nll"][at])),
        "chosen_probability": float(columns["choice_probability"][at]),
        "rank": int(columns["rank"][at]),
        "game": int(batch["game"][at]),
        "ply": ply,
        **{
            name: None if value == BATCH_SENTINELS[name] else value for name, value in known.items()
        },
        "score": score,
    }


def board_of(
    planes_P: NDArray[np.uint64], castling: int, ep_file: int, ply: int, halfmove: int = 0
) -> chess.Board:
    """Return the board of a stored row, uint64[77] and the columns of the same names."""
    numbers = {"castling": castling, "ep_file": ep_file, "ply": ply, "halfmove": halfmove}
    row = {name: np.array([number]) for name, number in numbers.items()}
    return to_board(row_positions(row | {"planes": planes_P[None]})[0])


def move_on(board: chess.Board, label: int, promotion: int = 0) -> chess.Move:
    """Return the move of a label; a pawn promotes to a queen unless a piece is given."""
    move = move_of(label, promotion, board.turn)
    last = chess.square_rank(move.to_square) in (0, 7)
    if last and not promotion and board.piece_type_at(move.from_square) == chess.PAWN:
        move.promotion = chess.QUEEN
    return move


def caption(row: Mapping[str, Any]) -> str:
    """Return the sentence under a board: who moved, what was played and what the network chose."""
    board = chess.Board(row["fen"])
    played, chosen = (san(board, chess.Move.from_uci(row[name])) for name in ("played", "chosen"))
    number = f"{board.fullmove_number}{'.' if board.turn else '...'}"
    mover = "White" if board.turn else "Black"
    rating = f" ({row['elo']})" if row["elo"] else ""
    first = f"{number} {mover}{rating} played {played} ({row['played_probability']:.1%})"
    return (
        f"{first}; network: {chosen} {row['chosen_probability']:.1%}"
        if row["rank"] > 1
        else f"{first}, its first choice"
    )


def san(board: chess.Board, move: chess.Move) -> str:
    """Return a move in SAN, or in UCI if the stored board does not allow it."""
    return board.san(move) if board.is_legal(move) else move.uci()


def board_svg(row: Mapping[str, Any], size: int = 260) -> str:
    """Return a board as SVG: the played move green, another first choice of the network blue."""
    import chess.svg

    board = chess.Board(row["fen"])
    moves = [(row["played"], HUMAN)] + ([(row["chosen"], NETWORK)] if row["rank"] > 1 else [])
    arrows = [
        chess.svg.Arrow(move.from_square, move.to_square, color=color)
        for move, color in ((chess.Move.from_uci(uci), color) for uci, color in moves)
    ]
    return chess.svg.board(board, arrows=arrows, orientation=board.turn, size=size)
