"""The benchmarks run on a small dump, and their results are consistent; no speed is asserted."""

import io
import time
from pathlib import Path

import chess.pgn
import numpy as np
import pytest

from benchmarks import batches, gpu, ingest, scale, search
from engine.board.movegen import legal_planes
from engine.board.position import from_board
from engine.encoding.planes import unpack
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig
from tests.pipeline import datasets


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return datasets.dump(tmp_path_factory.mktemp("bench") / "dump.pgn", 4)


def test_rates_are_measured(dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "RUNS", 1)
    monkeypatch.setattr(batches, "MIN_ROWS", 1_000)
    monkeypatch.setattr(batches, "RUNS", 1)
    monkeypatch.setattr(search, "PARALLEL_GAMES", 4)
    result = ingest.measure(dump, IngestConfig())
    assert result["positions"] == result["games"] * 60
    rates = [result[f"{one}_positions_per_second"] for one in ("same_games", "python_chess")]
    assert result["ratio_python_chess"] == pytest.approx(rates[0] / rates[1], rel=0.02, abs=0.06)
    assert 20 < result["bytes_per_position"] < 200
    assert min(batches.measure(dump).values()) > 0
    assert min(search.measure(moves=2, rounds=1).values()) > 0


def test_the_python_chess_pipeline_computes_the_same_planes(dump: Path) -> None:
    game = chess.pgn.read_game(io.StringIO(dump.read_text()))
    assert game is not None
    board = game.board()
    for move in game.mainline_moves():
        planes = np.zeros(77, dtype=np.uint64)
        legal_planes(from_board(board), planes)
        assert (ingest._draw_planes(board) == unpack(planes[None])[0]).all()
        board.push(move)


def test_a_stream_has_whole_games_up_to_its_size(tmp_path: Path) -> None:
    assert b"".join(scale.repeat_games([b"aa", b"b"], 7)) == b"aabaab"
    assert list(scale.repeat_games([b"aa"], 1)) == []
    with pytest.raises(ConfigError, match="must be at least 10,000,000 bytes, got 1"):
        scale.measure(tmp_path / "dump.pgn", IngestConfig(), 1)


def test_a_report_skips_measurements_without_time_left() -> None:
    report = gpu.Report(deadline=time.perf_counter() + 600)
    report.add("a", "b", 1, str, 7)
    report.add("c", "d", 1000, pytest.fail)
    assert report.rows == [("a", "b", "7"), ("c", "d", "skipped: no time left")]


@pytest.mark.slow
@pytest.mark.serial
def test_scale_is_measured(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "RUNS", 1)
    monkeypatch.setattr(scale, "SHORT_STREAM_BYTES", 100_000)
    found = scale.measure(dump, IngestConfig(planes="compact"), 300_000)
    small, large, one, two = found["runs"]
    assert all(row["positions"] == 60 * row["games"] for row in (small, large))
    assert large["games"] == pytest.approx(3 * small["games"], rel=0.1)
    assert found["memory_ratio"] == pytest.approx(large["peak_mib"] / small["peak_mib"], rel=0.02)
    assert one["games"] == two["games"] == large["games"]
