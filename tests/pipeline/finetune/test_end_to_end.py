"""A tiny loop with real games, training and matches: it ends, its network works in every command,
and kills change nothing."""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from engine.progress import never, silent
from engine.search import SearchConfig
from model import load as load_player
from model.checkpoint import load, read_card
from model.training.config import TrainConfig
from model.training.loop import train
from model.training.monitor import CALIBRATED_PREFIX
from pipeline.dataset.batches import Batches
from pipeline.evaluation.report import PositionFilter, report
from pipeline.finetune.config import FinetuneConfig, GateConfig, default_training
from pipeline.finetune.loop import finetune
from pipeline.finetune.stages import write_supervised
from pipeline.finetune.strength import measure_strength
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.selfplay.config import ExploreConfig
from pipeline.validation.verify import compare_files
from tests.conftest import REPOSITORY
from tests.model.synthetic import TINY
from tests.pipeline.datasets import dump, manifest

pytestmark = pytest.mark.slow

TINY_LOOP = FinetuneConfig(
    generations=2,
    workers=1,
    most_uses=1.0,
    games_share=1.0,
    explore=ExploreConfig(
        games=8,
        width=8,
        search=SearchConfig(algorithm="gumbel", simulations=4, max_considered_actions=4),
        most_plies=40,
    ),
    train=replace(
        default_training(), epochs=1.0, batch_size=16, learning_rate=1e-3, threads=1, device="cpu"
    ),
    gate=GateConfig(games=8, simulations=2, seed_games=4, elo0=-900, elo1=-100, max_top1_drop=1.0),
)
"""The gate accepts nearly every candidate."""

