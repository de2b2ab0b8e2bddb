"""What a report is of: a sample drawn across all games, however they are given."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import chess.pgn
import pytest
import torch

from engine.progress import Tick, silent
from model.network.presets import preset
from pipeline.dataset import position_keys
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.join import JoinConfig, join
from pipeline.errors import ConfigError
from pipeline.evaluation.rating_matrix import BandSample
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import Rule, _How, _measure_matrix, _seen, report, reports
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


@pytest.mark.parametrize("given", ["pgn", "positions"])
def test_a_limit_is_a_sample_of_positions_across_all_games(
    given: str, pgn: Path, tmp_path: Path
) -> None:
    """60 positions of 120 games that have many each: nearly each is of a game of its own, and all
    plies are there."""
    words: dict[str, Any] = {"pgn": pgn}
    if given == "positions":
        ingest([str(pgn)], tmp_path / "out", IngestConfig(test_share=0.0, val_share=0.0), workers=1)
        words = {"positions": tmp_path / "out", "split": "train"}
    found = report(NETWORK, rule=Rule(limit=60), **words)
    assert found["positions"] == 60
    assert found["games"] > 36, "60 draws from 120 games meet 47 of them, most often"
    assert "a random sample of at most 60 positions of all games" in found["rule"]
    assert (
        report(NETWORK, rule=Rule(limit=60), **words)["cross_entropy"] == found["cross_entropy"]
    ), "the same sample"


def test_several_networks_look_their_positions_up_once_and_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "few.pgn").write_text("\n".join(random_game(seed, 16) for seed in range(20)))
    ingest([str(tmp_path / "few.pgn")], tmp_path / "out", IngestConfig(test_share=0.5), workers=1)
    read: list[int] = []

    def row_groups(*arguments: Any) -> Any:
        read.append(1)
        return real(*arguments)

    real, ticks = position_keys.row_groups, list[Tick]()
    monkeypatch.setattr(position_keys, "row_groups", row_groups)
    found = reports(
        [NETWORK, NETWORK], positions=tmp_path / "out", rule=Rule(limit=30), progress=ticks.append
    )
    first, second = found["reports"]
    assert first["top1_not_in_train"] == second["top1_not_in_train"] is not None
    assert len(read) == 1
    looked = [tick for tick in ticks if "train" in tick.stage]
    assert looked[-1].done == looked[-1].total > 0


def test_without_a_limit_every_position_of_the_file_counts(pgn: Path) -> None:
    with pgn.open() as file:
        games = iter(lambda: chess.pgn.read_game(file), None)
        plies = sum(len(list(game.mainline_moves())) for game in games if game is not None)
    found = report(NETWORK, pgn=pgn, rule=Rule(limit=plies), players=False)
    assert (found["positions"], found["games"]) == (plies, GAMES)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(min_ply=12, limit=60), "from ply 12 on.*a random sample of at most 60 positions"),
        (Rule(min_ply=4), "from ply 10 on of every game"),
    ],
)
def test_the_common_rule_says_which_rows_it_is_of(rule: Rule, words: str, pgn: Path) -> None:
    """The report's own rule may count fewer rows than the common one: its figures are then of
    those."""
    found = report(NETWORK, pgn=pgn, rule=rule, players=False)
    assert re.search(words, found["common_rule"]["rule"])


def test_a_sample_without_a_row_that_counts_says_what_to_raise(tmp_path: Path) -> None:
    (tmp_path / "one.pgn").write_text(random_game(1, 16))
    with pytest.raises(ConfigError, match=r"lower min_ply, or raise limit$"):
        report(NETWORK, pgn=tmp_path / "one.pgn", rule=Rule(min_ply=200, limit=2), players=False)


def test_a_matrix_of_ratings_that_cannot_be_measured_is_one_line(pgn: Path, tmp_path: Path) -> None:
    """Of a network that reads no ratings, and of hidden ratings."""
    unrated = cast("NetworkEvaluator", SimpleNamespace(preset=preset("fianchetto-xs")))
    found = _measure_matrix(unrated, BandSample(1), _How(Rule(), True, 1), silent)
    assert found == {"words": "skipped: fianchetto-xs is not conditioned on ratings"}
    hidden = report(NETWORK, pgn=pgn, rule=Rule(limit=20), players=False, rating_rows=5)
    write_report(hidden, tmp_path / "out")
    for name in ("report.html", "report.txt"):
        assert "kipped: the players" in (tmp_path / "out" / name).read_text()
    assert "rating_matrix" not in hidden["details"]


def test_the_exported_network_answers_where_it_agrees_with_torch(
    pgn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = shutil.copytree(NETWORK, tmp_path / "bare", ignore=shutil.ignore_patterns("model.onnx"))
    words: dict[str, Any] = {"pgn": pgn, "rule": Rule(limit=400)}
    plain = report(NETWORK, **words)
    assert plain["evaluated_by"] == "torch", "too few positions to compare first"
    monkeypatch.setattr("pipeline.evaluation.report.CHECKED", 100)
    monkeypatch.setattr("pipeline.evaluation.report.TOLERANCE", 0.2)
    monkeypatch.setattr("model.inference.evaluator.dtype_for", lambda *_: torch.float32)
    exported = report(NETWORK, **words)
    assert exported["evaluated_by"].startswith("the exported network in int8 (top-1 ")
    assert 0 < abs(exported["cross_entropy"] - plain["cross_entropy"]) < 0.02
    assert report(bare, **words)["evaluated_by"] == "torch"
    assert [one["evaluated_by"] for one in reports([NETWORK, bare], **words)["reports"]] == [
        "torch",
        "torch",
    ]
    monkeypatch.setattr("pipeline.evaluation.report.TOLERANCE", -1.0)
    assert report(NETWORK, **words)["evaluated_by"].startswith(
        "torch (the exported network's top-1 differs by "
    )


def test_a_training_set_of_one_dataset_is_reported_with_links(pgn: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dumps" / "many.pgn"
    dump.parent.mkdir()
    dump.write_bytes(pgn.read_bytes())
    ingest([str(dump)], tmp_path / "positions" / "many", IngestConfig(test_share=0.5), workers=1)
    join([tmp_path / "positions" / "many"], tmp_path / "sets" / "one", JoinConfig(hold_out="none"))
    found = report(NETWORK, positions=tmp_path / "sets" / "one", rule=Rule(limit=50))
    assert "the test split of one" in found["headline"]
    assert any("link" in row for rows in found["details"]["boards"].values() for row in rows)


def test_games_that_a_network_was_trained_on_are_recognised(tmp_path: Path) -> None:
    dump = datasets.dump(tmp_path / "games.pgn", 40)
    first, other = tmp_path / "first", tmp_path / "other"
    ingest([str(dump)], first, IngestConfig(chunk_mib=1, test_share=0.2), workers=1)
    ingest([str(dump)], other, IngestConfig(chunk_mib=1, test_share=0.3), workers=1)
    card = {"data": describe_data([first])}
    assert [_seen(card, Dataset.open(first), split) for split in ("train", "test")] == ["yes", "no"]
    assert _seen(card, Dataset.open(other), "test") == "unknown", (
        "other settings may have moved the games"
    )
