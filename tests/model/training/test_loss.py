"""Targets and losses against one slow reference, which reads a batch as it comes from shards."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from engine.encoding.planes import legal_mask
from engine.encoding.views import NO_LABEL
from model.data.playouts import playout_rows
from model.data.rows import to_bytes
from model.network.decoder import Prediction, index_labels, legal_labels, log_wdl
from model.network.encoder import to_tensor
from model.network.preset import Preset
from model.network.presets import presets
from model.training.config import TrainConfig
from model.training.step import row_losses
from model.training.targets import (
    EVAL_MARGIN,
    NO_EVAL,
    IllegalTargetError,
    resolve_targets,
    wdl_from_centipawns,
    wdl_from_score,
)
from pipeline.dataset.files.columns import BATCH_SENTINELS

ROWS = 48
OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "weights": {"legality_weight": 1.0, "value_weight": 2.0},
    "smoothing": {"label_smoothing": 0.3},
    "temperature": {"visits_temperature": 0.5, "label_smoothing": 0.1},
    "mse": {"value_loss": "mse"},
    "huber": {"value_loss": "huber"},
    "no evaluations": {"eval_blend": 0.0},
    "evaluations alone": {"eval_blend": 1.0},
    "both": {"teach": "both", "search_value_share": 0.4},
    "no results": {"teach": "both", "search_value_share": 0.4, "results": False},
    "nothing of the value": {"eval_blend": 0.0, "results": False},
    "value": {"teach": "value"},
    "moves of people": {"teach": "value", "keep_policy": False},
    "share of none": {"teach": "value", "search_value_share": 0.0},
}
OTHERS = ("chessmarro", "chess-policy", "chess-policy-only", "self-learning")
CASES = [("fianchetto-s", option) for option in OPTIONS]
CASES += [(name, option) for name in OTHERS for option in ("usual", "temperature", "both", "value")]


def mixed_rows() -> dict[str, Any]:
    """Return rows of every kind: searched, evaluated, without a move, and of no game."""
    rows, random = dict(playout_rows(ROWS, seed=7)), np.random.default_rng(1)
    kind = np.dtype([("label", np.uint16), ("share", np.float32)])
    visits = np.empty(ROWS, object)
    for row in np.flatnonzero(random.random(ROWS) < 0.4):
        labels = np.flatnonzero(legal_mask(rows["planes"][row : row + 1])[0])[:6]
        shares = random.random(len(labels)) * (random.random(len(labels)) < 0.8)
        shares[0] = 0.5
        visits[row] = np.array(list(zip(labels, shares, strict=True)), kind)
    searched = np.array([moves is not None for moves in visits])
    nan = np.float32("nan")
    rows["visits"] = visits
    rows["root_value"] = np.where(searched, random.uniform(-1, 1, ROWS), nan).astype(np.float32)
    best = searched & (random.random(ROWS) < 0.5)
    rows["best_value"] = np.where(best, random.uniform(-1, 1, ROWS), nan).astype(np.float32)
    evaluated = random.random(ROWS) < 0.5
    rows["eval"] = np.where(evaluated, random.integers(-2000, 2000, ROWS), NO_EVAL)
    rows["label"] = np.where(random.random(ROWS) < 0.3, NO_LABEL, rows["label"]).astype(np.uint16)
    rows["plies"] = np.where(random.random(ROWS) < 0.3, 0, rows["plies"])
    return rows


def evaluation(centipawns: float) -> list[float]:
    return wdl_from_centipawns(np.array([centipawns]))[0].tolist()


def reference(
    config: TrainConfig,
    preset: Preset,
    batch: Mapping[str, Any],
    at: int,
    answer: tuple[np.ndarray, np.ndarray, float],
    kept: np.ndarray | None,
) -> tuple[float, np.ndarray]:
    """Return a row's loss and its gradient by the logits, in float64, by the definitions."""
    z, wdl, left = answer
    row = {name: column[at] for name, column in batch.items()}
    legal = legal_labels(to_bytes(batch["planes"][at : at + 1]), len(z))[0].numpy()
    everything = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    shares = np.where(legal, everything, 0.0) / everything[legal].sum()

    # the policy's target: visits, else the move that was played, else the policy to keep
    target, searched = np.zeros(len(z)), row["visits"] is not None
    legality = config.legality_weight
    if searched and config.teach != "value":
        for label, share in row["visits"]:
            if share > 0:
                target[index_labels(preset, np.array([label]))[0]] = share ** (
                    1 / config.visits_temperature
                )
        target /= target.sum()
    elif row["label"] != NO_LABEL and not (
        config.teach == "value" and config.keep_policy and searched
    ):
        move = np.array([row["label"]]), np.array([row["promotion"]])
        target[index_labels(preset, *move)[0]] = 1.0
    if target.any():
        smoothing = config.label_smoothing
        target = (1 - smoothing) * target + smoothing * legal / legal.sum()
    else:
        legality = 0.0
        if kept is not None:
            powers = np.exp(kept - kept[legal].max()) * legal
            target = powers / powers.sum()
    logs = np.log(np.where(legal, shares, 1.0))
    loss = -(target * logs).sum() - legality * math.log(everything[legal].sum())
    gradient = target.sum() * shares - target + legality * (everything - shares)

    # the value's target: the result, an evaluation and a search's value by their shares
    has_game = row["plies"] > 0
    parts: list[list[float]] = []
    if has_game and config.results:
        parts.append([float(row["result"] == score) for score in (1, 0, -1)])
    if config.eval_blend and row["eval"] != NO_EVAL:
        share = config.eval_blend if parts else 1.0
        blended = [share * it for it in evaluation(row["eval"])]
        parts = [[(1 - share) * it for it in part] for part in parts] + [blended]
    if config.teach != "policy" and config.search_value_share and searched:
        value = row["root_value"] if math.isnan(row["best_value"]) else row["best_value"]
        share = config.search_value_share if parts and has_game else 1.0
        taught = [share * it for it in wdl_from_score(np.array([value]))[0]]
        parts = [[(1 - share) * it for it in part] for part in parts] + [taught]
    if parts and preset.value != "none":
        wanted = np.sum(parts, 0)
        error = (wdl[0] - wdl[2]) - (wanted[0] - wanted[2])
        if config.value_loss == "auto" and preset.value == "wdl":
            loss -= config.value_weight * (wanted * np.log(wdl)).sum()
        elif config.value_loss == "huber":
            size = abs(error)
            loss += config.value_weight * (size**2 / 2 if size < 0.5 else 0.5 * (size - 0.25))
        else:
            loss += config.value_weight * error**2
    if preset.moves_left and has_game:
        size = abs(left - (float(row["plies"]) - float(row["ply"]))) / 20
        loss += 0.05 * (size**2 / 2 if size < 0.5 else 0.5 * (size - 0.25))
    return loss, gradient


