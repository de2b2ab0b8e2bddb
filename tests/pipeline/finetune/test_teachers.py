"""Teachers measured by an engine of a few lines, by evaluations and by results; kills in the middle of it."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from engine.progress import Tick, never, silent
from engine.search import SearchConfig
from pipeline.errors import ConfigError, Stopped
from pipeline.finetune import engine_scores, loop, outputs, teachers
from pipeline.finetune.choice import EVALUATIONS
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.engine_scores import HeldOut, draw_held_out, score_positions
from pipeline.finetune.loop import finetune
from pipeline.finetune.state import FinetuneError, folder_of
from pipeline.finetune.teachers import TeacherTargets, calibrated_errors, score_targets
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets
from tests.pipeline.finetune.fakes import Script, forked, networks
from tests.pipeline.selfplay.generations import searched

ENGINE = """
import sys, chess
board, lines = chess.Board(), 1
for line in sys.stdin:
    words = line.split()
    if words[:1] == ["uci"]:
        print("option name MultiPV type spin default 1 min 1 max 500\\noption name Threads type spin default 1 min 1 max 4")
        print("option name Hash type spin default 1 min 1 max 64\\nuciok")
    elif words[:1] == ["isready"]:
        print("readyok")
    elif words[:3] == ["setoption", "name", "MultiPV"]:
        lines = int(words[-1])
    elif words[:1] == ["position"]:
        board = chess.Board(" ".join(words[2:8]))
    elif words[:1] == ["go"]:
        moves = sorted(board.legal_moves, key=lambda move: move.uci())[: MOST]
        for number, move in enumerate(moves[:lines], 1):
            print(f"info depth 9 multipv {number} score cp {-10 * number} nodes 1 pv {move.uci()}")
        print(f"bestmove {moves[0].uci()}")
    elif words[:1] == ["quit"]:
        break
    sys.stdout.flush()
"""
"""An engine to which the first move in the order of its letters is worth -10 centipawns, the next -20, and so on."""


def engine(folder: Path, most: str = "None") -> tuple[str, str]:
    """Write the engine and give the words that start it."""
    path = folder / f"engine{most}.py"
    path.write_text(ENGINE.replace("MOST", most), encoding="utf-8")
    return sys.executable, str(path)


@pytest.fixture(scope="module")
def human(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with every third game held out."""
    folder = tmp_path_factory.mktemp("human")
    settings = IngestConfig(val_share=0.3, test_share=0.1)
    ingest([str(datasets.dump(folder / "games.pgn", 60))], folder / "positions", settings, workers=1)
    return folder / "positions"


def test_positions_are_held_out_and_few_of_a_game(human: Path, tmp_path: Path) -> None:
    held = draw_held_out([human], 20)
    assert len(held.games) == len(set(held.fens)) == 20
    assert np.unique(held.games, return_counts=True)[1].max() <= 2
    assert all(chess.Board(fen).legal_moves.count() > 1 for fen in held.fens)
    assert held.fens == draw_held_out([human], 20).fens
    assert np.unique(draw_held_out([human], 10_000).games, return_counts=True)[1].max() == engine_scores.MAX_PER_GAME
    ingest([str(datasets.dump(tmp_path / "games.pgn", 5))], tmp_path / "all", IngestConfig(test_share=0.0), workers=1)
    with pytest.raises(ConfigError, match="no held-out positions"):
        draw_held_out([tmp_path / "all"], 20)


def test_a_position_is_scored_once(human: Path, tmp_path: Path) -> None:
    fens, command = draw_held_out([human], 12).fens, engine(tmp_path)
    asked = 0

    def stop() -> bool:
        return asked >= 5

    def progress(tick: Tick) -> None:
        nonlocal asked
        asked = tick.done

    with pytest.raises(Stopped):
        score_positions(fens, command, tmp_path, progress, stop)
    path = tmp_path / engine_scores.ENGINE_SCORES
    kept = path.read_text().splitlines()
    assert 5 <= len(kept) < 12
    path.write_text("\n".join(kept)[:-9])  # the last line was cut off by a kill
    scores = score_positions(fens, command, tmp_path, silent, never)
    lines = path.read_text().splitlines()
    assert lines[: len(kept) - 1] == kept[:-1]
    assert len(lines) == 13
    for fen, found in zip(fens, scores, strict=True):
        moves = sorted(move.uci() for move in chess.Board(fen).legal_moves)
        assert sorted(found, key=found.__getitem__, reverse=True) == moves
        assert found[moves[0]] == pytest.approx(1 / (1 + np.exp(0.00368208 * 10)), abs=1e-4)
    (tmp_path / "other").mkdir()
    with pytest.raises(FinetuneError, match="it needs MultiPV for all"):
        score_positions(fens, engine(tmp_path, "1"), tmp_path / "other", silent, never)


