"""Compare the predicted risk of a blunder with the observed rate, on unseen games with [%eval].

    python -m tests.pipeline.board.calibration --positions DATASET --pgn DUMP [--split test]
    [--games 480]

DATASET was ingested from DUMP. 20 random moves of each game are used. The script prints a table by
the mover's rating and the error by deciles of the predicted risk; for the split val, also the
fitted weights (RISK_WEIGHTS in pipeline/board/scores.py).
"""

import io
from pathlib import Path
from typing import Any

import chess.pgn
import click
import numpy as np
from numpy.typing import NDArray

import model
from pipeline.board.ask import SIMULATIONS
from pipeline.board.game import read_rating
from pipeline.board.scores import (
    BLUNDER,
    RISK_WEIGHTS,
    compute_features,
    has_scores,
    measure_loss,
    measure_move_losses,
    score_if_over,
    score_in_game,
)
from pipeline.dataset.dataset import open_unverified
from pipeline.dataset.files.games import read_games
from pipeline.dataset.strata import RATING_EDGES, assign_rating_bands, name_bands
from pipeline.evaluation.figures import clustered_mean
from pipeline.evaluation.game_texts import read_game_texts
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.storage.tables import format_text_table

GAME_MOVES = 20
"""Number of random moves used of each game."""


@click.command()
@click.option("--positions", type=Path, required=True, help="dataset whose splits are used")
@click.option("--pgn", required=True, help="dump that the dataset was made from")
@click.option("--split", type=click.Choice(["val", "test"]), default="test")
@click.option("--games", default=480)
def main(positions: Path, pgn: str, split: str, games: int) -> None:
    """Print the risk of a blunder, predicted and observed."""
    features_RF, ratings_R, blunder_R, game_R = measure_games(positions, pgn, split, games)
    risk_R = 1 / (1 + np.exp(-features_RF @ np.array(RISK_WEIGHTS)))
    count = len(np.unique(game_R))
    click.echo(f"{len(risk_R):,} moves of {count} games, {blunder_R.mean():.1%} are blunders")
    click.echo(format_text_table(compare_by_rating(risk_R, ratings_R, blunder_R, game_R)))
    deciles = np.array_split(np.argsort(risk_R), 10)
    errors = [abs(risk_R[decile].mean() - blunder_R[decile].mean()) for decile in deciles]
    click.echo(f"mean error over deciles: {np.mean(errors):.4f}, largest {max(errors):.4f}")
    if split == "val":
        click.echo(f"weights: {fit_weights(features_RF, blunder_R).round(3).tolist()}")


def measure_games(
    positions: Path, dump: str, split: str, count: int
) -> tuple[NDArray[np.float64], ...]:
    """Return features float64[R, F]; ratings, is-a-blunder and game number, float64[R] each."""
    rng, dataset = np.random.default_rng(1), open_unverified(positions)
    splits = read_games(positions, dataset.manifest, ["split"])["split"].to_pylist()
    numbers = [number for number, name in enumerate(splits) if name == split]
    numbers = rng.permutation(numbers)[: 2 * count].tolist()
    _, texts = read_game_texts(dataset, [dump], numbers, None)
    player, rows, used = model.load(EMBEDDED_CHECKPOINT, device="cpu"), [], 0
    for number in numbers:
        game = chess.pgn.read_game(io.StringIO(texts[number].decode()))
        assert game is not None
        rated = read_rating(game.headers, "white") and read_rating(game.headers, "black")
        if rated and used < count and has_scores(game):
            used += 1
            rows += [[*row, number] for row in measure_moves(game, player, rng)]
    return np.array([row[:-3] for row in rows]), *np.array([row[-3:] for row in rows]).T


def measure_moves(game: chess.pgn.Game, player: Any, rng: np.random.Generator) -> list[list[float]]:
    """Return features, the mover's rating and whether it blundered, of random moves of a game."""
    nodes = list(game.mainline())
    scores = [score_in_game(game)]
    for node in nodes:
        final = score_if_over(node.board())
        scores.append(score_in_game(node) if final is None else final)
    rows = []
    for ply in sorted(rng.permutation(len(nodes))[:GAME_MOVES].tolist()):
        board = nodes[ply].parent.board()
        own, other = (
            read_rating(game.headers, chess.COLOR_NAMES[board.turn ^ side]) for side in (0, 1)
        )
        choice = player.choose(board, temperature=0, rating=own, opponent_rating=other)
        policy = choice.probabilities
        losses = measure_move_losses(policy, player.analyse(board, SIMULATIONS, lines=0))
        loss = measure_loss(scores[ply], scores[ply + 1], board.turn)
        rows.append([*compute_features(losses, own), own, loss > BLUNDER])
    return rows


def compare_by_rating(
    risk_R: Any, ratings_R: Any, blunder_R: Any, game_R: Any
) -> list[dict[str, Any]]:
    """Return a row for each rating band, with predicted minus observed and its interval by game."""
    bands_R, rows = assign_rating_bands(ratings_R, RATING_EDGES), []
    for band, name in enumerate(name_bands(RATING_EDGES)):
        here_R = bands_R == band
        if here_R.any():
            error, low, high = clustered_mean(risk_R[here_R] - blunder_R[here_R], game_R[here_R])
            row = {"rating": name, "moves": int(here_R.sum()), "predicted": risk_R[here_R].mean()}
            row |= {"observed": blunder_R[here_R].mean(), "error": error, "low": low, "high": high}
            rows.append(row)
    return rows


def fit_weights(features_RF: Any, blunder_R: Any) -> NDArray[np.float64]:
    """Fit the weights of a logistic regression by Newton's method."""
    weights_F = np.zeros(features_RF.shape[1])
    for _ in range(30):
        risk_R = 1 / (1 + np.exp(-features_RF @ weights_F))
        curvature_FF = (features_RF * (risk_R * (1 - risk_R))[:, None]).T @ features_RF
        weights_F += np.linalg.solve(curvature_FF, features_RF.T @ (blunder_R - risk_R))
    return weights_F


if __name__ == "__main__":
    main()
