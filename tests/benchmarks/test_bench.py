"""The benchmarks run and say what they promise, on a small dump; no time is asserted."""

from pathlib import Path

import pytest

from benchmarks import batches
from benchmarks import ingest as bench_ingest
from benchmarks import report as bench_report
from benchmarks.ingest import beside_schema
from engine.encoding.views import LAST_MOVES
from pipeline.ingest.chunk import IngestConfig
from tests.pipeline.datasets import random_game


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "dump.pgn"
    path.write_text("\n".join(random_game(seed) for seed in range(16)))
    return path


def test_ingest_is_measured_beside_python_chess_on_the_same_columns(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_ingest, "TURNS", 1)
    figures = bench_ingest.measure(dump, IngestConfig())
    assert figures["positions"] == figures["games"] * 60
    assert figures["ratio_python_chess"] == pytest.approx(
        figures["same_games_positions_per_second"] / figures["python_chess_positions_per_second"],
        rel=0.02,
        abs=0.06,
    )
    assert 20 < figures["bytes_per_position"] < 100
    seconds, rows = bench_ingest._python_chess(dump.read_bytes(), tmp_path, 8)
    assert rows == figures["positions"]
    import pyarrow.parquet as pq

    assert pq.read_schema(tmp_path / "beside.parquet").equals(
        beside_schema(len(LAST_MOVES)), check_metadata=False
    )
    assert seconds > 0


def test_both_forms_are_measured_in_one_run(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ROWS_AT_LEAST", 100_000)
    found = batches.measure(dump)
    assert found.keys() == {"positions_per_second", "compact_positions_per_second"}
    assert min(found.values()) > 0


def test_a_report_is_measured_with_its_page(dump: Path) -> None:
    figures = bench_report.measure(dump)
    assert 0 < figures["positions"] < 16 * 60
    assert 0 < figures["page_seconds"] < figures["seconds"]
    assert figures["top1_difference"] == 0, "so few positions are evaluated by torch both times"


def test_the_straightforward_planes_are_the_true_ones(dump: Path) -> None:
    import io

    import chess.pgn
    import numpy as np

    from engine.board.movegen import legal_planes
    from engine.board.position import from_board
    from engine.encoding.planes import unpack

    game = chess.pgn.read_game(io.StringIO(dump.read_text()))
    assert game is not None
    board = game.board()
    for move in game.mainline_moves():
        planes = np.zeros(77, dtype=np.uint64)
        legal_planes(from_board(board), planes)
        assert (bench_ingest._planes_by_loops(board) == unpack(planes[None])[0]).all()
        board.push(move)
