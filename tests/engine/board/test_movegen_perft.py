"""perft: the number of leaves of the legal move tree, against published tables."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.board.movegen import perft
from engine.board.position import from_fen
from tests.conftest import shared_data

QUICK_NODES = 100_000
"""Larger rows are left to `-m slow`."""
SLOW_DEPTH = int(os.environ.get("FIANCHETTO_PERFT_DEPTH", "5"))
"""Depth 6 of random.perft is 4.2e12 nodes, some eight hours of one core: FIANCHETTO_PERFT_DEPTH=6
asks for it."""
PARTS = 31
"""Tests that the whole table is dealt to: prime, so that each gets every depth."""

CHESS960 = {"xfen-00", "xfen-01", "xfen-02", "xfen-03", "xfen-04", "asymmetrical-and-king-on-h"}
"""Rows of tricky.perft that castle with a king or rook away from home: no standard chess."""


class Row(NamedTuple):
    """One line of a table: the FEN has `nodes` leaves `depth` plies deep."""

    name: str
    fen: str
    depth: int
    nodes: int


def read_perft(path: Path) -> list[Row]:
    """Read a perft file: blocks of `id`, `epd` and `perft DEPTH NODES` lines, `#` comments, blank
    lines."""
    rows: list[Row] = []
    name = fen = ""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        word, _, rest = line.partition("#")[0].strip().partition(" ")
        if word == "id":
            name = rest.strip()
        elif word == "epd":
            fen = rest.strip()
        elif word == "perft":
            depth, nodes = rest.split()
            rows.append(Row(name, fen, int(depth), int(nodes)))
        elif word:
            raise AssertionError(f"{path}:{number}: what is {line!r}?")
    return rows


def standard_rows(table: str) -> list[Row]:
    return [
        row
        for row in read_perft(shared_data(f"truth/perft/{table}.perft"))
        if row.name not in CHESS960
    ]


def wrong(rows: list[Row]) -> list[str]:
    """List the rows whose count differs, for a person to read."""
    counted = ((row, perft(from_fen(row.fen), row.depth)) for row in rows)
    return [
        f"{row.name} {row.fen} depth {row.depth}: {got}, not {row.nodes}"
        for row, got in counted
        if got != row.nodes
    ]


def test_the_tables_are_read_whole():
    tricky, random = (
        read_perft(shared_data(f"truth/perft/{table}.perft")) for table in ("tricky", "random")
    )
    assert len({row.name for row in tricky}) == 19
    assert len({row.name for row in random}) == 6838
    assert len(random) == 6 * 6838
    assert {row.name for row in tricky} > CHESS960
    assert random[2] == Row(
        "gentest-1", "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -", 3, 8902
    )


def test_tricky_positions():
    rows = standard_rows("tricky")
    assert len({row.name for row in rows}) == 13
    assert wrong(rows) == []


def test_random_positions_quickly():
    rows = [row for row in standard_rows("random") if row.nodes <= QUICK_NODES]
    assert len(rows) > 20_000
    assert wrong(rows) == []


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_positions_whole(part: int):
    rows = [row for row in standard_rows("random") if row.depth <= SLOW_DEPTH][part::PARTS]
    assert len(rows) > 1000
    assert wrong(rows) == []
