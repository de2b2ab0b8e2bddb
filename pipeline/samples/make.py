"""Make the bundled sample: games of the bundled network, in the format of Lichess's dumps.

    python -m pipeline.samples.make datasets/sample/fianchetto_sample_2000.pgn.zst

Moves are sampled from the rating-conditioned policy. The temperature falls as the rating rises,
because at temperature 1 strong players would blunder too often.
"""

import sys
from datetime import datetime, timedelta
from pathlib import Path

import chess
import numpy as np
import zstandard
from tqdm import tqdm

from model.inference.player import Choice, Player, load
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.storage.stores import publish

RATINGS = range(800, 2401, 50)
TIME_CONTROLS = ((60, 0), (180, 2), (300, 0), (600, 0), (900, 10))
"""Initial time and increment in seconds."""


def play_game(player: Player, number: int, seed: int = 20261124) -> str:
    """Play game `number` and return it as PGN, with a blank line after the tags and the moves."""
    rng = np.random.default_rng([seed, number])
    first = int(rng.integers(len(RATINGS)))
    second = int(np.clip(first + round(rng.normal(0, 4)), 0, len(RATINGS) - 1))
    ratings = RATINGS[first], RATINGS[second]
    base, increment = TIME_CONTROLS[rng.integers(len(TIME_CONTROLS))]
    board, movetext, clocks, result = chess.Board(), list[str](), [base, base], ""
    while not result:
        side = board.ply() % 2
        temperature = 1.25 - ratings[side] / 4000
        choice = player.choose(
            board, temperature, rating=ratings[side], opponent_rating=ratings[1 - side], random=rng
        )
        if result := find_early_result(board, choice, ratings[side], rng):
            break
        if board.ply() > 1:  # clocks start after each side's first move
            spent = min(base / 60 * rng.exponential(), clocks[side] / 12)
            clocks[side] += increment - round(spent)
        move = f"{board.fullmove_number}{'...' if side else '.'} {board.san(choice.move)}"
        movetext.append(f"{move} {{ [%clk {timedelta(seconds=clocks[side])}] }}")
        board.push(choice.move)
        result = "" if (outcome := board.outcome(claim_draw=True)) is None else outcome.result()
    started = datetime(2026, 1, 1) + timedelta(minutes=number)
    tags = {
        "Event": f"Rated {'Bullet' if base < 180 else 'Blitz' if base < 480 else 'Rapid'} game",
        "Site": f"https://fianchetto.invalid/{number:08d}",
        "White": f"network-{ratings[0]}",
        "Black": f"network-{ratings[1]}",
        "Result": result,
        "UTCDate": f"{started:%Y.%m.%d}",
        "UTCTime": f"{started:%H:%M:%S}",
        "WhiteElo": str(ratings[0]),
        "BlackElo": str(ratings[1]),
        "TimeControl": f"{base}+{increment}",
        "Termination": "Normal",
    }
    header = "\n".join(f'[{name} "{text}"]' for name, text in tags.items())
    return f"{header}\n\n{' '.join([*movetext, result])}\n\n"


def find_early_result(
    board: chess.Board, choice: Choice, rating: int, rng: np.random.Generator
) -> str:
    """Return the result of a resignation, an agreed draw or a game of 300 half-moves, else ""."""
    if choice.value < -0.9 and rng.random() < rating / 10_000:
        return "0-1" if board.turn == chess.WHITE else "1-0"
    drawn = board.ply() > 80 and choice.wdl[1] > 0.8 and rng.random() < 0.1
    return "1/2-1/2" if board.ply() >= 300 or drawn else ""


def main(out: Path, games: int = 2000) -> None:
    """Play the games and write them as a zstd-compressed PGN."""
    player = load(EMBEDDED_CHECKPOINT)
    text = "".join(play_game(player, number) for number in tqdm(range(games), unit=" games"))
    data = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(text.encode())
    publish(out.parent, out.name, games, lambda target: target.write(data))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