def held(games: int = 40, evals: int = -32768) -> HeldOut:
    """Return two positions of each game, of which only the columns that are scored are filled."""
    count, rng = 2 * games, np.random.default_rng(1)
    numbers = np.repeat(np.arange(games, dtype=np.uint64), 2)
    nothing = np.zeros((count, 16), dtype=np.uint64)
    return HeldOut(
        nothing, nothing, numbers, np.full(count, evals, np.int16), rng.integers(-1, 2, count).astype(np.int8)
    )


def test_a_policy_loses_what_its_moves_lose_on_average() -> None:
    positions = held()
    scores = [{"a": 0.6, "b": 0.5, "c": 0.1}] * 80
    teachers = [
        TeacherTargets(target="policy", name="bare", simulations=0, policies=[{"a": 0.5, "b": 0.0, "c": 0.5}] * 80),
        TeacherTargets(target="policy", name="visits", simulations=64, policies=[{"a": 0.5, "b": 0.5, "c": 0.0}] * 80),
    ]
    rows, referee = score_targets(teachers, positions, scores)
    assert referee == "engine"
    assert [row["figure"] for row in rows] == [0.25, 0.05]
    assert (rows[1]["difference"], rows[1]["low"], rows[1]["high"]) == (-0.2, -0.2, -0.2)
    rows, referee = score_targets(teachers, positions, None)
    assert referee == "results"
    assert [row["figure"] for row in rows] == [None, None]


def test_a_value_is_compared_after_calibration() -> None:
    rng = np.random.default_rng(2)
    truth_N = rng.uniform(0.1, 0.9, 80)
    logits_N = np.log(truth_N / (1 - truth_N)) + rng.normal(0, 0.3, 80)
    games_N = np.repeat(np.arange(40, dtype=np.uint64), 2)
    fair, sure = (1 / (1 + np.exp(-scale * logits_N)) for scale in (1.0, 3.0))
    factor, error_N = calibrated_errors(fair, truth_N, games_N)
    other, same_N = calibrated_errors(sure, truth_N, games_N)
    assert factor == pytest.approx(3 * other, abs=0.01)
    assert np.allclose(error_N, same_N, atol=1e-6)
    assert np.isfinite(calibrated_errors(np.repeat([0.0, 1.0], 40), truth_N, games_N)[1]).all()


def test_evaluations_are_the_referee_without_an_engine_and_a_teacher_with_one() -> None:
    rng = np.random.default_rng(3)
    positions = held()
    evals = rng.integers(-300, 300, 80).astype(np.int16)
    positions = replace(positions, evals=evals)
    truth_N = engine_scores.expected_score(evals.astype(float))
    teachers = [
        TeacherTargets(
            target="value", name="bare", simulations=0, values=np.clip(truth_N + rng.normal(0, 0.2, 80), 0.05, 0.95)
        ),
        TeacherTargets(target="value", name="visits: best move", simulations=64, values=truth_N),
    ]
    rows, referee = score_targets(teachers, positions, None)
    assert referee == "evaluations"
    assert [row["teacher"] for row in rows] == ["bare", "visits: best move", EVALUATIONS]
    assert rows[1]["figure"] < 0.01 < rows[0]["figure"]
    assert rows[1]["high"] < 0
    rows, referee = score_targets(teachers, positions, [{"a": float(one)} for one in truth_N])
    assert (referee, rows[2]["figure"] < 0.01) == ("engine", True)


def test_without_an_engine_values_are_compared_by_their_brier_score() -> None:
    positions = held()
    values = (positions.results + 1) / 2 * 0.5 + 0.25
    teachers = [
        TeacherTargets(target="value", name="bare", simulations=0, values=np.full(80, 0.5)),
        TeacherTargets(target="value", name="hand-written: best move", simulations=1024, values=values),
    ]
    rows, _ = score_targets(teachers, positions, None)
    assert rows[0]["figure"] == pytest.approx(float(np.square((positions.results + 1) / 2 - 0.5).mean()), abs=1e-4)
    assert rows[1]["figure"] < 0.02
    assert rows[1]["high"] < 0


# ---------------------------------------------------------------- in the loop

