"""The estimate of an ingest against the ingest itself."""

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
    """Make a dump of 4 MB whose games are alike throughout."""
    chance = random.Random(7)
    games = {
        (seed, plies): datasets.random_game(seed, plies)
        for seed in range(10)
        for plies in (30, 50, 70)
    }
    path = tmp_path_factory.mktemp("estimate") / "games.pgn"
    path.write_text(
        "".join(games[chance.randrange(10), chance.choice((30, 50, 70))] for _ in range(1900))
    )
    return path


@pytest.fixture(scope="module")
def truth(dump: Path) -> dict[str, float]:
    """Ingest all of it and give what is estimated."""
    manifest = ingest([str(dump)], dump.parent / "out", FILTERED, workers=1)
    return {
        "games_read": manifest["games"]["read"],
        "games_kept": manifest["games"]["used"],
        "positions": manifest["positions"]["total"],
        "gigabytes": sum(entry["bytes"] for entry in manifest["files"]) / 1e9,
    }


def test_a_small_dump_is_known_exactly_and_longer_ones_from_their_beginning(
    dump: Path, truth: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, an archive, and an archive elsewhere."""
    result = estimate([str(dump)], FILTERED, workers=1)
    assert result["basis"] == "all of the text"
    assert {name: result[name] for name in truth} == pytest.approx(truth, rel=0.001)
    dropped = 1 - truth["games_kept"] / truth["games_read"]
    assert result["dropped"]["filter: elo"] == pytest.approx(dropped)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 2 << 20)
    monkeypatch.setattr(module, "READ_BYTES", 1 << 14)
    monkeypatch.setattr("pipeline.dumps.archives.READ_BYTES", 1 << 14)
    # a small window, so copies of games are not found
    near = zstandard.ZstdCompressionParameters.from_level(3, window_log=15)
    place: Any = stores.parse_path(f"memory://bucket/{random.randrange(1 << 40)}/games.pgn.zst")
    place.write_bytes(zstandard.ZstdCompressor(compression_params=near).compress(dump.read_bytes()))
    for name in (str(dump), str(place)):
        result = estimate([name], FILTERED, workers=1)
        assert 40 < float(result["basis"].split()[2].rstrip("%")) < 70, name
        for key, true in truth.items():
            assert result[key] == pytest.approx(true, rel=0.15), key
        assert result["minutes"] > 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(dump.read_bytes())))
    result = estimate(["-"], FILTERED, workers=1)
    assert result["basis"].startswith("the beginning of a text of unknown length")
    assert 0 < result["games_read"] < truth["games_read"]


def test_positions_of_other_inputs_are_estimated_too() -> None:
    result = estimate([str(shared_data("truth/lichess_puzzles_500.csv"))], workers=1)
    assert result["games_kept"] == 500
    assert result["positions_dropped"]["not a labelled move"] == pytest.approx(0.5, abs=0.001)


def test_what_keeps_nothing_or_is_nothing_is_said(dump: Path) -> None:
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
    words = ["ingest", str(dump), "--estimate", "--min-elo", "1200", "--workers", "1"]
    code, out, _ = invoke(*words, "--json")
    assert code == 0
    assert json.loads(out)["games_read"] == 1900
    assert list(tmp_path.iterdir()) == []
    code, out, error = invoke("ingest", str(dump))
    assert (code, out) == (2, "")
    assert "--out DIR must be given" in error
