"""Read games with foreign characters as a human would, or drop them; leave other games unharmed."""

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

CONTROL_GAME = '[Event "control {}"]\n[Result "1-0"]\n\n1. Nc3 Nc6 2. Nf3 Nf6 1-0\n\n'
CONTROL_READING = Reading(chess.STARTING_FEN, ("b1c3", "b8c6", "g1f3", "g8f6"), 1)
BASE_SECONDS = 180
"""Base time of the game with clocks."""

Rows = tuple[tuple[int, ...], tuple[tuple[int, int], ...], int]
"""A game: first position, moves (label, promotion), White's result."""


@dataclass(frozen=True, slots=True)
class UsedGame:
    """A used game, as the pipeline reads it."""

    offset: int
    length: int
    event: bytes
    rows: Rows
    evals: frozenset[int]
    """White's centipawns."""
    clocks: frozenset[int]


def read_first_positions(path: Path) -> list[tuple[int, ...]]:
    """Return the first position of each used game: pieces, castling rights, Black's turn."""
    positions = []
    for chunk in read_chunks([Source(str(path))], 1 << 24):
        _, rows = by_kernels.replay_chunk(chunk)
        for row in np.flatnonzero(rows.ply == 0):
            codes = [int(rows[f"codes_{bit}"][row]) for bit in range(CODE_BITS)]
            positions.append((*codes, int(rows.castling[row]), int(rows.black[row])))
    return positions


def read_used_games(path: Path) -> list[UsedGame]:
    """Return the used games of a file, read as by ingest."""
    found = []
    games = (game for game in by_kernels.games(path) if game.status == "used")
    for game, position in zip(games, read_first_positions(path), strict=True):
        evals = {
            value if (ply + position[-1]) % 2 == 0 else -value
            for ply, value in enumerate(game.evals)
            if value is not None
        }
        clocks = frozenset(clock for clock in game.clocks if clock is not None)
        rows = position, tuple(game.moves), game.result
        found.append(
            UsedGame(
                game.offset, game.length, game.event, rows, frozenset(evals), frozenset(clocks)
            )
        )
    return found


@cache
def to_rows(reading: Reading) -> Rows:
    """Return the rows that the pipeline should make of a reading."""
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
IGNORED, LOST_NEIGHBOR = "ignored", "lost neighbor"
FAULTS = OTHER_MOVES, IGNORED_AT_MOVE, OTHER_VALUES, MORE_GAMES, HARMED_NEIGHBOR = (
    "other moves", "ignored at a move", "other values", "more games", "harmed neighbor",
)  # fmt: skip


def classify(case: Alteration, found: list[UsedGame]) -> str:
    """Return the outcome for an altered game, in whose place the pipeline has found `found`."""
    if not found:
        return DROPPED
    if len(found) > 1:
        return MORE_GAMES
    (game,) = found
    texts = [reading.encode() for reading in case.readings]
    values = [foreign.read_values(text) for text in (case.data, *texts)]
    if game.evals - set().union(*(evals for evals, _ in values)):
        return OTHER_VALUES
    if game.clocks - set().union({BASE_SECONDS}, *(clocks for _, clocks in values)):
        return OTHER_VALUES
    original = foreign.read_as_human(foreign.GAMES[case.game])
    assert original is not None
    readings = map(foreign.read_as_human, (case.data.decode("latin-1"), *case.readings))
    expected = {to_rows(reading) for reading in readings if reading is not None}
    if game.rows in expected:
        return AS_WRITTEN if game.rows == to_rows(original) else TRANSLATED
    if game.rows != to_rows(original) or (expected and not case.in_tags):
        return OTHER_MOVES
    dash = case.character.data  # with any dash, `-+` and `+-` are marks after a move
    is_mark = case.character.reads_as == ("-",) and (
        dash + b"+" in case.data or b"+" + dash in case.data
    )
    return IGNORED_AT_MOVE if case.touches_move and not is_mark else IGNORED


def classify_all(cases: Iterable[Alteration], path: Path) -> dict[str, list[Alteration]]:
    """Read altered games from one file, with a control game between two; group them by outcome."""
    cases, text, begins = list(cases), bytearray(CONTROL_GAME.format(0).encode()), []
    for number, case in enumerate(cases, 1):
        begins.append(len(text))
        text += case.data + CONTROL_GAME.format(number).encode()
    path.write_bytes(text)
    found_by_case: defaultdict[int, list[UsedGame]] = defaultdict(list)
    controls = Counter[bytes]()
    control_rows = to_rows(CONTROL_READING)
    for game in read_used_games(path):
        if game.event.startswith(b"control ") and game.rows == control_rows:
            controls[game.event] += 1
        else:
            found_by_case[int(np.searchsorted(begins, game.offset, side="right"))].append(game)
    outcomes: defaultdict[str, list[Alteration]] = defaultdict(list)
    was_touched = False  # whether the previous alteration touched the control game after it
    for number, case in enumerate(cases, 1):
        found, outcome = found_by_case.pop(number, []), ""
        before, after = (
            controls[b"control %d" % neighbor] == 1 for neighbor in (number - 1, number)
        )
        if not (before or was_touched) or not (after or case.at_end):
            outcome = HARMED_NEIGHBOR
        elif not after:  # the tags of the next game were touched, so it may lack them or be dropped
            found = [game for game in found if game.rows != control_rows]
            if classify(case, found) in (AS_WRITTEN, IGNORED, DROPPED):
                outcome = LOST_NEIGHBOR
        outcomes[outcome or classify(case, found)].append(case)
        was_touched = not after
    assert not found_by_case
    return outcomes


def assert_no_faults(outcomes: dict[str, list[Alteration]]) -> None:
    """Fail with examples if a used game differs from its text, or harms a neighbor."""
    print({name: len(cases) for name, cases in sorted(outcomes.items())})  # noqa: T201 - for `pytest -s`
    faults = [
        f"{name}: {len(outcomes[name])} games, such as {case.character.kind} "
        f"{case.character.data!r} {case.place}:\n"
        f"{case.data!r}"
        for name in FAULTS
        for case in outcomes.get(name, [])[:3]
    ]
    assert not faults, "\n".join(faults)


def test_the_games_without_alterations_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    for name, text in foreign.GAMES.items():
        path.write_text(text)
        (game,) = read_used_games(path)
        reading = foreign.read_as_human(text)
        assert reading is not None
        assert game.rows == to_rows(reading), name


def test_some_foreign_characters_never_change_a_move(tmp_path: Path) -> None:
    rng = random.Random(0)
    cases = [
        case
        for name in foreign.GAMES
        for case in foreign.alter_game(name, rng.sample(foreign.CHARACTERS, 6))
    ]
    assert_no_faults(classify_all(rng.sample(cases, min(3000, len(cases))), tmp_path / "games.pgn"))


@pytest.mark.slow
@pytest.mark.parametrize("name", foreign.GAMES)
def test_no_foreign_character_changes_a_move(name: str, tmp_path: Path) -> None:
    assert_no_faults(
        classify_all(foreign.alter_game(name, foreign.CHARACTERS), tmp_path / "games.pgn")
    )
