"""The page of a fine-tuning: its generations, its matches, what its policy learned, and games to look at.

Axes: B positions, A label (4096).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np

from engine.board.movegen import legal_planes
from engine.board.position import from_board
from engine.encoding.planes import PLANES, legal_mask
from pipeline.evaluation.page import charts
from pipeline.evaluation.page.boards import BOARDS, board_svg, move_on
from pipeline.evaluation.page.games import read_games, shown_game
from pipeline.evaluation.page.page import render, safe, small_board
from pipeline.evaluation.render import publish_bytes
from pipeline.finetune.evaluation import log_policy
from pipeline.finetune.outputs import BEST, row
from pipeline.finetune.state import read_state

PAGE = "report.html"
SHOWN_GAMES, READ_GAMES = 2, 20
"""Games to look at, and games whose positions the two networks are compared on."""
FIRST_PLY = 6
"""First ply of these positions: earlier ones are alike in most games."""
CURVES: Mapping[str, tuple[str, tuple[str, str] | None]] = {
    "Elo against the seed": ("seed_elo", ("seed_elo_low", "seed_elo_high")),
    "human top-1": ("top1", None),
    "KL to the seed on human positions, nats": ("kl_seed", None),
}
"""Title, column and interval of each curve."""


def write_strength_page(tuned: Path, out: Path, result: Mapping[str, Any]) -> None:
    """Write the page of the fine-tuning `tuned` to `out`, where its games are; `result` is what `strength` returns."""
    rows = [row(one) for one in read_state(tuned).generations]
    games = read_games(out / result["rows"][0]["match"] / "games.pgn", READ_GAMES) if result["rows"] else []
    page = render(
        "strength.html",
        title=f"Fine-tuning {tuned.resolve().name}",
        against_seed=result["against_seed"],
        matches=result["rows"],
        generations=rows,
        curves=[
            (title, safe(charts.lines(rows, "generation", (column,), band=band)))
            for title, (column, band) in CURVES.items()
            if any(one[column] is not None for one in rows)
        ],
        boards=_draw_learned(tuned, games),
        games=[shown_game(number, game) for number, game in enumerate(games[:SHOWN_GAMES])],
    )
    publish_bytes(out, PAGE, page)


def _draw_learned(tuned: Path, games: Sequence[chess.pgn.Game]) -> list[dict[str, Any]]:
    """Return boards on which the networks' first choices differ, at most one per game: the largest gains in probability."""
    from model.inference.evaluator import evaluator

    places = [
        (number, node.parent.board())
        for number, game in enumerate(games)
        for node in game.mainline()
        if node.parent.ply() >= FIRST_PLY
    ]
    if not places:
        return []
    planes_BP = np.empty((len(places), PLANES), dtype=np.uint64)
    for (_, board), planes_P in zip(places, planes_BP, strict=True):
        legal_planes(from_board(board), planes_P)
    legal_BA = legal_mask(planes_BP)
    before_BA, after_BA = (
        np.exp(log_policy(evaluator(tuned / name)(planes_BP)[0], legal_BA)) for name in ("seed", BEST)
    )
    rows_B, old_B, new_B = np.arange(len(places)), before_BA.argmax(axis=1), after_BA.argmax(axis=1)
    gain_B = np.where(old_B != new_B, after_BA[rows_B, new_B] - before_BA[rows_B, new_B], 0.0)
    found: dict[int, dict[str, Any]] = {}
    for at in np.argsort(-gain_B, kind="stable").tolist():
        number, board = places[at]
        if gain_B[at] <= 0 or len(found) == BOARDS:
            break
        old, new = (move_on(board, int(choice[at])) for choice in (old_B, new_B))
        words = f"{board.san(old)} {before_BA[at, old_B[at]]:.0%}, best: {board.san(new)} {after_BA[at, new_B[at]]:.0%}"
        arrows = {"fen": board.fen(), "played": old.uci(), "chosen": new.uci(), "rank": 2}
        drawn = {"svg": small_board(board_svg(arrows), board.turn), "caption": f"seed: {words}"}
        found.setdefault(number, drawn)
    return list(found.values())
