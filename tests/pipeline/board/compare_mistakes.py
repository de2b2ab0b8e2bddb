"""Check the mistakes that a review finds without evaluations against [%eval] comments.

    python -m tests.pipeline.board.compare_mistakes GAMES.pgn.zst --player NAME [--games 300]

The player's last games with an evaluation on every move are reviewed as if they had none. A mistake
is confirmed if the move loses at least 10 points of Lichess's winning chance by the evaluations
(lichess.org/page/accuracy). The script prints the confirmed share by kind, and the share of all
such losses that the review finds.
"""

import io
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import chess.pgn
import click

from pipeline.board.game import check_game, read_next, read_player_game
from pipeline.board.mistakes import review_game
from pipeline.board.scores import START_EVAL, has_scores
from pipeline.evaluation.game_texts import read_dump
from pipeline.executors.local import LocalEngine
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT

MIN_LOSS = 10
"""Minimum loss of winning chance that confirms a mistake, in percentage points."""


def read_games(path: str, player: str) -> Iterator[chess.pgn.Game]:
    """Yield the player's games with an evaluation on every move, the last of the file first."""
    text = b"".join(read_dump(path)).decode("utf-8", "replace")
    for part in reversed(re.split(r"(?m)^(?=\[Event )", text)):
        if f'"{player}"' in part and "%eval" in part:
            game = read_next(io.StringIO(part))
            if game is not None and has_scores(game):
                yield check_game(game)


def read_winning_chances(game: chess.pgn.Game) -> list[float]:
    """Return White's winning chance in percent before the first move and after each move."""
    points = [START_EVAL]
    for node in game.mainline():
        found = node.eval()  # None after a move that ends the game
        mate = 1000 if node.turn() == chess.BLACK else -1000
        final = mate if node.board().is_checkmate() else 0
        points.append(found.white().score(mate_score=1000) if found else final)
    return [100 / (1 + math.exp(-0.00368208 * min(max(one, -1000), 1000))) for one in points]


@click.command()
@click.argument("path")
@click.option("--player", required=True)
@click.option("--games", default=300)
def main(path: str, player: str, games: int) -> None:
    """Print the confirmed mistakes by kind."""
    chosen = list(islice(read_games(path, player), games))
    own = [
        replace(read_player_game(at, game, game.headers["White"] == player), white_scores=())
        for at, game in enumerate(chosen)
    ]
    chances = [read_winning_chances(game) for game in chosen]
    found, confirmed, worse = Counter[str](), Counter[str](), 0
    for at, _, reviewed in LocalEngine().map(partial(review_game, EMBEDDED_CHECKPOINT), own):
        sign = 1 if own[at].color else -1
        losses = {
            ply: sign * (chances[at][ply - 1] - chances[at][ply])
            for ply in range(1, len(chances[at]))
            if (chosen[at].board().turn == own[at].color) == (ply % 2 == 1)
        }
        worse += sum(loss >= MIN_LOSS for loss in losses.values())
        for row in reviewed.mistakes:
            found[row["kind"]] += 1
            confirmed[row["kind"]] += losses[row["ply"]] >= MIN_LOSS
    for kind, count in found.most_common():
        click.echo(f"{kind}: {confirmed[kind]} of {count} ({confirmed[kind] / count:.0%})")
    both, total = confirmed.total(), found.total()
    click.echo(
        f"{len(chosen)} games: {both} of {total} mistakes ({both / total:.0%}) are confirmed"
    )
    click.echo(f"{both} of {worse} such losses ({both / worse:.0%}) are found")


if __name__ == "__main__":
    main()
