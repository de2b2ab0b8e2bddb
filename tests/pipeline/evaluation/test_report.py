"""What a report is of: a sample drawn across all games, however they are given."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import chess.pgn
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.progress import silent
from model.network.presets import preset
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.join import JoinConfig, join
from pipeline.defs.tasks import probe
from pipeline.errors import ConfigError
from pipeline.evaluation.rating_matrix import BandSample
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import Rule, _measure_matrix, _seen_in_training, report
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.training.train import describe_data
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.pipeline.datasets import random_game

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

NETWORK = REPOSITORY / "datasets" / "embedded"
GAMES = 120


@pytest.fixture(scope="module")
def pgn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write many games."""
    path = tmp_path_factory.mktemp("games") / "many.pgn"
    path.write_text("\n".join(random_game(seed, 16) for seed in range(GAMES)))
    return path


def test_a_limit_is_a_sample_of_positions_across_all_games(pgn: Path) -> None:
    """60 positions of 120 games that have many each: nearly each is of a game of its own."""
    found = report(NETWORK, pgn=pgn, rule=Rule(limit=60), players=False)
    assert found["positions"] == 60
    assert found["games"] > 36, "60 draws from 120 games meet 47 of them, most often"
    assert "a random sample of at most 60 positions of all games" in found["rule"]
    assert "from ply 10 on" in found["common_rule"]["rule"]


def test_a_rule_says_which_rows_it_counts(pgn: Path) -> None:
    found = report(NETWORK, pgn=pgn, rule=Rule(min_ply=14, limit=0), players=False)
    assert "from ply 14 on of every game" in found["common_rule"]["rule"]
    with pgn.open() as file:
        games = iter(lambda: chess.pgn.read_game(file), None)
        plies = [len(list(game.mainline_moves())) - 14 for game in games if game is not None]
    late = [count for count in plies if count > 0]
    assert (found["positions"], found["games"]) == (sum(late), len(late))


def test_positions_that_cannot_be_counted_are_refused(tmp_path: Path, pgn: Path) -> None:
    with pytest.raises(ConfigError, match=r"lower min_ply, or raise limit$"):
        report(NETWORK, pgn=pgn, rule=Rule(min_ply=200, limit=2), players=False)
    board = chess.Board()
    board.push_san("e4")
    row = {"fen": [board.fen()] * 12, "cp": [9] * 12, "mate": [None] * 12, "move": [None] * 12}
    pq.write_table(pa.table(row), tmp_path / "evals.parquet")
    config = IngestConfig(test_share=0.9, val_share=0.0)
    ingest([str(tmp_path / "evals.parquet")], tmp_path / "out", config, workers=1)
    with pytest.raises(ConfigError, match=r"none of the .* positions has a known move"):
        report(NETWORK, positions=tmp_path / "out")
    assert probe(NETWORK, tmp_path / "out", "test", 64) == {"loss": None, "rows": 0}


def test_a_matrix_of_ratings_that_cannot_be_measured_is_one_line(pgn: Path, tmp_path: Path) -> None:
    """Of a network that reads no ratings, and of hidden ratings."""
    unrated = cast("NetworkEvaluator", SimpleNamespace(preset=preset("fianchetto-xs")))
    found = _measure_matrix(unrated, BandSample(1), True, silent)
    assert found == {"words": "skipped: fianchetto-xs is not conditioned on ratings"}
    hidden = report(NETWORK, pgn=pgn, rule=Rule(limit=20), players=False, rating_rows=5)
    write_report(hidden, tmp_path / "out")
    for name in ("report.html", "report.txt"):
        assert "kipped: the players" in (tmp_path / "out" / name).read_text()
    assert "rating_matrix" not in hidden["details"]


def test_a_training_set_of_one_dataset_is_reported_with_links(pgn: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dumps" / "many.pgn"
    dump.parent.mkdir()
    dump.write_bytes(pgn.read_bytes())
    ingest([str(dump)], tmp_path / "positions" / "many", IngestConfig(test_share=0.5), workers=1)
    join([tmp_path / "positions" / "many"], tmp_path / "sets" / "one", JoinConfig(hold_out="none"))
    found = report(NETWORK, positions=tmp_path / "sets" / "one", rule=Rule(limit=50))
    assert "the test split of one" in found["compared"]
    assert any("link" in row for rows in found["details"]["boards"].values() for row in rows)


def test_games_that_a_network_was_trained_on_are_recognised(tmp_path: Path) -> None:
    dump = datasets.dump(tmp_path / "games.pgn", 40)
    first, other = tmp_path / "first", tmp_path / "other"
    ingest([str(dump)], first, IngestConfig(chunk_mib=1, test_share=0.2), workers=1)
    ingest([str(dump)], other, IngestConfig(chunk_mib=1, test_share=0.3), workers=1)
    card = {"data": describe_data([first])}
    assert [_seen_in_training(card, Dataset.open(first), split) for split in ("train", "test")] == [
        "yes",
        "no",
    ]
    assert _seen_in_training(card, Dataset.open(other), "test") == "unknown", (
        "other settings may have moved the games"
    )
