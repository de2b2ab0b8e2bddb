"""The first hour with one's own games, in a real browser, as `make pictures` takes it."""

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.pipeline.defs.conftest import prepared
from tests.pipeline.defs.served.browser import MARKS, browsing
from tests.pipeline.defs.served.first_hour import take_first_hour
from tests.pipeline.defs.served.server import serving

GAMES = REPOSITORY.parent / "shared" / "data" / "pgn" / "lichess_export_2024-05_blitz.pgn"
pytestmark = [*MARKS, pytest.mark.skipif(not GAMES.exists(), reason=f"there are no games here: {GAMES}")]


def test_the_first_hour_with_own_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = prepared(tmp_path, monkeypatch)
    kept: dict[str, bytes] = {}
    with serving() as server, browsing() as page:
        take_first_hour(page, server, datasets, GAMES, "fianchetto-xs", 0.2, kept.__setitem__)
    assert set(kept) == {"dump-listed.png", "datasets-chosen.png", "checkpoint.png", "accuracy.png"}
