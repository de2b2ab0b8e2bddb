"""The correction of a policy by a search: its fit, and its table in a report."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.board.position import to_board
from engine.encoding.planes import label_from_move
from model.checkpoint import CARD_FILE, CardError, CheckpointError, read_card, save_human_search
from model.inference.onnx_evaluator import OnnxError, find_export
from model.inference.player import load
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.columns import EARLIER_MOVES
from pipeline.dataset.files.stored_planes import rows_to_positions
from pipeline.errors import ConfigError, Stopped
from pipeline.evaluation import charts
from pipeline.evaluation.calibrate import (
    CURVE_RATINGS,
    PADDING_LOG_PROBABILITY,
    PlayedMoves,
    calibrate,
    cross_entropy,
    fit_correction,
)
from pipeline.evaluation.render import format_report, render_report
from pipeline.evaluation.report import PositionFilter, report
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.pipeline.datasets import random_game

GAMES = 40


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ingest random games of both colors, with en-passant captures and lost castling rights."""
    folder = tmp_path_factory.mktemp("human")
    pgn = folder / "games.pgn"
    pgn.write_text("\n".join(random_game(seed, 20) for seed in range(GAMES)))
    ingest([str(pgn)], folder / "out", IngestConfig(test_share=0.1, val_share=0.1), workers=1)
    return folder / "out"


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Copy the embedded network without its corrections."""
    shutil.copytree(EMBEDDED_CHECKPOINT, tmp_path / "network")
    card = json.loads((tmp_path / "network" / CARD_FILE).read_text())
    card.pop("human_search", None)
    (tmp_path / "network" / CARD_FILE).write_text(json.dumps(card))
    return tmp_path / "network"


def test_the_fit_finds_the_weights_and_powers_that_moves_were_drawn_with() -> None:
    random = np.random.default_rng(1)
    count, moves, true = 40_000, 12, np.array([0.0, 0.0, 3.0, 6.0, 9.0])
    ratings = random.integers(800, 2800, count)
    logits, values = random.normal(size=(count, moves)), random.uniform(-1, 1, (count, moves))
    logits[:, 9:], values[:, 9:] = PADDING_LOG_PROBABILITY, 0.0
    policies = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    weight = np.interp(ratings, CURVE_RATINGS, true)[:, None]
    powers = [1.0, 1.1, 0.9, 0.8, 1.2]
    power = np.interp(ratings, CURVE_RATINGS, powers)[:, None]
    drawn = (power * policies + weight * values + random.gumbel(size=logits.shape)).argmax(axis=1)
    fit = PlayedMoves(ratings, policies, values, drawn)
    found, sharpness = fit_correction(fit)
    assert found == pytest.approx(true.tolist(), abs=0.35)
    assert sharpness == pytest.approx(powers, abs=0.08)
    best, bare = cross_entropy(fit, true.tolist(), powers), cross_entropy(fit, [0.0] * 5, [1.0] * 5)
    assert cross_entropy(fit, found, sharpness) <= best < bare - 0.1
    some = np.flatnonzero((ratings > 1150) & (ratings < 1790))[:4000]
    middle = fit_correction(PlayedMoves(*(column[some] for column in fit)))
    for curve in middle:
        assert curve[3:] == [curve[2]] * 2, "no position is near the ratings 2200 and 2600"
    opposite = PlayedMoves(*(column[:4000] for column in fit._replace(values=-values)))
    assert fit_correction(opposite)[0] == pytest.approx([0.0] * 5, abs=1e-3), "a negative weight"


def test_a_report_measures_the_correction_that_calibrate_stored(
    network: Path, positions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="run `fianchetto calibrate` first"):
        report(network, positions=positions, rule=PositionFilter(limit=5), simulations=8)
    found = calibrate(network, positions, split="val", rows=20, simulations=8)
    assert found["positions"] == 20
    assert found["searched_cross_entropy"] <= found["cross_entropy"] + 1e-9
    assert read_card(network)["human_search"] == {
        name: found[name] for name in ("simulations", "likelihood", "strength")
    }
    # store a large weight, since the fit to random games is close to 0
    strong = {"ratings": [400], "weights": [3.0], "sharpness": [1.0]}
    entry = {"simulations": 8, "likelihood": strong, "strength": strong}
    save_human_search(network, read_card(network)["files"]["weights"]["sha256"], entry)
    measured = report(network, positions=positions, rule=PositionFilter(limit=0), simulations=8)
    rows = measured["human_search"]["rows"]
    total = rows[-1]
    assert (total["band"], total["positions"]) == ("all", measured["positions"])
    assert total["top1"] == measured["top1"]
    assert total["cross_entropy"] == pytest.approx(measured["cross_entropy"])
    assert total["cross_entropy_difference"] == pytest.approx(
        total["searched_cross_entropy"] - total["cross_entropy"], abs=1e-5
    )
    bands = [row["positions"] for row in rows if row["band"] not in ("all", "1800 and on")]
    assert sum(bands) == total["positions"]
    expected = player_cross_entropy(network, positions)
    assert total["searched_cross_entropy"] == pytest.approx(expected, abs=2e-3)
    monkeypatch.setattr(charts, "draw_bars", lambda *_, **__: "")  # to save time
    page = render_report(measured).decode()
    assert "correction by a search of 8 simulations" in page
    assert f"{100 * total['top1_difference']:+.1f}" in page
    assert "policy corrected by 8 simulations" in format_report(measured)


def player_cross_entropy(network: Path, positions: Path) -> float:
    """Return the cross-entropy of the test split under the player's policy, board by board."""
    player, losses = load(network, amp="off"), list[float]()
    for batch in Batches([positions], "test", columns=(*HUMAN_COLUMNS, *EARLIER_MOVES)).read_rows():
        for row, position in enumerate(rows_to_positions(batch)):
            board = to_board(position)
            columns = {name: np.array([batch[name][row]]) for name in player.evaluator.columns}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("engine.player.policy.read_columns", lambda *_, known=columns: known)
                shares = player.choose(board, simulations=8).probabilities
            label = int(batch["label"][row])
            (played,) = (move for move in shares if label_from_move(move, board.turn) == label)
            losses.append(-np.log(shares[played]))
    return float(np.mean(losses))