@pytest.mark.parametrize(("name", "option"), CASES)
def test_losses_and_gradients_equal_the_reference(name: str, option: str) -> None:
    preset, batch = presets()[name], mixed_rows()
    config = TrainConfig(steps=1, **OPTIONS[option])
    size = 4672 if preset.moves == "az4672" else 4096
    random = torch.Generator().manual_seed(3)
    logits = (3 * torch.randn(ROWS, size, generator=random)).requires_grad_()
    outputs = {"wdl": 3, "tanh": 1, "none": 0}[preset.value]
    wdl = log_wdl(preset.value, torch.randn(ROWS, outputs, generator=random))
    left = 60 * torch.rand(ROWS, generator=random) if preset.moves_left else None
    kept = torch.randn(ROWS, size, generator=random) if config.teach == "value" else None
    columns = resolve_targets(config, preset, batch, keeps=kept is not None)
    rows = {column: to_tensor(values) for column, values in columns.items()}
    legal = legal_labels(to_bytes(batch["planes"]), size)
    found = row_losses(config, preset.value, Prediction(logits, wdl, left), rows, legal, kept)
    found["loss"].sum().backward()
    assert logits.grad is not None
    for at in range(ROWS):
        answer = (
            logits[at].detach().double().numpy(),
            wdl[at].double().exp().numpy(),
            0.0 if left is None else float(left[at]),
        )
        keeps = None if kept is None else kept[at].double().numpy()
        loss, gradient = reference(config, preset, batch, at, answer, keeps)
        assert float(found["loss"][at].detach()) == pytest.approx(loss, abs=2e-4), at
        assert np.allclose(logits.grad[at].numpy(), gradient, atol=1e-5), at


def test_rows_without_a_legal_move_have_no_loss() -> None:
    logits = torch.randn(2, 4096, requires_grad=True)
    batch = {"planes": np.zeros((2, 77), np.uint64), "label": np.full(2, NO_LABEL)}
    batch |= {"result": np.zeros(2, np.int8), "plies": np.zeros(2, np.int64)}
    preset = presets()["fianchetto-xs"]
    config = TrainConfig(steps=1, label_smoothing=0.1)
    rows = {name: to_tensor(it) for name, it in resolve_targets(config, preset, batch).items()}
    prediction = Prediction(logits, torch.zeros(2, 3).log_softmax(1))
    legal = legal_labels(to_bytes(batch["planes"]))
    loss = row_losses(config, "wdl", prediction, rows, legal)["loss"]
    loss.sum().backward()
    assert loss.tolist() == [0.0, 0.0]
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("where", ["label", "visits"])
def test_an_illegal_target_is_refused(where: str) -> None:
    batch, preset = dict(playout_rows(8, seed=1)), presets()["fianchetto-xs"]
    illegal = int(np.flatnonzero(~legal_mask(batch["planes"][3:4])[0])[0])
    if where == "label":
        batch["label"][3] = illegal
    else:
        batch["visits"] = np.empty(8, object)
        kind = np.dtype([("label", np.uint16), ("share", np.float32)])
        batch["visits"][3] = np.array([(illegal, 0.5)], kind)
    with pytest.raises(IllegalTargetError, match="labels are not legal moves"):
        resolve_targets(TrainConfig(steps=1), preset, batch)


def test_evaluations_become_symmetric_probabilities() -> None:
    assert BATCH_SENTINELS["eval"] == NO_EVAL
    wdl = wdl_from_centipawns(np.array([0, 100, -100, 30_000, -30_000, 1000]))
    assert np.allclose(wdl.sum(1), 1.0)
    assert wdl.min() > 0
    assert np.allclose(wdl[1], wdl[2][::-1])
    assert np.array_equal(wdl[3], wdl[5])
    assert wdl[0, 0] == pytest.approx(wdl[0, 2])
    assert wdl_from_centipawns(np.array([EVAL_MARGIN]))[0, 0] == pytest.approx(0.5)


def test_scores_of_searches_invert_the_probabilities_of_evaluations() -> None:
    chances = wdl_from_centipawns(np.arange(-1000, 1001, 50))
    assert np.allclose(wdl_from_score(chances[:, 0] - chances[:, 2]), chances, atol=1e-9)
    scores = np.array([-1.0, -0.999, -0.5, -0.01, 0.0, 0.3, 0.97, 1.0, 1.02])
    wdl = wdl_from_score(scores)
    assert np.allclose(wdl[:, 0] - wdl[:, 2], scores.clip(-1, 1), atol=3e-6)
    assert np.allclose(wdl.sum(1), 1.0)
    assert wdl.min() > -1e-6
