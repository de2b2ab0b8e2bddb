"""The comparison of a network with the hand-written player, and the settings that it leads to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.board.position import to_board
from engine.search import SearchConfig
from pipeline.dataset.files.stored_planes import rows_to_positions
from pipeline.errors import ConfigError
from pipeline.finetune import loop, teacher
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.loop import finetune
from pipeline.finetune.state import TeacherComparison
from pipeline.finetune.teacher import (
    adapt_to_hand_written,
    calibrate_halves,
    compare_values,
    draw_held_out,
)
from tests.pipeline.finetune.fakes import Script, write_networks
from tests.pipeline.selfplay.generations import make_dataset, searched

DEFAULT = FinetuneConfig(generations=1)
LOOP = replace(
    DEFAULT, explore=searched(source="games", count=24, width=8, search=SearchConfig(simulations=6))
)


@pytest.fixture(scope="module")
def human(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset with a third of its games held out for validation."""
    return make_dataset(tmp_path_factory.mktemp("human"), 60, val_share=0.3, test_share=0.1)


def test_held_out_positions_come_from_many_games(human: Path, tmp_path: Path) -> None:
    rows = draw_held_out([human], 20)
    positions = rows_to_positions(rows)
    assert len(rows["game"]) == len({position.tobytes() for position in positions}) == 20
    assert all(to_board(position).legal_moves.count() > 1 for position in positions)
    assert (positions == rows_to_positions(draw_held_out([human], 20))).all()
    most = np.unique(draw_held_out([human], 10_000)["game"], return_counts=True)[1].max()
    assert most == teacher.MAX_POSITIONS_PER_GAME
    with pytest.raises(ConfigError, match="there are no held-out positions"):
        draw_held_out([make_dataset(tmp_path, 5, test_share=0.0)], 20)


def test_overconfident_values_are_calibrated() -> None:
    rng = np.random.default_rng(2)
    logits_N = rng.normal(0, 1.5, 20_000)
    games_N = np.arange(20_000, dtype=np.uint64)
    fair_N, overconfident_N = (1 / (1 + np.exp(-scale * logits_N)) for scale in (1.0, 3.0))
    truth_N = (rng.random(20_000) < fair_N).astype(float)
    assert np.abs(calibrate_halves(overconfident_N, truth_N, games_N) - fair_N).max() < 0.03
    assert np.isfinite(calibrate_halves(np.repeat([0.0, 1.0], 10_000), truth_N, games_N)).all()


@pytest.mark.parametrize("evaluated", [True, False])
def test_the_hand_written_player_teaches_if_it_errs_less(evaluated: bool) -> None:
    rng = np.random.default_rng(3)
    evals = rng.normal(0, 300, 400).round()
    truth_N = 1 / (1 + np.exp(-teacher.LICHESS_SLOPE * evals))
    results = np.repeat(2 * (rng.random(200) < truth_N[::2]).astype(np.int8) - 1, 2).astype(np.int8)
    known = evals.astype(np.int16) if evaluated else np.full(400, -32768, np.int16)
    good, bad = truth_N, np.clip(truth_N + rng.normal(0, 0.4, 400), 0.05, 0.95)
    rows = {"eval": known, "result": results, "game": np.repeat(np.arange(200), 2)}
    comparison = compare_values(bad, good, rows)
    assert comparison.truth == ("evaluations" if evaluated else "results")
    assert comparison.hand_written_teaches or not evaluated
    assert comparison.hand_written < comparison.network
    assert not compare_values(good, bad, rows).hand_written_teaches
    assert not compare_values(good, good, rows).hand_written_teaches


def test_the_hand_written_teacher_changes_only_settings_with_default_values() -> None:
    usual = adapt_to_hand_written(DEFAULT, rows=60_000)
    assert (usual.train.teach, usual.explore.explorer) == ("value", "hand-written")
    assert (usual.explore.search.algorithm, usual.explore.search.simulations) == ("puct", 64)
    assert (usual.explore.count, usual.human_share, usual.train.results) == (120_000, 0.15, False)
    counts = {name: source.count for name, source in usual.sources.items()}
    assert counts == {"people": 40_000, "near": 80_000}
    assert usual.gate == DEFAULT.gate
    many = adapt_to_hand_written(DEFAULT, rows=4_000_000)
    assert (many.explore.count, many.near_share, many.train.learning_rate) == (500_000, 0.3, 1e-3)
    assert (usual.train.keep_policy, many.train.keep_policy) == (True, False)
    for share, expected in ((0.5, 80_000), (0.9, 120_000)):
        set_share = adapt_to_hand_written(replace(DEFAULT, near_share=share), rows=60_000)
        assert set_share.explore.count == expected
        assert set_share.sources["people"].count <= 40_000, "some positions repeat"
    with_games = adapt_to_hand_written(replace(DEFAULT, games_share=0.5), rows=60_000).sources
    assert (with_games["people"].count, with_games["near"].count) == (20_000, 40_000)
    search = replace(DEFAULT.explore.search, simulations=512)
    custom = replace(
        DEFAULT,
        human_share=0.3,
        explore=replace(DEFAULT.explore, count=1000, search=search),
        train=replace(DEFAULT.train, learning_rate=1e-4),
    )
    config = adapt_to_hand_written(custom, rows=60_000)
    kept = config.human_share, config.explore.count, config.train.learning_rate
    assert kept == (0.3, 1000, 1e-4)
    assert (config.explore.search, config.train.results) == (search, False)


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    return write_networks(tmp_path / "networks", 4)


def run_loop(networks: Path, human: Path, out: Path, config: FinetuneConfig = LOOP) -> Any:
    return finetune(networks / "0", config, out, human=[human], stages=Script(networks).stages())


def test_teachers_are_compared_once_and_not_if_the_user_chose_one(
    networks: Path, human: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "TEACHER_SIMULATIONS", 4)
    monkeypatch.setattr(teacher, "MAX_HELD_OUT_POSITIONS", 24)
    first = run_loop(networks, human, tmp_path / "out")
    assert first["teacher"]["truth"] == "evaluations"
    assert "held-out positions" in first["text"]
    assert run_loop(networks, human, tmp_path / "again")["teacher"] == first["teacher"]
    monkeypatch.setattr(loop, "compare_teachers", None)
    assert run_loop(networks, human, tmp_path / "out")["teacher"] == first["teacher"]
    chosen = replace(LOOP, train=replace(LOOP.train, teach="value"))
    assert run_loop(networks, human, tmp_path / "chosen", chosen)["teacher"] is None


def test_each_best_network_is_compared_and_the_buffer_has_rows_of_one_teacher(
    networks: Path, human: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = list[str]()

    def compare(checkpoint: Path, *_: Any) -> TeacherComparison:
        compared.append(checkpoint.parent.name)
        figures: dict[str, Any] = {"network": 0.05, "hand_written": 0.03, "low": -0.03}
        figures["high"] = -0.01 if checkpoint.name == "seed" else 0.01
        return TeacherComparison(truth="results", positions=400, games=63, **figures)

    monkeypatch.setattr(loop, "compare_teachers", compare)
    script, config = Script(networks), replace(LOOP, generations=3)
    finetune(networks / "0", config, tmp_path / "out", human=[human], stages=script.stages())
    buffers = {number: set(buffer) for number, stage, _, buffer in script.calls if stage == "train"}
    assert buffers == {1: {"001"}, 2: {"002"}, 3: {"002", "003"}}
    assert compared == ["out", "001"]
