"""Compare damaged games with two independent readers, python-chess and pgn-extract.

A game that is used must have exactly the moves that at least one of them reads.
"""

import random
import re
import shutil
import subprocess
from pathlib import Path

import chess
import pytest

from tests.pipeline import by_python_chess
from tests.pipeline.pgn import mutants
from tests.pipeline.pgn.foreign import Reading
from tests.pipeline.pgn.test_foreign_characters import UsedGame, read_used_games, to_rows

PROGRAM = shutil.which("pgn-extract") or shutil.which("pgn-extract", path="/usr/games")
OPTIONS = ("-Wuci", "--nomovenumbers", "--nochecks", "-C", "-N", "-V", "-w99999", "-s")
UCI_PATTERN = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?")
TAG_PATTERN = re.compile(rb'\[(\w+) "(.*)"\]')

Moves = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""A position and the moves from it."""


def read_with_pgn_extract(text: bytes) -> list[Moves]:
    """Return the moves of the games that pgn-extract reads without an error.

    It writes a game with an error without its moves. The words after the last move are the result,
    which may be any text of the tag.
    """
    assert PROGRAM is not None
    done = subprocess.run(
        [PROGRAM, *OPTIONS], input=text, capture_output=True, timeout=60, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-1000:]
    games: list[Moves] = []
    fen = chess.STARTING_FEN
    for line in done.stdout.splitlines():
        if tag := TAG_PATTERN.fullmatch(line):
            if tag[1] == b"Event":  # the first tag of each game
                fen = chess.STARTING_FEN
            elif tag[1] == b"FEN":
                fen = tag[2].decode("latin-1")
            continue
        moves = line.decode("latin-1").lower().split()
        while moves and not UCI_PATTERN.fullmatch(moves[-1]):
            moves.pop()
        if moves and is_fen(fen):
            games.append(to_rows(Reading(fen, tuple(moves), 0))[:2])
    return games


def is_fen(text: str) -> bool:
    try:
        chess.Board(text)
    except ValueError:
        return False
    return True


def read_with_python_chess(text: bytes) -> list[Moves]:
    """Return the moves of the games that python-chess reads without an error.

    They may lack a result, since python-chess does not read one from `0.5-0.5`, or from the second
    of two tags on a line.
    """
    games = []
    for reading in by_python_chess.read(text):
        if reading.status in ("used", "unfinished") and reading.start is not None:
            moves = tuple(move.uci() for move in reading.moves)
            games.append(to_rows(Reading(reading.start.fen(), moves, 0))[:2])
    return games


def remove_blank_lines(text: bytes) -> bytes:
    """Remove the blank lines from a game, except for the one after the tags."""
    lines = [line.removeprefix(mutants.BOM) for line in text.splitlines()]
    lines = [line for line in lines if line.strip(b" \t\x0b\x0c\xef\xbb\xbf")]
    is_tag = [line.lstrip().startswith(b"[") for line in lines]
    tags = is_tag.index(False) if False in is_tag else len(lines)
    return b"\n".join([*lines[:tags], b"", *lines[tags:]]) + b"\n\n"


def assert_read_by_another(text: bytes, ours: list[UsedGame]) -> None:
    """Fail if neither reader finds a game with the same moves as one of ours.

    A game of theirs counts once. Since they end a game at a blank line or a result, a game that
    neither finds is read again alone, without its blank lines.
    """
    readers = read_with_python_chess, read_with_pgn_extract
    theirs = [read(text) for read in readers]
    for game in ours:
        moves = game.rows[:2]
        if found := [games for games in theirs if moves in games]:
            for games in found:
                games.remove(moves)
            continue
        alone = remove_blank_lines(text[game.offset : game.offset + game.length])
        assert any(moves in read(alone) for read in readers), (game, text)


@pytest.mark.skipif(PROGRAM is None, reason="pgn-extract is absent: apt-get install pgn-extract")
@pytest.mark.parametrize(
    ("seed", "games", "count"),
    [(7, 40, 60), *(pytest.param(half, 400, 5_000, marks=pytest.mark.slow) for half in (0, 1))],
)
def test_no_mutant_is_used_with_moves_that_no_other_reader_finds(
    seed: int, games: int, count: int, tmp_path: Path
) -> None:
    rng, pairs, path = random.Random(seed), mutants.write_pairs(games), tmp_path / "mutant.pgn"
    for _ in range(count):
        text = mutants.mutate(rng.choice(pairs), rng)
        path.write_bytes(text)
        assert_read_by_another(text, read_used_games(path) if text else [])