LOOP = FinetuneConfig(
    generations=1, explore=searched(source="games", count=24, width=8, search=SearchConfig(simulations=6))
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare teachers on few positions, by few simulations."""
    monkeypatch.setattr(teachers, "POSITIONS", 24)
    monkeypatch.setattr(outputs, "draw_curves", lambda rows: b"picture")


def run(made: Path, human: Path, out: Path, referee: tuple[str, str], progress: Callable[[Tick], None] = silent) -> Any:
    stages = Script(made).stages()
    return finetune(made / "0", LOOP, out, human=[human], referee=" ".join(referee), stages=stages, progress=progress)


@pytest.mark.usefixtures("small")
def test_killed_while_teachers_are_compared_a_loop_chooses_the_same(human: Path, tmp_path: Path) -> None:
    made, command = networks(tmp_path / "made", 2), engine(tmp_path)
    for unit, at in (("positions scored", 3), ("positions scored", 17), ("teachers compared", 2)):

        def kill(tick: Tick, unit: str = unit, at: int = at) -> None:
            if tick.stage == "generation 1: teachers" and tick.unit == unit and tick.done >= at:
                os.kill(os.getpid(), signal.SIGKILL)

        assert forked(lambda kill=kill: run(made, human, tmp_path / "killed", command, kill)) == -signal.SIGKILL  # type: ignore[misc]
        assert not (folder_of(tmp_path / "killed", 0) / teachers.TEACHERS).exists()
    kept = (tmp_path / "killed" / engine_scores.ENGINE_SCORES).read_text().splitlines()
    assert len(kept) == 24
    killed = run(made, human, tmp_path / "killed", command)
    assert (tmp_path / "killed" / engine_scores.ENGINE_SCORES).read_text().splitlines() == kept
    whole = run(made, human, tmp_path / "whole", command)
    assert killed["teachers"] == whole["teachers"]
    assert "difference, 95 %" in whole["text"]
    told = json.loads((folder_of(tmp_path / "whole", 0) / teachers.TEACHERS).read_text())
    assert {row["teacher"] for row in told["rows"]} >= {
        "bare",
        "visits",
        "visits: best move",
        "hand-written: best move",
    }
    assert (told["referee"], told["positions"]) == ("engine", 24)
    assert told["choice"]["policy"] == "none"


@pytest.mark.usefixtures("small")
def test_a_finished_comparison_is_not_made_again(human: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = networks(tmp_path / "made", 2)
    first = run(made, human, tmp_path / "out", ("no-such", "engine"))
    assert first["teachers"]["referee"] == "evaluations"
    monkeypatch.setattr(teachers, "draw_held_out", None)
    assert run(made, human, tmp_path / "out", ("no-such", "engine"))["teachers"] == first["teachers"]
    (folder_of(tmp_path / "out", 0) / teachers.TEACHERS).write_text("{}")
    with pytest.raises(FinetuneError, match="delete it to compare teachers again"):
        run(made, human, tmp_path / "out", ("no-such", "engine"))


@pytest.mark.usefixtures("small")
def test_teachers_are_not_compared_where_the_user_has_set_them(
    human: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = networks(tmp_path / "made", 2)
    monkeypatch.setattr(loop, "choose_teachers", None)
    config = replace(LOOP, train=replace(LOOP.train, teach="value"))
    result = finetune(made / "0", config, tmp_path / "out", human=[human], stages=Script(made).stages())
    assert result["teachers"] is None


def test_each_network_has_its_own_teachers(human: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed learns from the hand-written player, generation 1 from its own search: the buffer keeps them apart."""
    asked = list[tuple[str, str]]()

    def choose(checkpoint: Path, human: Any, explore: Any, out: Path, scored: Path, **_: Any) -> teachers.Teachers:
        asked.append((out.name, scored.name))
        seed = out.name == "000"
        choice = {
            "policy": "none" if seed else "visits",
            "value": "hand_written" if seed else "best_move",
            "algorithm": "puct",
            "simulations": 64,
            "policy_reason": "",
            "value_reason": "",
        }
        found = {"format_version": 1, "referee": "results", "engine": "", "positions": 1, "games": 1, "rows": []}
        return teachers.Teachers.model_validate(found | {"choice": choice})

    monkeypatch.setattr(loop, "choose_teachers", choose)
    monkeypatch.setattr(outputs, "draw_curves", lambda rows: b"picture")
    script, made = Script(networks(tmp_path / "made", 4)), tmp_path / "made"
    config = replace(LOOP, generations=3)
    finetune(made / "0", config, tmp_path / "out", human=[human], stages=script.stages())
    buffers = {number: set(buffer) for number, stage, _, buffer in script.seen if stage == "train"}
    assert buffers == {1: {"001"}, 2: {"002"}, 3: {"002", "003"}}
    assert asked == [("000", "out"), ("001", "out"), ("001", "out")]
