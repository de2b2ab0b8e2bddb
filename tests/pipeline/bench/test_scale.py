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
def test_scale_is_measured(dump: Path) -> None:
    with serving() as server:
        server.publish("dump.pgn", dump.read_bytes())
        address = f"{server.url}/standard/dump.pgn"
        found = run(
            "scale",
            dump,
            None,
            sizes=(100_000, 300_000),
            address=address,
            config=IngestConfig(planes="compact", chunk_mib=1),
        )
        assert [path for path, _, _ in server.asked].count("/standard/dump.pgn") >= 2, "it was read from there"
    assert found["address"] == address
    assert found["address_over_file"] == pytest.approx(
        found["address_positions_per_second"] / found["file_positions_per_second"], rel=0.01
    )
    assert [run["bytes"] <= size for run, size in zip(found["sizes"], (100_000, 300_000), strict=True)] == [True, True]
    for measured in found["sizes"]:
        assert measured["positions"] / measured["games"] > 60 - VARIANTS
        assert measured["shard_bytes"] > 20 * measured["positions"], "the shards were there before they were swept"
        assert measured["peak_mib"] > 100
    assert found["memory_ratio"] == pytest.approx(
        found["sizes"][1]["peak_mib"] / found["sizes"][0]["peak_mib"], abs=1e-3
    )
    last, month = found["sizes"][1], found["month"]
    assert (found["planes"], month["shards"]) == ("compact", 3 * 3115), "209 GB in chunks of 64 MiB, a shard a split"
    assert month["shard_gigabytes"] == pytest.approx(6 * last["shard_bytes"] / last["positions"], abs=0.51)
    rate = last["positions"] / last["seconds"] * found["two_workers_speedup_without_start"]
    assert month["hours_on_two_cores"] == pytest.approx(6e9 / rate / 3600, rel=0.01)
    assert f"compact, {last['bytes_per_position']}" in found["text"]
    assert found["reader"]["text_bytes"] == dump.stat().st_size
    assert "two workers over one" in found["text"]
    assert 200_000 < found["spread_bytes"] <= 300_000
    by_ray = 3 if importlib.util.find_spec("ray") is not None else 0
    jobs = 3 + 3 + by_ray + 2 * 3
    assert found["spread_games"] == jobs * [found["sizes"][1]["games"]], "each job had all of the stream"
    assert len(found["ray_seconds"]) == by_ray
    if by_ray:
        ratio = min(found["ray_seconds"]) / min(found["two_workers_seconds"])
        assert found["ray"]["ray_over_local"] == pytest.approx(ratio, abs=1e-3)
    assert found["two_jobs_speedup"] > 0.2
    runs = {name: found[f"{name}_seconds"] for name in ("one_worker", "two_workers", "two_jobs")}
    assert {name: len(seconds) for name, seconds in runs.items()} == {"one_worker": 3, "two_workers": 3, "two_jobs": 3}
    quickest = {name: min(seconds) for name, seconds in runs.items()}
    assert found["two_workers_speedup"] == pytest.approx(quickest["one_worker"] / quickest["two_workers"], abs=1e-2)
    assert found["two_jobs_speedup"] == pytest.approx(2 * quickest["one_worker"] / quickest["two_jobs"], abs=1e-2)


def test_sizes_that_make_no_range_are_refused(dump: Path) -> None:
    for sizes in ((0, 0), (1, 10_000_000), (2_000_000, 1_000_000)):
        with pytest.raises(ConfigError, match="smallest is at least"):
            run("scale", dump, None, sizes=sizes)
