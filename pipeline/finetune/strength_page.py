"""The page of a fine-tuning: its generations, its matches, what its policy learned, and games to look at.

Axes: B positions, A label (4096).
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import chess.svg
import numpy as np
from numpy.typing import NDArray

from engine.board.movegen import legal_planes
from engine.board.position import from_board
from engine.encoding.planes import PLANES, legal_mask
from pipeline.evaluation.page import charts
from pipeline.evaluation.page.boards import BOARDS, board_svg, move_on
from pipeline.evaluation.page.page import render, safe, small_board
from pipeline.evaluation.render import publish_bytes
from pipeline.finetune.outputs import BEST, CSV

PAGE = "report.html"
SHOWN_GAMES, READ_GAMES = 2, 20
"""Games to look at, and games whose positions the two networks are compared on."""
FIRST_PLY = 6
WORDS = frozenset({"verdict", "gate_verdict", "reason"})
CURVES: Mapping[str, tuple[Sequence[str], tuple[str, str] | None]] = {
    "Elo against the seed": (("seed_elo",), ("seed_elo_low", "seed_elo_high")),
    "human top-1": (("top1",), None),
    "KL to the seed on human positions, nats": (("kl_seed",), None),
}
FORMATS = (("gate_llr", "%.2f"), ("gate_elo", "%+.0f"), ("seed_elo", "%+.0f"), ("top1", "%.4f"), ("kl_seed", "%.4f"))


def write_strength_page(tuned: Path, out: Path, result: Mapping[str, Any]) -> None:
    """Publish the page of the fine-tuning `tuned` in `out`; `result` is what `strength` returns, its games lie in `out`."""
    rows = generations(tuned / CSV)
    games = read_games(out / result["rows"][0]["match"] / "games.pgn") if result["rows"] else []
    curves = [
        (name, safe(charts.lines(rows, "generation", columns, band=band)))
        for name, (columns, band) in CURVES.items()
        if any(row.get(columns[0]) is not None for row in rows)
    ]
    page = render(
        "strength.html",
        title=f"Fine-tuning {tuned.resolve().name}",
        against_seed=result["against_seed"],
        ladder=result["rows"],
        generations=rows,
        curves=curves,
        formats=FORMATS,
        boards=_learned(tuned, games),
        games=[_shown(number, game) for number, game in enumerate(games[:SHOWN_GAMES])],
    )
    publish_bytes(out, PAGE, page)


def generations(path: Path) -> list[dict[str, Any]]:
    """Return the rows of `generations.csv`, numbers as numbers and None where there is none; no rows of no file."""
    if not path.is_file():
        return []
    wanted = {"generation", *WORDS, *(name for name, _ in FORMATS), "seed_elo_low", "seed_elo_high"}
    return [
        {name: _read(name, row.get(name) or "") for name in wanted}
        for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    ]


def _read(name: str, text: str) -> str | float | None:
    """Return a cell: words as they are, a number, or None for an empty one."""
    return text if name in WORDS else float(text) if text else None


def read_games(path: Path) -> list[chess.pgn.Game]:
    """Return the first games of a match."""
    found: list[chess.pgn.Game] = []
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            while len(found) < READ_GAMES and (game := chess.pgn.read_game(file)) is not None:
                found.append(game)
    return found


def _learned(tuned: Path, games: Sequence[chess.pgn.Game]) -> list[dict[str, Any]]:
    """Return the boards on which the first choice changed most, one of a game: by how much likelier the new one became."""
    from model.inference.evaluator import evaluator

    places = [
        (number, node.parent.board(), node.parent.ply())
        for number, game in enumerate(games)
        for node in game.mainline()
        if node.parent.ply() >= FIRST_PLY
    ]
    if not places:
        return []
    planes_BP = np.empty((len(places), PLANES), dtype=np.uint64)
    for (_, board, _), planes_P in zip(places, planes_BP, strict=True):
        legal_planes(from_board(board), planes_P)
    before_BA, after_BA = (_policy(evaluator(tuned / name)(planes_BP)[0], planes_BP) for name in ("seed", BEST))
    rows_B, old_B, new_B = np.arange(len(places)), before_BA.argmax(axis=1), after_BA.argmax(axis=1)
    gain_B = np.where(old_B != new_B, after_BA[rows_B, new_B] - before_BA[rows_B, new_B], -1.0)
    found: dict[int, dict[str, Any]] = {}
    for at in np.argsort(-gain_B, kind="stable").tolist():
        number, board, _ = places[at]
        if gain_B[at] < 0 or len(found) == BOARDS:
            break
        if number in found:
            continue
        old, new = (move_on(board, int(choice[at])) for choice in (old_B, new_B))
        row = {"fen": board.fen(), "played": old.uci(), "chosen": new.uci(), "rank": 2}
        said = f"seed: {board.san(old)} {before_BA[at, old_B[at]]:.0%}, best: {board.san(new)} {after_BA[at, new_B[at]]:.0%}"
        found[number] = {"svg": small_board(board_svg(row), board.turn), "caption": said}
    return list(found.values())


def _policy(logits_BA: NDArray[np.float32], planes_BP: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return probabilities of the legal moves, float64[B, A]."""
    masked_BA = np.where(legal_mask(planes_BP), logits_BA.astype(np.float64), -np.inf)
    exponents_BA = np.exp(masked_BA - masked_BA.max(axis=1, keepdims=True))
    probabilities_BA: NDArray[np.float64] = exponents_BA / exponents_BA.sum(axis=1, keepdims=True)
    return probabilities_BA


def _shown(number: int, game: chess.pgn.Game) -> dict[str, Any]:
    """Return a game with a board after each move, and the curve of its evaluations."""
    moves, curve = [], []
    for node in game.mainline():
        before = node.parent.board()
        score = node.eval()
        pawns = None if score is None else max(-10.0, min(10.0, score.white().score(mate_score=10_000) / 100))
        said = "" if pawns is None else f" ({pawns:+.2f})"
        text = f"{before.fullmove_number}{'.' if before.turn else '...'} {before.san(node.move)}{said}"
        board = chess.svg.board(node.board(), lastmove=node.move, size=260)
        moves.append({"text": text, "svg": small_board(board, chess.WHITE)})
        curve.append({"half-move": node.ply(), "pawns": pawns})
    headers = {name.lower(): game.headers.get(name, "?") for name in ("White", "Black", "Result")}
    return {"number": number, "moves": moves, "curve": safe(charts.lines(curve, "half-move", ("pawns",))), **headers}
