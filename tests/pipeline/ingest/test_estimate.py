"""The estimate of an ingest against the ingest itself: the truth lies within its intervals."""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pipeline.dumps import sampling
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.estimate import estimate
from pipeline.ingest.job import ingest
from pipeline.storage import stores
from tests.conftest import shared_data
from tests.pipeline import datasets
from tests.pipeline.cli.conftest import call
from tests.pipeline.loopback import serving

FILTERED = IngestConfig(min_elo=1200, skip_plies=4, positions_per_game=20)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of 5 MB whose games get longer towards its end."""
    chance = random.Random(7)
    games = {(seed, plies): datasets.random_game(seed, plies) for seed in range(30) for plies in (30, 50, 70, 90)}
    path = tmp_path_factory.mktemp("estimate") / "games.pgn"
    drawn = [games[chance.randrange(30), chance.choice((30, 50) if at < 900 else (50, 70, 90))] for at in range(1900)]
    path.write_text("".join(drawn))
    return path


@pytest.fixture(scope="module")
def truth(dump: Path) -> dict[str, float]:
    """Ingest all of it and give what is estimated."""
    manifest = ingest([str(dump)], dump.parent / "out", FILTERED, workers=1)
    return {
        "read": manifest["games"]["read"],
        "kept": manifest["games"]["used"],
        "positions": manifest["positions"]["total"],
        "bytes": sum(entry["bytes"] for entry in manifest["files"]),
    }


def intervals(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {**result["games"], "positions": result["positions"], "bytes": result["bytes"]}


def assert_within(result: dict[str, Any], truth: dict[str, float]) -> None:
    for name, figure in intervals(result).items():
        assert figure["low"] <= truth[name] <= figure["high"], (name, figure, truth[name])
        assert figure["low"] <= figure["estimate"] <= figure["high"]
    assert 0 < result["minutes"]["low"] <= result["minutes"]["estimate"] <= result["minutes"]["high"]


def test_a_small_dump_is_known_exactly(dump: Path, truth: dict[str, float]) -> None:
    result = estimate([str(dump)], FILTERED, workers=1)
    for name in ("read", "kept", "positions"):
        assert set(intervals(result)[name].values()) == {truth[name]}
    assert result["sources"][0]["text_bytes"] == dump.stat().st_size
    assert result["bytes"]["estimate"] == pytest.approx(truth["bytes"], rel=0.001)
    assert result["dropped"]["filter: elo"] == pytest.approx(1 - truth["kept"] / truth["read"], abs=1e-4)


def test_a_sample_is_read_at_places_over_the_file(dump: Path, truth: dict[str, float]) -> None:
    result = estimate([str(dump)], FILTERED, workers=1, sample_mib=1)
    assert result["sources"][0]["basis"] == "36 places over all of it"
    assert result["sampled"]["text_bytes"] < 2 << 20
    assert_within(result, truth)
    assert intervals(result)["positions"]["high"] < 1.3 * intervals(result)["positions"]["low"]


def test_a_short_archive_is_read_over_all_of_it(dump: Path, truth: dict[str, float], tmp_path: Path) -> None:
    path = tmp_path / "games.pgn.gz"
    path.write_bytes(gzip.compress(dump.read_bytes(), 1))
    result = estimate([str(path)], FILTERED, workers=1, sample_mib=1)
    assert result["sources"][0] == {
        "name": str(path), "bytes": path.stat().st_size, "text_bytes": dump.stat().st_size,
        "basis": "36 places over all of it",
    }  # fmt: skip
    assert_within(result, truth)


def test_a_long_archive_is_known_by_its_beginning_and_says_so(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "REACH", 2 << 20)
    chance, path = random.Random(1), tmp_path / "games.pgn.gz"  # copies of games are too far apart for it to see
    games = [datasets.random_game(chance.randrange(60), chance.choice((30, 60))) for _ in range(2000)]
    path.write_bytes(gzip.compress("".join(games).encode(), 1))
    result = estimate([str(path)], workers=1, sample_mib=1)
    assert result["sources"][0]["basis"].startswith("the first 2 MiB of its text only")
    manifest = ingest([str(path)], tmp_path / "out", workers=1)
    for figure, true in (
        (result["games"]["read"], 2000),
        (result["positions"], manifest["positions"]["total"]),
    ):
        assert figure["low"] <= true <= figure["high"]
        assert figure["high"] > 1.2 * figure["low"]


def test_an_address_is_read_from_its_beginning(dump: Path, truth: dict[str, float]) -> None:
    archive = zstandard.compress(dump.read_bytes(), 3)
    place: Any = stores.place(f"memory://bucket/{random.randrange(1 << 40)}/games.pgn.zst")
    place.write_bytes(archive)
    with serving() as server:
        server.publish("games.pgn.zst", archive)
        server.publish("games.pgn", dump.read_bytes())
        web = f"{server.url}/standard"
        for name in (str(place), f"{web}/games.pgn.zst", f"{web}/games.pgn"):
            result = estimate([name], FILTERED, workers=1, sample_mib=1)
            assert "places over all of it" in result["sources"][0]["basis"]
            assert_within(result, truth)


def test_positions_of_other_inputs_are_estimated_too(tmp_path: Path) -> None:
    path = shared_data("truth/lichess_puzzles_500.csv")
    result = estimate([str(path)], workers=1)
    assert result["games"]["kept"] == {"estimate": 500, "low": 500, "high": 500}
    assert result["positions_dropped"]["not a labelled move"] == pytest.approx(0.5)


def test_what_keeps_nothing_or_is_nothing_is_said(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nothing of what was read would be kept: .*filter: date"):
        estimate([str(dump)], IngestConfig(since="2099-01-01"), workers=1, sample_mib=1)
    with pytest.raises(ConfigError, match="at least one dump"):
        estimate([])
    with pytest.raises(ConfigError, match="sample_mib"):
        estimate([str(dump)], sample_mib=0)


def test_the_command_prints_an_estimate_and_writes_nothing(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["ingest", str(dump), "--estimate", "--min-elo", "1200", "--workers", "1"]
    code, out, _ = call(capsys, monkeypatch, *words, "--json")
    assert code == 0
    assert json.loads(out)["games"]["read"] == {"estimate": 1900, "low": 1900, "high": 1900}
    code, out, _ = call(capsys, monkeypatch, *words)
    assert code == 0
    assert re.search(r"^games read +1,900   1,900 to 1,900$", out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []
    code, out, error = call(capsys, monkeypatch, "ingest", str(dump))
    assert (code, out) == (2, "")
    assert error == "fianchetto: --out DIR is missing (or give --estimate, which writes nothing)\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lichess_rapid_eval_train.pgn.zst", "lichess_export_2022-2026_blitz.pgn"])
def test_the_truth_of_real_dumps_is_within_the_intervals(name: str, tmp_path: Path) -> None:
    path = shared_data(f"pgn/{name}")
    config = IngestConfig(min_elo=1500, positions_per_game=30)
    result = estimate([str(path)], config, sample_mib=16 if name.endswith("zst") else 1)
    manifest = ingest([str(path)], tmp_path / "out", config)
    assert_within(
        result,
        {
            "read": manifest["games"]["read"],
            "kept": manifest["games"]["used"],
            "positions": manifest["positions"]["total"],
            "bytes": sum(entry["bytes"] for entry in manifest["files"]),
        },
    )
