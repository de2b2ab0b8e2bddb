"""The first hour with one's own games, in a real browser, as `make pictures` takes it."""

import tempfile
from pathlib import Path

import pytest

from tests.conftest import shared_data
from tests.pipeline.defs.conftest import prepared
from tests.pipeline.defs.served.browser import MARKS, browsing
from tests.pipeline.defs.served.first_hour import take_first_hour
from tests.pipeline.defs.served.server import serving

pytestmark = MARKS


def test_the_first_hour_with_own_games(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, bytes] = {}
    games = shared_data("pgn/lichess_export_2024-05_blitz.pgn")
    # a short path, since Dagster wraps none and widens the table for a long one
    with tempfile.TemporaryDirectory() as folder:
        datasets = prepared(Path(folder), monkeypatch)
        with serving() as server, browsing() as page:
            take_first_hour(page, server, datasets, games, "fianchetto-xs", 0.2, kept.__setitem__)
    assert set(kept) == {"dump-listed.png", "datasets-chosen.png", "checkpoint.png", "accuracy.png"}
