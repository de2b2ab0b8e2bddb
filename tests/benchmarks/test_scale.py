"""`bench scale`: the repeated stream, and figures that agree with it; no time is asserted."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import scale
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig
from tests.pipeline import datasets


def test_a_stream_holds_whole_games_up_to_its_size() -> None:
    assert b"".join(scale.repeat_games([b"aa", b"b"], 7)) == b"aabaab"
    assert list(scale.repeat_games([b"aa"], 1)) == []


def test_rows_are_repeated_up_to_a_size(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"fen": [str(number) for number in range(5_000)]}), tmp_path / "table.parquet"
    )
    for size, rows in ((0, 1), (100_000, None)):
        out = Path(scale.repeat_rows(tmp_path / "table.parquet", tmp_path / "out.parquet", size))
        found = pq.read_table(out)["fen"].to_pylist()
        assert len(found) == rows or (len(found) % 5_000 == 0 and out.stat().st_size >= size)
        assert found[-1] == ("0" if rows else "4999")


@pytest.mark.slow
@pytest.mark.serial
def test_scale_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = datasets.dump(tmp_path / "dump.pgn", 6)
    monkeypatch.setattr(scale, "TURNS", 1)
    monkeypatch.setattr(scale, "SMALLEST", 100_000)
    found = scale.measure(dump, IngestConfig(planes="compact"), 300_000)
    assert [row["run"] for row in found["runs"]] == [
        "100,000 bytes",
        "300,000 bytes",
        "1 workers",
        "2 workers",
    ]
    small, large, one, two = found["runs"]
    for row in (small, large):
        assert row["positions"] == 60 * row["games"]
        assert row["peak_mib"] > 100
        assert row["cpu_seconds"] > 0
    assert large["games"] == pytest.approx(3 * small["games"], rel=0.1)
    assert found["memory_ratio"] == pytest.approx(large["peak_mib"] / small["peak_mib"], rel=0.02)
    assert one["games"] == two["games"] == large["games"], "each run had the whole stream"
    assert found["two_workers_speedup"] == pytest.approx(one["seconds"] / two["seconds"], rel=0.02)


def test_a_stream_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be at least 10,000,000 bytes, got 1"):
        scale.measure(tmp_path / "dump.pgn", IngestConfig(), 1)
