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
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import MANIFEST
from pipeline.evaluation.page import charts
from pipeline.evaluation.page.boards import BOARDS, board_of, board_svg, move_on, san
from pipeline.evaluation.page.games import read_games, shown_game
from pipeline.evaluation.page.page import render, safe, small_board
from pipeline.evaluation.render import publish_bytes
from pipeline.finetune.evaluation import log_policy
from pipeline.finetune.outputs import BEST, CSV
from pipeline.finetune.state import generation

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
ENDS = ("", "_low", "_high")
NUMBERS = (
    "gate_games",
    "gate_llr",
    *(f"{match}_elo{end}" for match in ("gate", "seed") for end in ENDS),
    "top1",
    "kl_seed",
)
TARGET_ROWS = 2048
"""Most positions of self-play whose targets are compared with the policies."""
TARGET_COLUMNS = ("planes", "castling", "ep_file", "halfmove", "ply", "game", "visits")


def write_strength_page(tuned: Path, out: Path, result: Mapping[str, Any]) -> None:
    """Publish the page of the fine-tuning `tuned` in `out`; `result` is what `strength` returns, its games lie in `out`."""
    rows = generations(tuned / CSV)
    games = read_games(out / result["rows"][0]["match"] / "games.pgn", READ_GAMES) if result["rows"] else []
    curves = [
        (name, safe(charts.lines(rows, "generation", columns, band=band)))
        for name, (columns, band) in CURVES.items()
        if any(row.get(columns[0]) is not None for row in rows)
    ]
    page = render(
        "strength.html",
        title=f"Fine-tuning {tuned.resolve().name}",
        against_seed=result["against_seed"],
        matches=result["rows"],
        generations=rows,
        curves=curves,
        judge=result.get("judge"),
        targets=targets(tuned),
        boards=_learned(tuned, games),
        games=[shown_game(number, game) for number, game in enumerate(games[:SHOWN_GAMES])],
    )
    publish_bytes(out, PAGE, page)


def generations(path: Path) -> list[dict[str, Any]]:
    """Return the rows of `generations.csv`, numbers as numbers and None where there is none; no rows of no file."""
    if not path.is_file():
        return []
    wanted = ("generation", *WORDS, *NUMBERS)
    return [
        {name: _read(name, row.get(name) or "") for name in wanted}
        for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    ]


def _read(name: str, text: str) -> str | float | None:
    """Return a cell: words as they are, a number, or None for an empty one."""
    return text if name in WORDS else float(text) if text else None


def _learned(tuned: Path, games: Sequence[chess.pgn.Game]) -> list[dict[str, Any]]:
    """Return the boards on which the first choice changed most, one of a game: by how much likelier the new one became."""
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
    before_BA, after_BA = _policies(tuned, planes_BP)
    rows_B, old_B, new_B = np.arange(len(places)), before_BA.argmax(axis=1), after_BA.argmax(axis=1)
    gain_B = np.where(old_B != new_B, after_BA[rows_B, new_B] - before_BA[rows_B, new_B], -1.0)

    def drawn(at: int) -> dict[str, Any]:
        board = places[at][1]
        old, new = (move_on(board, int(choice[at])) for choice in (old_B, new_B))
        words = f"{board.san(old)} {before_BA[at, old_B[at]]:.0%}, best: {board.san(new)} {after_BA[at, new_B[at]]:.0%}"
        return _board(board, old, new, f"seed: {words}")

    return [drawn(at) for at in _highest(gain_B, np.array([number for number, _ in places]))]


def targets(tuned: Path) -> dict[str, Any] | None:
    """Return what the searches of self-play taught the best network, by the games of its own generation; None of no games.

    `boards` are positions where the search's first move was not the seed's, one of a game: those whose first move became
    likeliest. `rows` positions were compared; `before` and `after` are the cross-entropies of the search's visits and the
    policies of seed and best network, nats.
    """
    from model.checkpoint import read_card

    number = (read_card(tuned / BEST).get("finetune") or {}).get("generation", 0)
    played = generation(tuned, number) / "selfplay"
    if not number or not (played / MANIFEST).is_file():
        return None
    stream = Batches([played], "train", batch_size=TARGET_ROWS, columns=TARGET_COLUMNS)
    batch = next(stream.once() if stream.rows <= TARGET_ROWS else stream.sample(TARGET_ROWS), None)
    searched = [] if batch is None else [at for at, visits in enumerate(batch["visits"]) if visits is not None]
    if batch is None or not searched:
        return None
    batch = {name: values[searched] for name, values in batch.items()}
    before_BA, after_BA = _policies(tuned, batch["planes"])
    visits = batch["visits"]
    wanted_B = np.array([one["label"][one["share"].argmax()] for one in visits], dtype=np.int64)
    rows_B = np.arange(len(visits))
    gain_B = after_BA[rows_B, wanted_B] - before_BA[rows_B, wanted_B]
    gain_B = np.where(before_BA.argmax(axis=1) != wanted_B, gain_B, -1.0)

    def drawn(at: int) -> dict[str, Any]:
        state = (int(batch[name][at]) for name in ("castling", "ep_file", "ply", "halfmove"))
        board = board_of(batch["planes"][at], *state)
        old, new = move_on(board, int(before_BA[at].argmax())), move_on(board, int(wanted_B[at]))
        shares = (visits[at]["share"].max(), before_BA[at, wanted_B[at]], after_BA[at, wanted_B[at]])
        search, seed, best = (f"{share:.0%}" for share in shares)
        words = f"seed: {san(board, old)}; search: {san(board, new)} {search}, by the seed {seed}, by the best {best}"
        return _board(board, old, new, words)

    entropies = [
        float(np.mean([_cross_entropy(one, policy_A) for one, policy_A in zip(visits, policy_BA, strict=True)]))
        for policy_BA in (before_BA, after_BA)
    ]
    boards = [drawn(at) for at in _highest(gain_B, batch["game"])]
    return {"generation": number, "rows": len(visits), "before": entropies[0], "after": entropies[1], "boards": boards}


def _cross_entropy(visits: NDArray[Any], policy_A: NDArray[np.float64]) -> float:
    """Return the cross-entropy of a search's visits and a policy, nats."""
    return -float((visits["share"] * np.log(policy_A[visits["label"]] + 1e-12)).sum())


def _highest(gain_B: NDArray[np.float64], game_B: NDArray[Any]) -> list[int]:
    """Return at most BOARDS places of the highest gains above 0, one of a game."""
    found: dict[int, int] = {}
    for at in np.argsort(-gain_B, kind="stable").tolist():
        if gain_B[at] <= 0 or len(found) == BOARDS:
            break
        found.setdefault(int(game_B[at]), at)
    return list(found.values())


def _board(board: chess.Board, old: chess.Move, new: chess.Move, caption: str) -> dict[str, Any]:
    """Return a board with two arrows and the words below it."""
    row = {"fen": board.fen(), "played": old.uci(), "chosen": new.uci(), "rank": 2}
    return {"svg": small_board(board_svg(row), board.turn), "caption": caption}


def _policies(tuned: Path, planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the probabilities of the legal moves by the seed and by the best network, float64[B, A] each."""
    from model.inference.evaluator import evaluator

    legal_BA = legal_mask(planes_BP)
    before_BA, after_BA = (
        np.exp(log_policy(evaluator(tuned / name)(planes_BP)[0], legal_BA)) for name in ("seed", BEST)
    )
    return before_BA, after_BA
