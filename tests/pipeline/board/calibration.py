"""The risk of a blunder against what happened, on games with [%eval] comments that the network has
not trained on.

    python -m tests.pipeline.board.calibration --positions DATASET --pgn DUMP [--split test]
    [--games 480]

DATASET was ingested from DUMP. Of each game 20 moves are drawn. A table by the mover's rating is
printed, and the error over tenths of the predicted risk; for the split val also the weights that
fit it (WEIGHTS in pipeline/board/risk.py).
"""

import argparse
import io
import sys
from pathlib import Path
from typing import Any

import chess.pgn
import numpy as np
from numpy.typing import NDArray

import model
from pipeline.board.game import rating_in
from pipeline.board.play import SIMULATIONS
from pipeline.board.risk import BLUNDER, WEIGHTS, compute_features, policy_labels
from pipeline.board.scores import bound, final_score, has_scores, score_in_game
from pipeline.dataset.dataset import open_manifest
from pipeline.dataset.files.games import read_games
from pipeline.dataset.strata import RATING_EDGES, band_names, rating_band
from pipeline.evaluation.figures import clustered_mean
from pipeline.evaluation.game_texts import read_texts
from pipeline.samples.shipped import EMBEDDED
from pipeline.storage.tables import text_table

MOVES = 20
"""Moves drawn from each game."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--positions", type=Path, required=True, help="dataset whose splits are used"
    )
    parser.add_argument("--pgn", required=True, help="dump that the dataset was made of")
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--games", type=int, default=480)
    options = parser.parse_args()
    features_RF, ratings_R, blunder_R, game_R = measure(
        options.positions, options.pgn, options.split, options.games
    )
    risk_R = 1 / (1 + np.exp(-features_RF @ np.array(WEIGHTS)))
    lines = [
        f"{len(risk_R):,} moves of {len(np.unique(game_R))} games, {blunder_R.mean():.1%} lose "
        f"more than {BLUNDER}"
    ]
    lines += [text_table(compare_by_rating(risk_R, ratings_R, blunder_R, game_R))]
    tenths = np.array_split(np.argsort(risk_R), 10)
    errors = [abs(risk_R[tenth].mean() - blunder_R[tenth].mean()) for tenth in tenths]
    lines.append(
        f"calibration error over tenths of the risk: mean {np.mean(errors):.4f}, largest "
        f"{max(errors):.4f}"
    )
    if options.split == "val":
        lines.append(f"weights: {fit(features_RF, blunder_R).round(3).tolist()}")
    sys.stdout.write("\n".join(lines) + "\n")


def measure(positions: Path, dump: str, split: str, count: int) -> tuple[NDArray[np.float64], ...]:
    """Return features float64[R, F], ratings, whether a move lost more than BLUNDER, and the game's
    number, float64[R]."""
    rng, dataset = np.random.default_rng(1), open_manifest(positions)
    splits = read_games(positions, dataset.page, ["split"])["split"].to_pylist()
    numbers = rng.permutation([number for number, name in enumerate(splits) if name == split])[
        : 2 * count
    ].tolist()
    _, texts = read_texts(dataset, [dump], numbers, None)
    player, rows, used = model.load(EMBEDDED, device="cpu"), [], 0
    for number in numbers:
        game = chess.pgn.read_game(io.StringIO(texts[number].decode()))
        if (
            game is not None
            and used < count
            and has_scores(game)
            and None not in (rating_in(game, "white"), rating_in(game, "black"))
        ):
            used += 1
            rows += [[*row, number] for row in game_rows(game, player, rng)]
    return np.array([row[:-3] for row in rows]), *np.array([row[-3:] for row in rows]).T


def game_rows(game: chess.pgn.Game, player: Any, rng: np.random.Generator) -> list[list[float]]:
    """Return the features, the mover's rating and whether it was a blunder, of MOVES moves of a
    game."""
    nodes = list(game.mainline())
    scores = [score_in_game(game)]
    for node in nodes:
        final = final_score(node.board())
        scores.append(score_in_game(node) if final is None else final)
    rows = []
    for ply in sorted(rng.permutation(len(nodes))[:MOVES].tolist()):
        board = nodes[ply].parent.board()
        own, other = (
            rating_in(game, chess.COLOR_NAMES[color]) for color in (board.turn, not board.turn)
        )
        policy = player.choose(
            board, temperature=0, rating=own, opponent_rating=other
        ).probabilities
        labels = policy_labels(policy, player.analyse(board, SIMULATIONS, lines=0))
        loss = (bound(scores[ply]) - bound(scores[ply + 1])) * (1 if board.turn else -1)
        rows.append([*compute_features(labels, own), own, loss > BLUNDER])
    return rows


def compare_by_rating(
    risk_R: Any, ratings_R: Any, blunder_R: Any, game_R: Any
) -> list[dict[str, Any]]:
    """Return a row for each band of ratings; the interval is that of predicted minus observed,
    games as the unit."""
    bands_R, rows = rating_band(ratings_R, RATING_EDGES), []
    for band, name in enumerate(band_names(RATING_EDGES)):
        here_R = bands_R == band
        if here_R.any():
            error, low, high = clustered_mean(risk_R[here_R] - blunder_R[here_R], game_R[here_R])
            row = {"rating": name, "moves": int(here_R.sum()), "predicted": risk_R[here_R].mean()}
            rows.append(
                row
                | {"observed": blunder_R[here_R].mean(), "error": error, "low": low, "high": high}
            )
    return rows


def fit(features_RF: Any, blunder_R: Any) -> NDArray[np.float64]:
    """Return the weights of a logistic regression, by Newton's method."""
    weights_F = np.zeros(features_RF.shape[1])
    for _ in range(30):
        risk_R = 1 / (1 + np.exp(-features_RF @ weights_F))
        curvature_FF = (features_RF * (risk_R * (1 - risk_R))[:, None]).T @ features_RF
        weights_F += np.linalg.solve(curvature_FF, features_RF.T @ (blunder_R - risk_R))
    return weights_F


if __name__ == "__main__":
    main()
