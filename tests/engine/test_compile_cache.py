"""The second start compiles nothing: every kernel comes out of Numba's cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

START = """
import json
import numpy as np
from numba.core.dispatcher import Dispatcher
from engine import bitboard, legal, position

words = position.from_fen("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq -")
planes = np.zeros(77, dtype=np.uint64)
legal.legal_planes(words, planes)
legal.count_moves(words, planes)
position.key(words, legal.en_passant_legal(words, planes))
position.castling_bits(words)
position.en_passant_file(words)
assert legal.perft(words, 2) == 2039
position.push(words, 52, 44, 0)
position.mirror(words)
stats = {
    f"{module.__name__}.{name}": [sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values())]
    for module in (bitboard, legal, position)
    for name, kernel in vars(module).items()
    if isinstance(kernel, Dispatcher)
}
print(json.dumps(stats))
"""


def start(cache: Path) -> dict[str, list[int]]:
    """Start Python afresh, use the engine, and give each kernel's cache hits and misses."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", START], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_the_second_start_compiles_nothing(tmp_path: Path):
    first, second = start(tmp_path), start(tmp_path)
    entry_points = {name for name, (_, misses) in first.items() if misses}
    assert {"engine.legal.legal_planes", "engine.legal.perft", "engine.position.push"} <= entry_points
    assert {name: misses for name, (_, misses) in second.items() if misses} == {}
    loaded = {name for name, (hits, _) in second.items() if hits}
    assert {"engine.legal.legal_planes", "engine.legal.perft", "engine.position.push", "engine.position.key"} <= loaded


def test_kernels_of_these_sources_are_found_by_a_program_that_imports_numba_first():
    program = "import numba, engine, os; print(numba.config.CACHE_DIR == os.environ['NUMBA_CACHE_DIR'] != '')"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "FIANCHETTO_KERNELS")
    }
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"
