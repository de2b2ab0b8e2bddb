"""Compare the estimate of an ingest with the ingest itself."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest import estimate as module
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.estimate import estimate
from pipeline.ingest.job import ingest
from pipeline.storage import stores
from tests.conftest import shared_data
from tests.pipeline import datasets
from tests.pipeline.cli.conftest import invoke

FILTERED = IngestConfig(min_elo=1200, skip_plies=4, positions_per_game=20)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of 4 MB with the same mixture of games throughout."""
    rng = random.Random(7)
    games = {
        (seed, plies): datasets.random_game(seed, plies)
        for seed in range(10)
        for plies in (30, 50, 70)
    }
    path = tmp_path_factory.mktemp("estimate") / "games.pgn"
    path.write_text(
        "".join(games[rng.randrange(10), rng.choice((30, 50, 70))] for _ in range(1900))
    )
    return path


@pytest.fixture(scope="module")
def actual(dump: Path) -> dict[str, float]:
    """Ingest the dump and return the figures that are estimated."""
    manifest = ingest([str(dump)], dump.parent / "out", FILTERED, workers=1)
    return {
        "games_read": manifest["games"]["read"],
        "games_kept": manifest["games"]["used"],
        "positions": manifest["positions"]["total"],
        "gigabytes": sum(entry["bytes"] for entry in manifest["files"]) / 1e9,
    }


def test_estimates_are_exact_for_a_small_dump_and_close_for_a_longer_one(
    dump: Path, actual: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = estimate([str(dump)], FILTERED, workers=1)
    assert result["basis"] == "all of the text"
    assert {name: result[name] for name in actual} == pytest.approx(actual, rel=0.001)
    dropped = 1 - actual["games_kept"] / actual["games_read"]
    assert result["dropped"]["filter: elo"] == pytest.approx(dropped)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 2 << 20)
    monkeypatch.setattr(module, "READ_BYTES", 1 << 14)
    monkeypatch.setattr("pipeline.dumps.archives.READ_BYTES", 1 << 14)
    # a small window, so that copies of games are not compressed away
    near = zstandard.ZstdCompressionParameters.from_level(3, window_log=15)
    stored: Any = stores.parse_path(f"memory://bucket/{random.randrange(1 << 40)}/games.pgn.zst")
    stored.write_bytes(
        zstandard.ZstdCompressor(compression_params=near).compress(dump.read_bytes())
    )
    for name in (str(dump), str(stored)):
        result = estimate([name], FILTERED, workers=1)
        assert 40 < float(result["basis"].split()[2].rstrip("%")) < 70, name
        for key, value in actual.items():
            assert result[key] == pytest.approx(value, rel=0.15), key
        assert result["minutes"] > 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(dump.read_bytes())))
    result = estimate(["-"], FILTERED, workers=1)
    assert result["basis"].startswith("the beginning of a text of unknown length")
    assert 0 < result["games_read"] < actual["games_read"]


def test_a_table_of_puzzles_can_be_estimated() -> None:
    result = estimate([str(shared_data("truth/lichess_puzzles_500.csv"))], workers=1)
    assert result["games_kept"] == 500
    assert result["positions_dropped"]["not a labelled move"] == pytest.approx(0.5, abs=0.001)


def test_no_games_no_dump_and_evaluated_positions_cannot_be_estimated(dump: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"no position of the text read would be kept: .*filter: date"
    ):
        estimate([str(dump)], IngestConfig(since="2099-01-01"), workers=1)
    with pytest.raises(ConfigError, match="at least one dump"):
        estimate([])
    with pytest.raises(ConfigError, match="holds evaluated positions"):
        estimate([str(shared_data("cases/23_evals_control.parquet"))], workers=1)


def test_the_command_prints_an_estimate_and_writes_nothing(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["ingest", str(dump), "--estimate", "--min-elo", "1200", "--workers", "1"]
    code, out, _ = invoke(*command, "--json")
    assert code == 0
    assert json.loads(out)["games_read"] == 1900
    assert list(tmp_path.iterdir()) == []
    code, out, error = invoke("ingest", str(dump))
    assert (code, out) == (2, "")
    assert "--out DIR" in error
