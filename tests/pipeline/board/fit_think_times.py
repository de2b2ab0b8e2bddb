"""Fit THINK_TIMES in pipeline/board/ask.py: the share of the clock that a move takes.

    python -m tests.pipeline.board.fit_think_times GAMES.pgn.zst... [--games 20000]

Each [%clk] comment is compared with the player's previous one. Moves are grouped by speed, move
number and the share of the starting time that is left, and the table's rows are printed. The first
move of each side is left out, because its clock does not run.
"""

import re
from collections.abc import Iterator

import click
import numpy as np

from pipeline.board.ask import THINK_QUANTILES, think_time_key
from pipeline.evaluation.game_texts import read_dump

CLOCK = re.compile(r"%clk (\d+):(\d+):(\d+)")
CONTROL = re.compile(r'\[TimeControl "(\d+)\+(\d+)"\]')


def read_games(paths: tuple[str, ...]) -> Iterator[str]:
    """Yield the text of each game that has a time control and clocks."""
    for path in paths:
        rest = ""
        for block in read_dump(path):
            *whole, rest = (rest + block.decode("utf-8", "replace")).split("\n[Event ")
            yield from (text for text in whole if "%clk" in text and CONTROL.search(text))


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--games", default=20_000)
def main(paths: tuple[str, ...], games: int) -> None:
    """Print the table."""
    shares: dict[tuple[int, int, int], list[float]] = {}
    count = 0
    for count, text in enumerate(read_games(paths), 1):
        control = CONTROL.search(text)
        assert control
        initial, increment = map(int, control.groups())
        clocks = [int(h) * 3600 + int(m) * 60 + int(s) for h, m, s in CLOCK.findall(text)]
        for ply in range(2, len(clocks)):
            left = clocks[ply - 2]
            if left > 0 and initial >= 30:
                spent = max(left - clocks[ply] + increment, 0)
                group = think_time_key(initial, ply // 2 + 1, left)
                shares.setdefault(group, []).append(min(spent / left, 1.0))
        if count == games:
            break
    click.echo(f"{count:,} games, {sum(map(len, shares.values())):,} moves")
    for group in sorted(shares):
        row = np.quantile(shares[group], THINK_QUANTILES).round(3).tolist()
        click.echo(f"    {group}: {tuple(row)},  # {len(shares[group]):,} moves")


if __name__ == "__main__":
    main()
