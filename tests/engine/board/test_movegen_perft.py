"""Compare perft, the number of leaves of the tree of legal moves, with published tables."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.board.movegen import perft
from engine.board.position import from_fen
from tests.conftest import shared_data

QUICK_NODES = 10_000
"""Maximum nodes of a row in the quick test."""
SLOW_DEPTH = int(os.environ.get("FIANCHETTO_PERFT_DEPTH", "5"))
"""Maximum depth of the slow test. Depth 6 has 4.2e12 nodes, about eight hours of one core."""
PARTS = 31
"""Number of tests that share the table; it is prime, so that each gets rows of all depths."""

CHESS960 = {"xfen-00", "xfen-01", "xfen-02", "xfen-03", "xfen-04", "asymmetrical-and-king-on-h"}
"""Rows of tricky.perft with Chess960 castling."""


class Row(NamedTuple):
    """One line of a table: the FEN has `nodes` leaves `depth` plies deep."""

    name: str
    fen: str
    depth: int
    nodes: int


def read_perft(path: Path) -> list[Row]:
    """Read blocks of `id`, `epd` and `perft DEPTH NODES` lines, `#` comments and blank lines."""
    rows: list[Row] = []
    name = fen = ""
    for line in path.read_text().splitlines():
        word, _, rest = line.partition("#")[0].strip().partition(" ")
        if word == "id":
            name = rest.strip()
        elif word == "epd":
            fen = rest.strip()
        elif word:
            assert word == "perft", line
            depth, nodes = rest.split()
            rows.append(Row(name, fen, int(depth), int(nodes)))
    return rows


def check(table: str, names: int, part: int = 0, parts: int = 1, **limits: int) -> None:
    """Compare the counts of the rows within `limits`; the table has `names` positions."""
    rows = read_perft(shared_data(f"truth/perft/{table}.perft"))
    rows = [row for row in rows if row.name not in CHESS960]
    assert len({row.name for row in rows}) == names
    max_nodes = limits.get("nodes", max(row.nodes for row in rows))
    rows = [row for row in rows if row.nodes <= max_nodes and row.depth <= limits.get("depth", 99)]
    rows = rows[part::parts]
    assert len(rows) > names / 10
    positions = {fen: from_fen(fen) for fen in {row.fen for row in rows}}
    counts = [(row, perft(positions[row.fen], row.depth)) for row in rows]
    assert [(row, count) for row, count in counts if count != row.nodes] == []


def test_perft_of_tricky_positions():
    check("tricky", 13)


def test_perft_of_random_positions_at_low_depths():
    check("random", 6838, nodes=QUICK_NODES)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_perft_of_random_positions_at_all_depths(part: int):
    check("random", 6838, part, PARTS, depth=SLOW_DEPTH)
