"""The positions that a report counts, and what it says of the network's training."""

from pathlib import Path

import chess.pgn
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.dataset.dataset import Dataset
from pipeline.dataset.join import JoinConfig, join
from pipeline.defs.tasks import probe
from pipeline.errors import ConfigError
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import (
    PositionFilter,
    _shorten_names,
    find_overlap,
    report,
)
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.training.train import describe_data
from tests.pipeline.datasets import random_game

GAMES = 120


@pytest.fixture(scope="module")
def pgn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write random games into a folder of dumps."""
    path = tmp_path_factory.mktemp("games") / "dumps" / "many.pgn"
    path.parent.mkdir()
    path.write_text("\n".join(random_game(seed, 16) for seed in range(GAMES)))
    return path


@pytest.fixture(scope="module")
def positions(pgn: Path) -> Path:
    """Ingest the games beside their dump; half of them are test games."""
    out = pgn.parents[1] / "positions" / "many"
    ingest([str(pgn)], out, IngestConfig(test_share=0.5), workers=1)
    return out


def test_a_limit_is_a_sample_of_positions_across_all_games(pgn: Path, tmp_path: Path) -> None:
    found = report(
        EMBEDDED_CHECKPOINT, pgn=pgn, rule=PositionFilter(limit=60), players=False, rating_rows=5
    )
    assert found["positions"] == 60
    assert found["games"] > 36, "60 random positions of 120 games come from about 47 games"
    assert "a random sample of at most 60 positions of all games" in found["rule"]
    assert "from ply 10 on" in found["common_rule"]["rule"]
    write_report(found, tmp_path / "out")
    assert "Skipped: the players&#39; ratings" in (tmp_path / "out" / "report.html").read_text()
    assert "rating_matrix" not in found["details"]


def test_a_minimum_ply_counts_the_positions_from_it_on(pgn: Path) -> None:
    found = report(
        EMBEDDED_CHECKPOINT, pgn=pgn, rule=PositionFilter(min_ply=14, limit=0), players=False
    )
    assert "from ply 14 on of every game" in found["common_rule"]["rule"]
    with pgn.open() as file:
        games = iter(lambda: chess.pgn.read_game(file), None)
        plies = [len(list(game.mainline_moves())) - 14 for game in games if game is not None]
    late = [count for count in plies if count > 0]
    assert (found["positions"], found["games"]) == (sum(late), len(late))


def test_a_split_without_moves_to_compare_with_is_refused(tmp_path: Path, positions: Path) -> None:
    with pytest.raises(ConfigError, match=r"none of the 2 positions .* from ply 200 on: lower min"):
        report(EMBEDDED_CHECKPOINT, positions=positions, rule=PositionFilter(min_ply=200, limit=2))
    board = chess.Board()
    board.push_san("e4")
    row = {"fen": [board.fen()] * 12, "cp": [9] * 12, "mate": [None] * 12, "move": [None] * 12}
    pq.write_table(pa.table(row), tmp_path / "evals.parquet")
    config = IngestConfig(test_share=0.9, val_share=0.0)
    ingest([str(tmp_path / "evals.parquet")], tmp_path / "out", config, workers=1)
    with pytest.raises(ConfigError, match=r"none of the .* positions has a known move"):
        report(EMBEDDED_CHECKPOINT, positions=tmp_path / "out")
    assert probe(EMBEDDED_CHECKPOINT, tmp_path / "out", "test", 64) == {"loss": None, "rows": 0}


def test_a_report_on_a_training_set_of_one_dataset_links_to_the_games(
    positions: Path, tmp_path: Path
) -> None:
    join([positions], tmp_path / "sets" / "one", JoinConfig(hold_out="none"))
    found = report(
        EMBEDDED_CHECKPOINT, positions=tmp_path / "sets" / "one", rule=PositionFilter(limit=50)
    )
    assert "the test split of one" in found["compared"]
    assert any("link" in row for rows in found["details"]["boards"].values() for row in rows)


def test_games_of_the_training_data_are_recognized_by_hash(
    pgn: Path, positions: Path, tmp_path: Path
) -> None:
    ingest([str(pgn)], tmp_path / "other", IngestConfig(test_share=0.3), workers=1)
    card, opened = {"data": describe_data([positions])}, Dataset.open(positions)
    seen = [find_overlap(card, opened, split) for split in ("train", "test")]
    assert seen == ["yes", "no"]
    other = find_overlap(card, Dataset.open(tmp_path / "other"), "test")
    assert other == "unknown", "other settings may put the same games into other splits"


def test_networks_get_the_shortest_names_that_differ() -> None:
    paths = [Path("/a/x/net"), Path("/b/x/net"), Path("/b/other"), EMBEDDED_CHECKPOINT.resolve()]
    assert _shorten_names(paths) == ["a/x/net", "b/x/net", "other", "the embedded network"]
