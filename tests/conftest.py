"""Fixtures and hooks for all tests: hypothesis, distribution over pytest's workers, shared data."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Torch reads this when it is imported. Tests and their subprocesses share the cores, where threads
# that wait actively take many times as long (docs/log/2026-11-20.md, "Busy neighbours").
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

REPOSITORY = Path(__file__).resolve().parent.parent

ONE_WORKER_FOLDERS = ("tests/pipeline/defs", "tests/pipeline/cli")
"""Folders whose files share expensive fixtures, so that one worker runs them all."""
LONGEST = (
    *ONE_WORKER_FOLDERS,
    "tests/model/inference/test_export.py",
    "tests/pipeline/ingest",
    "tests/model/network/test_presets.py",
    "tests/engine/encoding/test_planes_oracle.py",
)
"""Folders and files that start first, so that no worker runs a long one after all others end."""

# no deadline: the first call of a kernel may compile it, and the machine may be busy
settings.register_profile("fianchetto", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fianchetto")


class Scheduling(LoadScopeScheduling):
    """Assigns whole files to a worker, so that their module fixtures are made once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return folder if folder in ONE_WORKER_FOLDERS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Distribute tests by file, unless `--dist` was given."""
    config.option.loadscopereorder = False
    return Scheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the longest files to the front; the order within a file stays."""

    def rank(item: pytest.Item) -> int:
        places = (place for place, name in enumerate(LONGEST) if item.nodeid.startswith(name))
        return next(places, len(LONGEST))

    items.sort(key=rank)


@pytest.fixture(autouse=True, scope="session")
def unsynced() -> Iterator[None]:
    """Replace fsync, which takes time; tests kill processes, but do not cut the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def store_in_memory() -> Iterator[None]:
    """Allow fsspec's in-memory store, which commands reject because it is lost when they end."""
    from pipeline.storage.stores import STORE_EXTRAS

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STORE_EXTRAS, "memory", "")
        yield


@pytest.fixture
def poll_stop_before_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training poll `stop` only before each step, so that tests can count the steps.

    Otherwise the number of polls during validation depends on the machine's speed.
    """
    monkeypatch.setattr("model.training.loop.POLL_SECONDS", float("inf"))


def shared_data(relative: str) -> Path:
    """Return the path of a file of real games or reference tables; skip the test if it is absent.

    The files are in ../shared/data beside the repository, or in FIANCHETTO_SHARED_DATA.
    """
    root = Path(os.environ.get("FIANCHETTO_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    path = root / relative
    if not path.exists():
        pytest.skip(
            f"{path} does not exist: set FIANCHETTO_SHARED_DATA to the folder of the shared data"
        )
    return path
