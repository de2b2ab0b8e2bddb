"""A game with a foreign character anywhere is read as by a human, or dropped, and alone."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import chess
import numpy as np
import pytest

from engine.board.piece_codes import CODE_BITS, piece_codes
from pipeline.dumps.chunks import read_chunks
from pipeline.dumps.source import Source
from pipeline.validation.verify import encode_castling
from tests.engine import oracle
from tests.pipeline import by_kernels
from tests.pipeline.pgn import foreign
from tests.pipeline.pgn.foreign import Alteration, Reading

CONTROL = '[Event "control {}"]\n[Result "1-0"]\n\n1. Nc3 Nc6 2. Nf3 Nf6 1-0\n\n'
CONTROLLED = Reading(chess.STARTING_FEN, ("b1c3", "b8c6", "g1f3", "g8f6"), 1)
BASE = 180
"""Seconds of the time control of the game with clocks."""

Rows = tuple[tuple[int, ...], tuple[tuple[int, int], ...], int]
"""A game as rows: its first position, its moves (label and promotion), White's result."""


@dataclass(frozen=True, slots=True)
class Found:
    """A used game of the pipeline."""

    offset: int
    length: int
    event: bytes
    rows: Rows
    evals: frozenset[int]
    """White's centipawns."""
    clocks: frozenset[int]


def first_positions(path: Path) -> list[tuple[int, ...]]:
    """Return the first position of each used game: pieces, castling rights, Black's turn."""
    positions = []
    for chunk in read_chunks([Source(str(path))], 1 << 24):
        _, rows = by_kernels.replay_chunk(chunk)
        for row in np.flatnonzero(rows.ply == 0):
            codes = [int(rows[f"codes_{bit}"][row]) for bit in range(CODE_BITS)]
            positions.append((*codes, int(rows.castling[row]), int(rows.black[row])))
    return positions


def used_games(path: Path) -> list[Found]:
    """Read the used games of a file as ingest does."""
    found = []
    games = (game for game in by_kernels.games(path) if game.status == "used")
    for game, position in zip(games, first_positions(path), strict=True):
        evals = {
            value if (ply + position[-1]) % 2 == 0 else -value
            for ply, value in enumerate(game.evals)
            if value is not None
        }
        clocks = frozenset(clock for clock in game.clocks if clock is not None)
        rows = position, tuple(game.moves), game.result
        found.append(
            Found(game.offset, game.length, game.event, rows, frozenset(evals), frozenset(clocks))
        )
    return found


@cache
def rows_of(reading: Reading) -> Rows:
    """Return a reading as the pipeline should hold it."""
    board = chess.Board(reading.start)
    codes = piece_codes.py_func(oracle.planes(board))
    start = (*codes, encode_castling(board), int(board.turn == chess.BLACK))
    moves = []
    for text in reading.moves:
        move = chess.Move.from_uci(text)
        moves.append((oracle.label(move, board.turn), move.promotion or 0))
        board.push(move)
    return start, tuple(moves), reading.result


AS_WRITTEN, TRANSLATED, DROPPED = "as written", "translated", "dropped"
IGNORED, LOST = "ignored", "lost neighbour"
FAULTS = OTHER_MOVES, IGNORED_AT_MOVE, OTHER_VALUES, MORE_GAMES, HARMED = (
    "other moves", "ignored at a move", "other values", "more games", "harmed neighbour",
)  # fmt: skip