RUN = """
import sys
from pathlib import Path
from pipeline.finetune.loop import finetune
from tests.pipeline.finetune.test_end_to_end import TINY_LOOP

if __name__ == "__main__":  # worker processes import this file
    folder = Path(sys.argv[1])
    print("begun", flush=True)
    finetune(folder / "net", TINY_LOOP, Path(sys.argv[2]), human=[folder / "human"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a human dataset, and a network trained on it for a few steps."""
    folder = tmp_path_factory.mktemp("tiny")
    settings = IngestConfig(test_share=0.2, val_share=0.1)
    ingest([str(dump(folder / "games.pgn", 60))], folder / "human", settings, workers=1)
    batches = Batches([folder / "human"], batch_size=16).from_step
    config = TrainConfig(steps=4, batch_size=16, threads=1, amp="off")
    options: dict[str, Any] = {"validation": None, "data": {}, "progress": silent, "stop": never}
    train(config, TINY, batches, folder / "net", **options)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Run two generations; return their folder and the result."""
    out = folder / "out"
    return out, finetune(folder / "net", TINY_LOOP, out, human=[folder / "human"])


def test_games_are_used_once_and_the_table_has_their_figures(
    uninterrupted: tuple[Path, dict[str, Any]],
) -> None:
    out, result = uninterrupted
    assert (result["ended"], len(result["rows"])) == ("finished", 3)
    rows = list(csv.DictReader((out / "generations.csv").open()))
    assert [row["games"] for row in rows] == ["", "8", "8"]
    assert all(row["top1"] for row in rows)
    state = json.loads((out / "state.json").read_text())
    supervised = read_card(out / "seed")["files"]["weights"]["sha256"]
    for number, row in zip((1, 2), rows[1:], strict=True):
        uses = state["generations"][number]["stages"]["train"]["uses"]
        assert all(use["uses"] <= 1.0 for use in uses if use["names"] == ["games"])
        games = out / "generations" / f"00{number}" / "games"
        results = re.findall(r'\[Result "(.*)"\]', (games / "games.pgn").read_text())
        assert float(row["decisive_share"]) == sum("1/2" not in text for text in results) / 8
        assert compare_files(games) == []
        assert manifest(games)["lineage"]["seed_weights_sha256"] == supervised


def test_accepted_candidates_play_a_control_trained_for_as_many_steps(
    uninterrupted: tuple[Path, dict[str, Any]], folder: Path
) -> None:
    out = uninterrupted[0]
    starts = [out / "seed"]
    (calibrated, card), (network, _) = load(out / "seed"), load(folder / "net")
    for name, weight in network.state_dict().items():
        scale = card["calibration"]["factor"] if name.startswith("value.6.") else 1.0
        assert torch.allclose(calibrated.state_dict()[name].float(), scale * weight.float()), name
    for record in json.loads((out / "state.json").read_text())["generations"][1:]:
        generation = out / "generations" / f"{record['number']:03}"
        arena = record["stages"]["arena"]
        is_accepted = arena["best"]["sprt"]["verdict"] == "H1"
        assert (generation / "control").exists() == (arena["control"] is not None) == is_accepted
        if not is_accepted:
            continue
        candidate, control = (read_card(generation / name) for name in ("checkpoint", "control"))
        assert control["step"] == candidate["step"]
        assert [entry["name"] for entry in control["data"]["datasets"]] == ["human"]
        assert control["data"]["start"]["weights_sha256"] in {
            read_card(start)["files"]["weights"]["sha256"] for start in starts
        }
        assert control["calibration"]["factor"] > 0
        assert arena["control"]["games"] == TINY_LOOP.gate.seed_games
        starts.append(generation / "control")


@pytest.mark.parametrize("factor", [1.0, 0.8])
def test_a_supervised_copy_keeps_its_search_correction_if_its_value_is_not_rescaled(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EMBEDDED_CHECKPOINT, tmp_path / "net")
    card = json.loads((tmp_path / "net" / "checkpoint.json").read_text())
    assert card["human_search"]
    card |= {"calibration": None, "config": {}}
    (tmp_path / "net" / "checkpoint.json").write_text(json.dumps(card))
    figures = {"value_factor": factor, "value_brier": 0.2, f"{CALIBRATED_PREFIX}value_brier": 0.2}
    monkeypatch.setattr("model.training.monitor.validate", lambda *_: figures)
    monkeypatch.setattr("pipeline.finetune.stages.open_validation", lambda *_: lambda: ())
    write_supervised(tmp_path / "net", [], tmp_path / "seed", {"generation": 0})
    written = read_card(tmp_path / "seed")
    assert (written["calibration"]["factor"], "human_search" in written) == (factor, factor == 1.0)


def test_the_best_network_is_an_ordinary_checkpoint(
    uninterrupted: tuple[Path, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    (out, result), best = uninterrupted, uninterrupted[0] / "best"
    assert load(best)[1]["finetune"]["generation"] == result["generation"]
    measured = report(best, positions=folder / "human", rule=PositionFilter(limit=100))
    assert measured["positions"] == 100
    assert "human" in measured["trained_on"] or result["generation"] == 0
    assert load_player(best).choose(chess.Board()).move in chess.Board().legal_moves
    options = {"simulations": (2,), "games": 2, "hand_written": 2, "engine": "none", "nodes": (1,)}
    rows = measure_strength(out, tmp_path, **options)["rows"]
    control = out / "generations" / f"{result['generation']:03}" / "control"
    controls = ["seed 2", "control 2"] if control.exists() else ["seed 2"]
    assert [row["b"] for row in rows] == [*controls, "hand-written 2"]


def test_a_loop_killed_at_random_has_the_same_best_network(
    uninterrupted: tuple[Path, dict[str, Any]], folder: Path
) -> None:
    out, rng, script = folder / "killed", random.Random(1), folder / "run.py"
    script.write_text(RUN)
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    for _ in range(6):
        command = [sys.executable, str(script), str(folder), str(out)]
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=variables, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(rng.uniform(1.0, 12.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    other, expected = uninterrupted
    result = finetune(folder / "net", TINY_LOOP, out, human=[folder / "human"])
    for row, expected_row in zip(result["rows"], expected["rows"], strict=True):
        assert (row["verdict"], row["reason"]) == (expected_row["verdict"], expected_row["reason"])
    assert result["eval"] == expected["eval"]
    for name in ("001/games/games.pgn", "001/games/games.jsonl", "002/games/games.jsonl"):
        resumed, whole = (path / "generations" / name for path in (out, other))
        assert resumed.read_bytes() == whole.read_bytes()
    for name in ("001/checkpoint", "002/checkpoint"):
        resumed, whole = (path / "generations" / name for path in (out, other))
        assert read_card(resumed)["files"]["weights"] == read_card(whole)["files"]["weights"]
