"""What every test shares: where the real games and truth tables lie, how hypothesis runs, how
workers share the tests."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Two tests run side by side, and the processes that they start too: threads that wait for each
# other actively would take many times as long (docs/log/2026-11-20.md, "Busy neighbours"). Before
# anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

REPOSITORY = Path(__file__).resolve().parent.parent

TOGETHER = ("tests/pipeline/defs", "tests/pipeline/cli")
"""Folders whose files share what is costly to make: one worker runs them all."""
LONGEST = (
    *TOGETHER,
    "tests/model/inference/test_export.py",
    "tests/pipeline/ingest",
    "tests/model/network/test_presets.py",
    "tests/engine/encoding/test_planes_oracle.py",
)
"""What is begun first, so that no worker is left with a long file when the others are done."""

# a first call of a kernel may compile it, and a machine may be busy
settings.register_profile("fianchetto", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fianchetto")


class Scheduling(LoadScopeScheduling):
    """Assigns whole files to a worker, so that what a module's tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return folder if folder in TOGETHER else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Deal tests out by files, unless another way was asked for."""
    config.option.loadscopereorder = False
    return Scheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order within a file stays."""
    items.sort(
        key=lambda item: next(
            (at for at, name in enumerate(LONGEST) if item.nodeid.startswith(name)), len(LONGEST)
        )
    )


@pytest.fixture(autouse=True, scope="session")
def unsynced() -> Iterator[None]:
    """Do not wait for the disk: a killed process loses no write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def store_in_memory() -> Iterator[None]:
    """Let tests use fsspec's store in memory, which a command refuses because it keeps nothing."""
    from pipeline.storage.stores import STORES

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STORES, "memory", "")
        yield


@pytest.fixture
def asked_before_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a training ask whether to stop before each step alone, so that tests can count steps by
    questions.

    How often it asks in a validation depends on the machine's speed.
    """
    monkeypatch.setattr("model.training.loop.POLL_SECONDS", float("inf"))


def shared_data(relative: str) -> Path:
    """Return the path of a file of real games or truth tables; skip the test when it is absent.

    They lie beside the repository, in ../shared/data, or where FIANCHETTO_SHARED_DATA says; they
    are never part of it.
    """
    root = Path(os.environ.get("FIANCHETTO_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    path = root / relative
    if not path.exists():
        pytest.skip(
            f"{path} is absent: put the shared data there, or name its folder in "
            f"FIANCHETTO_SHARED_DATA"
        )
    return path
