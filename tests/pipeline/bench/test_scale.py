"""The stream that `bench scale` makes is real games, each of its own; the figures are those of a stream that was counted."""

import importlib.util
import io
from pathlib import Path

import chess.pgn
import pytest

from pipeline.bench import run
from pipeline.bench.stream import VARIANTS, Repeats
from pipeline.errors import ConfigError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets
from tests.pipeline.loopback import serving


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return datasets.dump(tmp_path_factory.mktemp("scale") / "dump.pgn", 6)


def games(text: bytes) -> list[chess.pgn.Game]:
    """Read games with python-chess."""
    stream, found = io.StringIO(text.decode()), []
    while (game := chess.pgn.read_game(stream)) is not None:
        found.append(game)
    return found


def test_repeats_are_the_same_games_a_few_moves_shorter_under_other_ids(dump: Path) -> None:
    seed = Repeats(dump, 1 << 20)
    text = b"".join(seed.read(VARIANTS * len(seed.text)))
    read, whole = games(text), games(dump.read_bytes())
    assert len(read) == VARIANTS * len(whole) == VARIANTS * 6
    assert not any(game.errors for game in read)
    assert len({game.headers["Site"] for game in read}) == len(read)
    for number, game in enumerate(read):
        moves = list(game.mainline_moves())
        full = whole[number % 6]
        assert moves == list(full.mainline_moves())[: 60 - number // 6]
        assert game.headers["Result"] == full.headers["Result"]


def test_a_stream_has_the_size_asked_for_and_no_half_game(dump: Path, tmp_path: Path) -> None:
    seed = Repeats(dump, 1 << 20)
    size = len(seed.text) * 5 // 2
    text = b"".join(seed.read(size))
    assert size - max(len(str(game)) * 2 for game in games(dump.read_bytes())) < len(text) <= size
    path = tmp_path / "stream.pgn"
    path.write_bytes(text)
    manifest = ingest([str(path)], tmp_path / "out", workers=1)
    assert manifest["games"]["dropped"] == {}
    identities = [game["identity"] for game in datasets.games(tmp_path / "out")]
    assert len(set(identities)) == len(identities) == len(games(text))


@pytest.mark.slow
@pytest.mark.serial
def test_scale_is_measured(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.bench.scale.TURNS", 1)
    config = IngestConfig(planes="compact", chunk_mib=1)
    with serving() as server:
        server.publish("dump.pgn", dump.read_bytes())
        address = f"{server.url}/standard/dump.pgn"
        found = run("scale", dump, None, sizes=(100_000, 300_000), address=address, config=config)
        assert "/standard/dump.pgn" in [path for path, _, _ in server.asked], "it was read from there"
    names = ["100,000 bytes", "300,000 bytes", "one worker", "two workers"]
    ray = ["two workers of Ray"] if importlib.util.find_spec("ray") is not None else []
    assert [row["run"] for row in found["runs"]] == names + ray
    small, large, *spread = found["runs"]
    for row in (small, large):
        assert row["positions"] / row["games"] > 60 - VARIANTS
        assert row["bytes_per_position"] > 20, "the shards were seen before they were deleted"
        assert row["peak_mib"] > 100
    assert found["memory_ratio"] == pytest.approx(large["peak_mib"] / small["peak_mib"], rel=0.02)
    assert {row["games"] for row in spread} == {large["games"]}, "each run had all of the stream"
    assert found["two_workers_speedup"] == pytest.approx(spread[0]["seconds"] / spread[1]["seconds"], rel=0.02)
    assert found["address_over_file"] > 0


def test_sizes_that_make_no_range_are_refused(dump: Path) -> None:
    for sizes in ((0, 0), (1, 10_000_000), (2_000_000, 1_000_000)):
        with pytest.raises(ConfigError, match="smallest is at least"):
            run("scale", dump, None, sizes=sizes)
