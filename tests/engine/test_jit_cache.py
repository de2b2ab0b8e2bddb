"""Kernels come out of a cache that is keyed by their sources."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import grimp
import pytest

from engine import jit_cache
from tests.conftest import REPOSITORY

ROOMS = ("engine", "model", "pipeline")


def run(program: str, *words: str, folder: Path = REPOSITORY, **variables: str) -> str:
    """Run a program without this suite's cache and home variables; return what it prints."""
    hidden = ("NUMBA_CACHE_DIR", "FIANCHETTO_KERNELS", "MPLCONFIGDIR")
    hidden += ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME") if "TMPDIR" in variables else ()
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_the_cache_is_found_by_a_program_that_imports_numba_first():
    program = "import numba, engine, os; print(numba.config.CACHE_DIR, os.environ[sys.argv[1]])"
    cache, variable = run(f"import sys; {program}", "NUMBA_CACHE_DIR").split()
    assert cache == variable != ""


def test_without_a_home_caches_lie_in_a_folder_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A folder in the temporary one that others can write to is not used: caches hold code."""
    program = (
        "import engine, os, stat; folder = os.environ['XDG_CACHE_HOME']; about = os.stat(folder); "
        "import matplotlib; matplotlib.get_cachedir(); "
        "print(folder, about.st_uid == os.getuid(), stat.S_IMODE(about.st_mode) & 0o022)"
    )
    ours = tmp_path / f"fianchetto-cache-{os.getuid()}"
    assert run(program, TMPDIR=str(tmp_path), HOME="/dev/null") == f"{ours} True 0"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert jit_cache._temporary_cache() == str(ours)
    ours.chmod(0o777)
    other = Path(jit_cache._temporary_cache())
    assert (other.parent, other != ours) == (tmp_path, True)
    assert other.stat().st_mode & 0o077 == 0


TINY = """
from numba import njit
from engine.evaluation.piece_squares import FULL_PHASE, PHASE

@njit(cache=True)
def constants():
    return FULL_PHASE, PHASE[4]
"""
"""A kernel whose machine code holds constants of a module that compiles nothing."""
SHOW = "from engine.tiny import constants as c; print(*c(), sum(c.stats.cache_hits.values()))"


def test_a_second_start_compiles_nothing_and_a_changed_constant_is_what_runs(tmp_path: Path):
    for room in ROOMS:
        shutil.copytree(
            REPOSITORY / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__")
        )
    (tmp_path / "engine" / "tiny.py").write_text(TINY)
    assert run(SHOW, folder=tmp_path) == "24 4 0"
    edited = {
        "pipeline/cli/main.py": ('"""', '"""Edited: ', "24 4 1"),  # no kernel depends on it
        "engine/evaluation/piece_squares.py": ("1, 1, 2, 4, 0]", "1, 1, 2, 5, 0]", "24 5 0"),
    }
    for name, (old, new, shown) in edited.items():
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace(old, new, 1))
        assert run(SHOW, folder=tmp_path) == shown, name


def test_the_key_holds_all_that_kernels_import() -> None:
    def name_of(path: Path) -> str:
        return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)

    graph = grimp.build_graph(*ROOMS, cache_dir=None)
    paths = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    pattern = re.compile(r"^\s*@(njit|intrinsic|lower_builtin)\b", re.M)
    kernels = {name_of(path) for path in paths if pattern.search(path.read_text())}
    wanted = kernels.union(*(graph.find_upstream_modules(name) for name in kernels))
    found = {name_of(path) for pattern in jit_cache.SOURCES for path in REPOSITORY.glob(pattern)}
    missing = {
        name for name in wanted - found if not (REPOSITORY / name.replace(".", "/")).is_dir()
    }
    assert not missing, "name what kernels import in engine.jit_cache.SOURCES"