def judge(case: Alteration, found: list[Found]) -> str:
    """Return what became of an altered game."""
    if not found:
        return DROPPED
    if len(found) > 1:
        return MORE_GAMES
    (game,) = found
    texts = [reading.encode() for reading in case.readings]
    values = [foreign.read_values(text) for text in (case.data, *texts)]
    if game.evals - set().union(*(evals for evals, _ in values)):
        return OTHER_VALUES
    if game.clocks - set().union({BASE}, *(clocks for _, clocks in values)):
        return OTHER_VALUES
    original = foreign.read_as_human(foreign.GAMES[case.game])
    assert original is not None
    human = {
        foreign.read_as_human(text) for text in (case.data.decode("latin-1"), *case.readings)
    } - {None}
    rows = {rows_of(reading) for reading in human if reading is not None}
    if game.rows in rows:
        return AS_WRITTEN if game.rows == rows_of(original) else TRANSLATED
    if game.rows != rows_of(original) or (human and not case.in_tags):
        return OTHER_MOVES
    dash = case.character.data  # `-+` and `+-` are marks behind a move, with any dash
    is_mark = case.character.reads_as == ("-",) and (
        dash + b"+" in case.data or b"+" + dash in case.data
    )
    return IGNORED_AT_MOVE if case.touches_move and not is_mark else IGNORED


def judge_all(cases: Iterable[Alteration], path: Path) -> dict[str, list[Alteration]]:
    """Read the altered games in one file, with a control between two; group them by verdict."""
    cases, text, begins = list(cases), bytearray(CONTROL.format(0).encode()), []
    for number, case in enumerate(cases, 1):
        begins.append(len(text))
        text += case.data + CONTROL.format(number).encode()
    path.write_bytes(text)
    between: defaultdict[int, list[Found]] = defaultdict(list)
    controls = Counter[bytes]()
    control_rows = rows_of(CONTROLLED)
    for game in used_games(path):
        if game.event.startswith(b"control ") and game.rows == control_rows:
            controls[game.event] += 1
        else:
            between[int(np.searchsorted(begins, game.offset, side="right"))].append(game)
    verdicts: defaultdict[str, list[Alteration]] = defaultdict(list)
    touched = False  # the tags of the control before, by the alteration before
    for number, case in enumerate(cases, 1):
        found, verdict = between.pop(number, []), ""
        before, after = (
            controls[b"control %d" % neighbour] == 1 for neighbour in (number - 1, number)
        )
        if not (before or touched) or not (after or case.at_end):
            verdict = HARMED
        elif not after:  # its tags were touched: it may be used without them, or dropped
            found = [game for game in found if game.rows != control_rows]
            verdict = LOST if judge(case, found) in (AS_WRITTEN, IGNORED, DROPPED) else ""
        verdicts[verdict or judge(case, found)].append(case)
        touched = not after
    assert not between
    return verdicts


def assert_sound(verdicts: dict[str, list[Alteration]]) -> None:
    """Fail with examples if a game is used otherwise than written, or harms a neighbour."""
    print({name: len(cases) for name, cases in sorted(verdicts.items())})  # noqa: T201 - shown by `pytest -s`
    faults = [
        f"{name}: {len(verdicts[name])} games, such as {case.character.kind} "
        f"{case.character.data!r} {case.place}:\n"
        f"{case.data!r}"
        for name in FAULTS
        for case in verdicts.get(name, [])[:3]
    ]
    assert not faults, "\n".join(faults)


def test_the_games_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    for name, text in foreign.GAMES.items():
        path.write_text(text)
        (game,) = used_games(path)
        reading = foreign.read_as_human(text)
        assert reading is not None
        assert game.rows == rows_of(reading), name


def test_some_foreign_characters_never_change_a_move(tmp_path: Path) -> None:
    chance = random.Random(0)
    cases = [
        case
        for name in foreign.GAMES
        for case in foreign.alterations(name, chance.sample(foreign.CHARACTERS, 6))
    ]
    assert_sound(judge_all(chance.sample(cases, min(3000, len(cases))), tmp_path / "games.pgn"))


@pytest.mark.slow
@pytest.mark.parametrize("name", foreign.GAMES)
def test_no_foreign_character_changes_a_move(name: str, tmp_path: Path) -> None:
    assert_sound(judge_all(foreign.alterations(name, foreign.CHARACTERS), tmp_path / "games.pgn"))
