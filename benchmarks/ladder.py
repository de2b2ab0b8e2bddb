"""Measure the playing strength of each rating setting on the scale of Stockfish's UCI_Elo.

    python -m benchmarks.ladder --out DIR --games 20

The embedded network plays at each rating with 64 simulations and aim=strength, against the
neighboring ratings and against Stockfish at similar levels with 20,000 nodes per move. Existing
matches are not played again. Strengths are fitted by maximum likelihood (Bradley and Terry 1952):
a draw counts as half a win, and Stockfish's levels are fixed. The 95 % intervals come from a
bootstrap over pairs of games with the same opening.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

import click
import numpy as np

from pipeline.matches.arena import play_matches
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT

NETWORK_RATINGS = (1000, 1400, 1800, 2200, 2600)
STOCKFISH_ELOS = {
    1000: (1350,),
    1400: (1350,),
    1800: (1350, 1900),
    2200: (1350, 1600, 1900, 2200),
    2600: (1600,),
}
"""Stockfish's UCI_Elo in the matches of each of NETWORK_RATINGS."""
Results = list[tuple[str, str, list[int]]]
"""Each match's players, and its counts of game pairs by points of the first player: 0, 1/2, 1, 3/2
and 2."""


def network_side(rating: int) -> SideConfig:
    """Return the embedded network as a player at a rating."""
    return SideConfig(
        who=f"onnx:{EMBEDDED_CHECKPOINT}", options=(f"rating={rating}", "aim=strength")
    )


def stockfish_side(elo: int, command: str) -> SideConfig:
    """Return Stockfish as a player whose strength is limited to a UCI_Elo."""
    options = ("UCI_LimitStrength=true", f"UCI_Elo={elo}", "Hash=16")
    return SideConfig(who=f"uci:{command}", nodes=20_000, options=options)


def fit_elos(results: Results) -> dict[str, float]:
    """Return the fitted Elo of each player, except Stockfish's levels, whose names state theirs.

    Newton's method maximizes the log-likelihood. One drawn pair is added to each match, so that
    one-sided matches have a finite solution.
    """
    names = sorted({name for a, b, _ in results for name in (a, b)})
    fixed = [re.search(r"Stockfish.* (\d+) Elo", name) for name in names]
    free = np.array([match is None for match in fixed])
    elo = np.array([float(match[1]) if match else 1350.0 for match in fixed])
    sides = np.array([[(name == a) - (name == b) for name in names] for a, b, _ in results], float)
    counts = np.array([pairs for _, _, pairs in results])
    games, points = 2 * counts.sum(1) + 2, counts @ (np.arange(5) / 2) + 1
    for _ in range(200):
        expected = 1 / (1 + 10 ** (-(sides @ elo) / 400))
        slope = (points - games * expected) @ sides
        weights = games * expected * (1 - expected) * np.log(10) / 400
        curve = sides.T @ (weights[:, None] * sides)
        elo[free] += np.clip(np.linalg.solve(curve[free][:, free], slope[free]), -200, 200)
    return dict(zip(np.array(names)[free].tolist(), elo[free].tolist(), strict=True))


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the matches; those that it has already are not played again.",
)
@click.option(
    "--games", default=20, help="Games in each match; 0 only computes the strengths from --out."
)
@click.option("--stockfish", "command", default="stockfish", help="Command that starts Stockfish.")
def main(out: Path, games: int, command: str) -> None:
    """Play the matches that are not in --out yet; print each player's strength and interval."""
    pairings = [(network_side(high), network_side(low)) for low, high in pairwise(NETWORK_RATINGS)]
    pairings += [
        (network_side(rating), stockfish_side(elo, command))
        for rating, elos in STOCKFISH_ELOS.items()
        for elo in elos
    ]
    if games:
        play_matches(pairings, ArenaConfig(games=games), out)
    summaries = [json.loads(path.read_text()) for path in sorted(out.glob("*/summary.json"))]
    results = [(match["a"], match["b"], match["pairs"]) for match in summaries]
    random, samples = np.random.default_rng(0), []
    for _ in range(300):
        resampled = [
            (a, b, random.multinomial(sum(pairs), np.array(pairs) / sum(pairs)).tolist())
            for a, b, pairs in results
        ]
        samples.append(fit_elos(resampled))
    for name, elo in fit_elos(results).items():
        low, high = np.percentile([sample[name] for sample in samples], [2.5, 97.5])
        print(f"{name}: {elo:.0f} ({low:.0f} to {high:.0f})")  # noqa: T201


if __name__ == "__main__":
    main()
