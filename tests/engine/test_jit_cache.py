"""The second start compiles nothing: every kernel comes out of Numba's cache, and none that was
made of other sources."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine.jit_cache import SOURCES, provide_caches
from tests.conftest import REPOSITORY

ROOMS = ("engine", "model", "pipeline")

START = """
import json
import numpy as np
from numba.core.dispatcher import Dispatcher
from engine.board import bitboard, movegen as legal, position

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
    f"{module.__name__}.{name}": [
        sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values())
    ]
    for module in (bitboard, legal, position)
    for name, kernel in vars(module).items()
    if isinstance(kernel, Dispatcher)
}
print(json.dumps(stats))
"""


def start(cache: Path | None = None) -> dict[str, list[int]]:
    """Start Python afresh, use the engine, and give each kernel's cache hits and misses."""
    words = [sys.executable, "-c", START]
    environment = os.environ | ({} if cache is None else {"NUMBA_CACHE_DIR": str(cache)})
    done = subprocess.run(
        words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_cold_start_compiles_and_the_next_one_does_not(tmp_path: Path):
    first, second = start(tmp_path), start(tmp_path)
    entry_points = {name for name, (_, misses) in first.items() if misses}
    assert {
        "engine.board.movegen.legal_planes",
        "engine.board.movegen.perft",
        "engine.board.position.push",
    } <= entry_points
    assert {name: misses for name, (_, misses) in second.items() if misses} == {}


def test_the_second_start_compiles_nothing():
    """In the cache that this suite uses."""
    first, second = start(), start()
    assert first.keys() == second.keys()
    assert {name: misses for name, (_, misses) in second.items() if misses} == {}
    loaded = {name for name, (hits, _) in second.items() if hits}
    assert {
        "engine.board.movegen.legal_planes",
        "engine.board.movegen.perft",
        "engine.board.position.push",
        "engine.board.position.key",
    } <= loaded


def test_kernels_of_these_sources_are_found_by_a_program_that_imports_numba_first():
    program = (
        "import numba, engine, os; print(numba.config.CACHE_DIR == "
        "os.environ['NUMBA_CACHE_DIR'] != '')"
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NUMBA_CACHE_DIR", "FIANCHETTO_KERNELS")
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("home", [None, "/dev/null"])
def test_without_a_home_caches_lie_in_a_folder_of_ones_own(home: str | None, tmp_path: Path):
    """For matplotlib, hashes and kernels; a folder there that others can write to is not used."""
    program = (
        "import engine, os, stat; folder = os.environ['XDG_CACHE_HOME']; about = os.stat(folder); "
        "import matplotlib; matplotlib.get_cachedir(); "
        "print(folder, about.st_uid == os.getuid(), stat.S_IMODE(about.st_mode) & 0o022)"
    )
    hidden = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"TMPDIR": str(tmp_path)} | ({} if home is None else {"HOME": home})
    if home is None and os.access(Path("~").expanduser(), os.W_OK):
        pytest.skip("this user has a home without HOME")
    ours = tmp_path / f"fianchetto-cache-{os.getuid()}"
    for shared in (False, True):
        if shared:
            ours.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        folder, is_ours, writable = done.stdout.split()
        assert (folder == str(ours), is_ours, writable) == (not shared, "True", "0")
        assert folder.startswith(str(tmp_path))
        assert done.stderr == ""


def test_a_home_that_may_not_be_entered_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The refusal is simulated, since root may enter everything."""
    closed, stat, access = str(tmp_path / "closed"), os.stat, os.access
    Path(closed).mkdir()

    def refuse(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != closed and access(path, mode))
    monkeypatch.setenv("XDG_CACHE_HOME", f"{closed}/cache")
    monkeypatch.setenv("MPLCONFIGDIR", "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    provide_caches()
    assert os.environ["XDG_CACHE_HOME"].startswith(f"{tmp_path}/fianchetto-cache-")


TINY = """
from numba import njit
from engine.evaluation.piece_squares import FULL_PHASE, PHASE
from engine.search.tree import MAX_DEPTH

@njit(cache=True)
def constants():
    return MAX_DEPTH, FULL_PHASE, PHASE[4]
"""
"""A kernel whose machine code holds constants of modules that compile nothing."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Copy the packages, without what was compiled of them."""
    for room in ROOMS:
        shutil.copytree(
            REPOSITORY / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    """Change one place of a source."""
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))


def test_a_changed_constant_is_what_runs(copied: Path) -> None:
    (copied / "engine" / "tiny.py").write_text(TINY)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NUMBA_CACHE_DIR", "FIANCHETTO_KERNELS")
    }

    def run() -> list[int]:
        program = (
            "from engine.tiny import constants; print(*constants(), "
            "sum(constants.stats.cache_hits.values()))"
        )
        words = [sys.executable, "-c", program]
        done = subprocess.run(
            words, cwd=copied, env=environment, capture_output=True, text=True, check=True
        )
        return [int(word) for word in done.stdout.split()]

    assert run() == [512, 24, 4, 0]
    command = copied / "pipeline" / "cli" / "commands" / "fetch.py"
    command.write_text(command.read_text() + "# edited\n")
    assert run() == [512, 24, 4, 1], "an edit of a command recompiles nothing"
    edit(copied / "engine" / "search" / "tree.py", "MAX_DEPTH = 512", "MAX_DEPTH = 500")
    edit(
        copied / "engine" / "evaluation" / "piece_squares.py",
        "[0, 1, 1, 2, 4, 0]",
        "[0, 1, 1, 2, 5, 0]",
    )
    assert run() == [500, 24, 5, 0]


def imported(path: Path) -> set[Path]:
    """Give our modules that a source imports, and the packages that they lie in, by Python's own
    parser."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not looked for"
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
    places = {
        REPOSITORY.joinpath(*name.split(".")[:end])
        for name in named
        for end in range(1, name.count(".") + 2)
    }
    both = {place.with_suffix(".py") for place in places} | {
        place / "__init__.py" for place in places
    }
    return {
        place
        for place in both
        if place.is_file() and place.relative_to(REPOSITORY).parts[0] in ROOMS
    }


def test_the_key_holds_what_pythons_parser_says_that_kernels_import() -> None:
    ours = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    wanted = {
        path
        for path in ours
        if re.search(r"^\s*@(njit|intrinsic|lower_builtin)\b", path.read_text(), re.M)
    }
    ahead = list(wanted)
    while ahead:
        new = imported(ahead.pop()) - wanted
        wanted |= new
        ahead += new
    found = {path for pattern in SOURCES for path in REPOSITORY.glob(pattern)}
    missing = {path for path in wanted - found if path.name != "__init__.py"}
    assert not missing, "name what kernels import in engine.jit_cache.SOURCES"
