"""Damaged games against two readers that share no code: python-chess and pgn-extract.

A used game has exactly the moves that at least one of them reads.
"""

import random
from collections import Counter
from pathlib import Path

import chess
import pytest

from tests.pipeline import by_python_chess
from tests.pipeline.pgn import by_pgn_extract, mutants
from tests.pipeline.pgn.by_pgn_extract import needs_pgn_extract
from tests.pipeline.pgn.foreign import Reading
from tests.pipeline.pgn.test_foreign_characters import Found, Rows, rows_of, used_games

Moves = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""A position and the moves from it."""

SAME, OURS_DROPPED, THEIRS_DROPPED = "same moves", "ours dropped", "theirs dropped"
SHORTER, LONGER, OTHER = "theirs is longer", "theirs is shorter", "other moves"


def moves_of(rows: Rows) -> Moves:
    """Return the position and moves of a game, without its result."""
    return rows[0], rows[1]


def by_pgn_extract_moves(text: bytes) -> list[tuple[bytes, Moves]]:
    """Return event and moves of the games that pgn-extract reads without an error."""
    games = []
    for game in by_pgn_extract.read(text):
        try:
            chess.Board(game.fen)
        except ValueError:
            continue
        games.append((game.event, moves_of(rows_of(Reading(game.fen, game.moves, 0)))))
    return games


def by_python_chess_moves(text: bytes) -> list[tuple[bytes, Moves]]:
    """Return event and moves of the games whose moves python-chess reads without an error.

    They may lack a result: python-chess reads none of two tags on a line, nor from `0.5-0.5`.
    """
    games = []
    for reading in by_python_chess.read(text):
        if reading.verdict in ("used", "unfinished") and reading.start is not None:
            moves = tuple(move.uci() for move in reading.moves)
            event = reading.headers.get("Event", "").encode("utf-8", "surrogateescape")
            games.append((event, moves_of(rows_of(Reading(reading.start.fen(), moves, 0)))))
    return games


def compare(ours: list[Found], theirs: list[tuple[bytes, Moves]]) -> list[tuple[str, Found | None]]:
    """Return how the games of two readers differ: a class for each of ours, then for theirs that
    are left."""
    left, found = list(theirs), []
    for game in sorted(
        ours, key=lambda game: all(moves != moves_of(game.rows) for _, moves in left)
    ):
        mine = moves_of(game.rows)
        match = next((pair for pair in left if pair[1] == mine), None)
        same_event = match or next((pair for pair in left if pair[0] == game.event), None)
        if same_event is None:
            found.append((THEIRS_DROPPED, game))
            continue
        left.remove(same_event)
        position, moves = same_event[1]
        shortest = min(len(moves), len(mine[1]))
        if match:
            found.append((SAME, game))
        elif position == mine[0] and moves[:shortest] == mine[1][:shortest]:
            found.append((SHORTER if len(moves) > shortest else LONGER, game))
        else:
            found.append((OTHER, game))
    return found + [(OURS_DROPPED, None) for _ in left]


def without_blank_lines(text: bytes) -> bytes:
    """Return a game's text with its blank lines removed but the one behind its tags."""
    lines = [
        line.removeprefix(mutants.BOM)
        for line in text.splitlines()
        if line.strip(b" \t\x0b\x0c\xef\xbb\xbf")
    ]
    tags = next(
        (at for at, line in enumerate(lines) if not line.lstrip().startswith(b"[")), len(lines)
    )
    return b"\n".join([*lines[:tags], b"", *lines[tags:]]) + b"\n\n"


def classify(text: bytes, ours: list[Found]) -> Counter[tuple[str, str]]:
    """Return how many of our games each pair of readers reads alike; fail for moves that nobody
    else reads.

    Both readers end a game at a blank line (python-chess) or a result, so that a game of which
    neither reads the same moves is read again alone, without its blank lines.
    """
    found = Counter[tuple[str, str]]()
    by_chess = compare_by_game(ours, by_python_chess_moves(text))
    by_extract = compare_by_game(ours, by_pgn_extract_moves(text))
    for game, *pair in zip(ours, by_chess, by_extract, strict=True):
        if SAME in pair:
            found[pair[0], pair[1]] += 1
            continue
        alone = without_blank_lines(text[game.offset : game.offset + game.length])
        readings = [
            moves
            for read in (by_python_chess_moves, by_pgn_extract_moves)
            for _, moves in read(alone)
        ]
        assert moves_of(game.rows) in readings, (pair, game, text)
        found[f"{pair[0]}, same alone", pair[1]] += 1
    return found


def compare_by_game(ours: list[Found], theirs: list[tuple[bytes, Moves]]) -> list[str]:
    """Return the class of each of our games, in their order."""
    verdicts = {id(game): verdict for verdict, game in compare(ours, theirs) if game is not None}
    return [verdicts[id(game)] for game in ours]


@needs_pgn_extract
@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_no_mutant_is_used_with_moves_that_no_other_reader_reads(half: int, tmp_path: Path) -> None:
    sources = [mutants.write_game(seed) + mutants.write_game(seed + 1) for seed in range(0, 400, 2)]
    chance, path = random.Random(half), tmp_path / "mutant.pgn"
    table = Counter[tuple[str, str]]()
    for _ in range(5_000):
        text = mutants.mutate(chance.choice(sources), chance)
        path.write_bytes(text)
        table += classify(text, used_games(path) if text else [])
    print(dict(table.most_common()))  # noqa: T201 - shown by `pytest -s`


@needs_pgn_extract
def test_some_mutants_are_used_with_the_moves_of_another_reader(tmp_path: Path) -> None:
    sources = [mutants.write_game(seed) + mutants.write_game(seed + 1) for seed in range(0, 40, 2)]
    chance, path = random.Random(7), tmp_path / "mutant.pgn"
    for _ in range(60):
        text = mutants.mutate(chance.choice(sources), chance)
        path.write_bytes(text)
        classify(text, used_games(path) if text else [])
