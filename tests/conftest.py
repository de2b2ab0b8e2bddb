"""What every test shares: where the real games and truth tables lie, and how hypothesis runs."""

import os
from pathlib import Path

# Two tests run side by side, and the processes that they start too: threads that wait for each other actively would take
# many times as long (docs/log.md, "Busy neighbours"). Before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

settings.register_profile("fianchetto", deadline=None)  # the first call of a kernel may compile it
settings.load_profile("fianchetto")


@pytest.fixture
def asked_before_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a training ask whether to stop before each step and never within one, so that tests can count steps by questions.

    How often it asks within a step depends on the machine's speed.
    """
    monkeypatch.setattr("model.training.stopping.ASK_SECONDS", float("inf"))


def shared_data(relative: str) -> Path:
    """Give the path of a file of real games or truth tables; skip the test when it is absent.

    They lie beside the repository, in ../shared/data, or where FIANCHETTO_SHARED_DATA says; they are never part of it.
    """
    root = Path(os.environ.get("FIANCHETTO_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    path = root / relative
    if not path.exists():
        pytest.skip(f"{path} is absent: put the shared data there, or name its folder in FIANCHETTO_SHARED_DATA")
    return path