def test_a_stopped_calibration_stores_nothing(network: Path, positions: Path) -> None:
    before = (network / CARD_FILE).read_bytes()
    with pytest.raises(Stopped, match="nothing is stored"):
        calibrate(network, positions, split="val", rows=9, simulations=2, stop=lambda: True)
    assert (network / CARD_FILE).read_bytes() == before


CURVE = {"ratings": [1100, 2000], "weights": [0.0, 3.0], "sharpness": [1.0, 1.0]}


def test_a_hostile_correction_is_refused_by_every_reader_of_the_card(network: Path) -> None:
    card = json.loads((network / CARD_FILE).read_text())
    for curve, reason in (
        (CURVE | {"weights": [0.0, -1.0]}, "weights.1"),
        (CURVE | {"ratings": [2000, 1100]}, "ratings must be in ascending order"),
        (CURVE | {"ratings": [1100]}, "must have the same length"),
        ("__import__('os')", "likelihood"),
    ):
        card["human_search"] = {"simulations": 64, "likelihood": curve, "strength": CURVE}
        (network / CARD_FILE).write_text(json.dumps(card))
        with pytest.raises(CardError, match=reason):
            read_card(network)
        with pytest.raises(OnnxError, match=reason):
            find_export(network)


def test_a_correction_of_other_weights_is_not_stored(network: Path) -> None:
    entry = {"simulations": 64, "likelihood": CURVE, "strength": CURVE}
    with pytest.raises(CheckpointError, match="new weights"):
        save_human_search(network, "0" * 64, entry)
