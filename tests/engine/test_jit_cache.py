"""Compiled kernels are cached by a hash of their sources."""

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


def run_program(program: str, **variables: str) -> str:
    """Run Python code without this process's cache variables; return its output."""
    hidden = ("NUMBA_CACHE_DIR", "FIANCHETTO_KERNELS", "MPLCONFIGDIR")
    hidden += ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME") if "TMPDIR" in variables else ()
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_second_program_loads_kernels_even_if_it_imports_numba_first():
    program = (
        "import numba, engine, os, numpy; from engine.board.rng import uniform; "
        "uniform(numpy.zeros(1, numpy.uint64)); hits = sum(uniform.stats.cache_hits.values()); "
        "print(numba.config.CACHE_DIR, os.environ['NUMBA_CACHE_DIR'], hits)"
    )
    run_program(program)
    cache, variable, hits = run_program(program).split()
    assert cache == variable
    assert hits == "1"


def test_without_a_home_caches_are_in_a_folder_that_only_the_user_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = (
        "import engine, os, stat; folder = os.environ['XDG_CACHE_HOME']; about = os.stat(folder); "
        "import matplotlib; matplotlib.get_cachedir(); "
        "print(folder, about.st_uid == os.getuid(), stat.S_IMODE(about.st_mode) & 0o022)"
    )
    ours = tmp_path / f"fianchetto-cache-{os.getuid()}"
    assert run_program(program, TMPDIR=str(tmp_path), HOME="/dev/null") == f"{ours} True 0"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert jit_cache._make_temporary_cache() == str(ours)
    ours.chmod(0o777)
    other = Path(jit_cache._make_temporary_cache())
    assert (other.parent, other != ours) == (tmp_path, True)
    assert other.stat().st_mode & 0o077 == 0


def test_only_edits_of_modules_that_kernels_import_change_the_hash(tmp_path: Path):
    for room in ("engine", "pipeline"):
        shutil.copytree(
            REPOSITORY / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__")
        )
    before = jit_cache.hash_kernel_sources(tmp_path)
    assert before == jit_cache.hash_kernel_sources(REPOSITORY)
    edits = {"pipeline/cli/main.py": True, "engine/evaluation/piece_squares.py": False}
    for name, is_same in edits.items():
        with (tmp_path / name).open("a") as file:
            file.write("# edited\n")
        assert (jit_cache.hash_kernel_sources(tmp_path) == before) == is_same, name


def test_the_hash_includes_every_module_that_kernels_import() -> None:
    def name_of(path: Path) -> str:
        return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)

    graph = grimp.build_graph(*ROOMS, cache_dir=None)
    paths = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    pattern = re.compile(r"^\s*@(njit|intrinsic|lower_builtin)\b", re.M)
    kernels = {name_of(path) for path in paths if pattern.search(path.read_text())}
    wanted = kernels.union(*(graph.find_upstream_modules(name) for name in kernels))
    found = {
        name_of(path) for pattern in jit_cache.KERNEL_SOURCES for path in REPOSITORY.glob(pattern)
    }
    missing = {
        name for name in wanted - found if not (REPOSITORY / name.replace(".", "/")).is_dir()
    }
    assert not missing, "add them to engine.jit_cache.KERNEL_SOURCES"
