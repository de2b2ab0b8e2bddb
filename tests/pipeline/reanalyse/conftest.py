import os

import pytest


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: a killed process loses no write."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
