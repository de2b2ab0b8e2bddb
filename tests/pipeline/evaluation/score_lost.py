"""Measure how much expected score a policy's moves lose against people's on the same positions,
judged by Stockfish.

    python -m tests.pipeline.evaluation.score_lost --positions RAPID

For each setting it prints, by the mover's rating, the expected loss of a move drawn from the policy
over the mean loss of people's moves, with the 95 % interval of a bootstrap by games. Stockfish
judges the position at depth 9, and at depth 8 each move that has a probability of at least 0.006 in
the bare policy, the three most visited and the played one; other moves, 2 % of the probability,
count as the mean of these. Centipawns become expected scores by Lichess's formula, times 1.65,
which fits Stockfish 15.1 to Lichess's evaluations.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import chess
import chess.engine
import numpy as np

from engine.board.position import to_board
from engine.encoding.planes import label_of
from engine.search.human import Correction, move_values
from model.inference.onnx_evaluator import find_export
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.columns import EARLIER_MOVES
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.evaluation.human_search import search_rows
from tests.conftest import REPOSITORY

BANDS = ((1000, 1800), (1800, 2200), (2200, 4000))
DEPTH, LEAST = 9, 0.006


def expected_score(score: chess.engine.Score) -> float:
    """Return the mover's expected score, 0 to 1."""
    pawns = score.score(mate_score=3000)
    return 1 / (1 + math.exp(-0.00368208 * 1.65 * max(-3000, min(3000, pawns or 0))))


def judge(
    engine: chess.engine.SimpleEngine, board: chess.Board, labels: set[int]
) -> dict[int, float]:
    """Return what the moves of some labels lose against the best."""
    game, scores = object(), dict[int, float]()
    best = expected_score(
        engine.analyse(board, chess.engine.Limit(depth=DEPTH), game=game)["score"].relative
    )
    for move in list(board.legal_moves):
        label = label_of(move, board.turn)
        if label not in labels or move.promotion not in (None, chess.QUEEN):
            continue
        board.push(move)
        if board.is_checkmate():
            scores[label] = 1.0
        elif board.is_stalemate() or board.is_insufficient_material():
            scores[label] = 0.5
        else:
            found = engine.analyse(board, chess.engine.Limit(depth=DEPTH - 1), game=game)
            scores[label] = 1 - expected_score(found["score"].relative)
        board.pop()
    best = max(best, *scores.values())
    return {label: best - score for label, score in scores.items()}


def softmax(logits: Any) -> Any:
    """Return probabilities."""
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def row_losses(
    engine: chess.engine.SimpleEngine,
    position: Any,
    root: Any,
    found: Any,
    played: int,
    settings: dict[str, Any],
) -> list[float]:
    """Return the expected loss in each setting, and what the played move lost."""
    labels = np.unique(found.labels)
    logits, values = root.logits[labels].astype(np.float64), move_values(root, found)[labels]
    busiest = found.labels[np.argsort(-found.visits)[:3]].tolist()
    wanted = {*labels[softmax(logits) >= LEAST].tolist(), *busiest, played}
    losses = judge(engine, to_board(position), wanted)
    judged = np.array([label in losses for label in labels])
    lost = np.array([losses.get(label, 0.0) for label in labels.tolist()])
    lost[~judged] = lost[judged].mean()
    expected = [
        float(softmax(sharpness * logits + weight * values) @ lost)
        for weight, sharpness in settings.values()
    ]
    return [*expected, losses[played]]


def measure(positions: Path, split: str, per_band: int, stockfish: str) -> None:
    """Print the table."""
    network = find_export(REPOSITORY / "datasets" / "embedded")
    assert network is not None
    corrections = {"policy alone": Correction([1000], [0.0], [1.0]), **network.corrections}
    left, found = dict.fromkeys(BANDS, per_band), list[tuple[int, int, list[float]]]()
    batches = Batches([positions], split, batch_size=256, columns=(*HUMAN_COLUMNS, *EARLIER_MOVES))
    with chess.engine.SimpleEngine.popen_uci(stockfish) as engine:
        for batch in batches.sample(min(40 * per_band, batches.rows)):
            bands = [
                next((one for one in BANDS if one[0] <= elo < one[1]), None)
                for elo in batch["elo"].tolist()
            ]
            keep = [row for row, band in enumerate(bands) if band is not None and left[band] > 0]
            part = {name: column[keep] for name, column in batch.items()}
            if not keep:
                continue
            for rows, roots, results in search_rows(
                network, part, *network(part["planes"], part), 64
            ):
                for row, root, result in zip(
                    range(rows.start, rows.stop), roots, results, strict=True
                ):
                    elo, label = int(part["elo"][row]), int(part["label"][row])
                    band = next(one for one in BANDS if one[0] <= elo < one[1])
                    if not left[band]:
                        continue
                    settings = {
                        name: [float(x[0]) for x in one.at(np.array([elo]))]
                        for name, one in corrections.items()
                    }
                    lost = row_losses(
                        engine, row_positions(part)[row], root, result, label, settings
                    )
                    found.append((elo, int(part["game"][row]), lost))
                    left[band] -= 1
            if not any(left.values()):
                break
    show(found, list(corrections))


def show(found: list[tuple[int, int, list[float]]], names: list[str]) -> None:
    """Print ratios by rating."""
    random = np.random.default_rng(0)
    for low, high in BANDS:
        rows = [row for row in found if low <= row[0] < high]
        _, game = np.unique([row[1] for row in rows], return_inverse=True)
        sums = np.stack(
            [np.bincount(game, column) for column in np.array([row[2] for row in rows]).T]
        )
        draws = random.integers(0, sums.shape[1], (1000, sums.shape[1]))
        people = sums[-1].sum() / len(rows)
        print(f"{low}-{high - 1}: {len(rows)} positions, people lose {people:.4f} a move")  # noqa: T201
        for name, one in zip(names, sums, strict=False):
            ends = np.percentile(one[draws].sum(axis=1) / sums[-1][draws].sum(axis=1), [2.5, 97.5])
            print(f"  {name:12} {one.sum() / sums[-1].sum():.2f} ({ends[0]:.2f} to {ends[1]:.2f})")  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--rows", type=int, default=1500, help="positions of each band")
    parser.add_argument("--stockfish", default="stockfish")
    given = parser.parse_args()
    measure(given.positions, given.split, given.rows, given.stockfish)
