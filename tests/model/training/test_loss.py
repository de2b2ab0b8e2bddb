"""Targets and losses equal a slow reference, which computes them from the columns of shards."""

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
    find_visited,
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
    "no value targets": {"eval_blend": 0.0, "results": False},
    "value": {"teach": "value"},
    "value and human moves": {"teach": "value", "keep_policy": False},
    "no search values": {"teach": "value", "search_value_share": 0.0},
}
VISIT = np.dtype([("label", np.uint16), ("share", np.float32)])
OTHERS = ("chessmarro", "chess-policy", "chess-policy-only", "self-learning")
CASES = [("fianchetto-s", option) for option in OPTIONS]
CASES += [(name, option) for name in OTHERS for option in ("usual", "temperature", "both", "value")]


def mixed_rows() -> dict[str, Any]:
    """Return rows of which some are searched or evaluated, and some have no move or no game."""
    rows, random = dict(playout_rows(ROWS, seed=7)), np.random.default_rng(1)
    visits = np.empty(ROWS, object)
    for row in np.flatnonzero(random.random(ROWS) < 0.4):
        labels = np.flatnonzero(legal_mask(rows["planes"][row : row + 1])[0])[:6]
        shares = random.random(len(labels)) * (random.random(len(labels)) < 0.8)
        shares[0] = 0.5
        visits[row] = np.array(list(zip(labels, shares, strict=True)), VISIT)
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


def reference_loss(
    config: TrainConfig,
    preset: Preset,
    batch: Mapping[str, Any],
    at: int,
    outputs: tuple[np.ndarray, np.ndarray, float],
    reference_logits: np.ndarray | None,
) -> tuple[float, np.ndarray]:
    """Return the loss of the row `at` and its gradient by the logits, in float64."""
    z, wdl, left = outputs
    row = {name: column[at] for name, column in batch.items()}
    legal = legal_labels(to_bytes(batch["planes"][at : at + 1]), len(z))[0].numpy()
    softmax = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    policy = np.where(legal, softmax, 0.0) / softmax[legal].sum()

    # the policy's target: visits, else the move that was played, else the reference policy
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
        if reference_logits is not None:
            powers = np.exp(reference_logits - reference_logits[legal].max()) * legal
            target = powers / powers.sum()
    log_policy = np.log(np.where(legal, policy, 1.0))
    loss = -(target * log_policy).sum() - legality * math.log(softmax[legal].sum())
    gradient = target.sum() * policy - target + legality * (softmax - policy)

    # the value's target: the result, an evaluation and a search's value by their shares
    has_game, value_target = row["plies"] > 0, None
    if has_game and config.results:
        value_target = np.array([float(row["result"] == score) for score in (1, 0, -1)])
    if config.eval_blend and row["eval"] != NO_EVAL:
        share = 1.0 if value_target is None else config.eval_blend
        rest = 0.0 if value_target is None else (1 - share) * value_target
        value_target = share * wdl_from_centipawns(np.array([row["eval"]]))[0] + rest
    if config.teach != "policy" and config.search_value_share and searched:
        value = row["root_value"] if math.isnan(row["best_value"]) else row["best_value"]
        share = config.search_value_share if value_target is not None and has_game else 1.0
        rest = 0.0 if value_target is None else (1 - share) * value_target
        value_target = share * wdl_from_score(np.array([value]))[0] + rest
    if value_target is not None and preset.value != "none":
        error = (wdl[0] - wdl[2]) - (value_target[0] - value_target[2])
        if config.value_loss == "auto" and preset.value == "wdl":
            loss -= config.value_weight * (value_target * np.log(wdl)).sum()
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
    reference = torch.randn(ROWS, size, generator=random) if config.teach == "value" else None
    columns = resolve_targets(config, preset, batch, find_visited(config, batch))
    rows = {column: to_tensor(values) for column, values in columns.items()}
    legal, prediction = legal_labels(to_bytes(batch["planes"]), size), Prediction(logits, wdl, left)
    losses = row_losses(config, preset.value, prediction, rows, legal, reference)["loss"]
    losses.sum().backward()
    assert logits.grad is not None
    for at in range(ROWS):
        outputs = (
            logits[at].detach().double().numpy(),
            wdl[at].double().exp().numpy(),
            0.0 if left is None else float(left[at]),
        )
        reference_logits = None if reference is None else reference[at].double().numpy()
        loss, gradient = reference_loss(config, preset, batch, at, outputs, reference_logits)
        assert float(losses[at].detach()) == pytest.approx(loss, abs=2e-4), at
        assert np.allclose(logits.grad[at].numpy(), gradient, atol=1e-5), at


def test_rows_without_a_legal_move_have_no_loss() -> None:
    logits = torch.randn(2, 4096, requires_grad=True)
    batch = {"planes": np.zeros((2, 77), np.uint64), "label": np.full(2, NO_LABEL)}
    batch |= {"result": np.zeros(2, np.int8), "plies": np.zeros(2, np.int64)}
    preset = presets()["fianchetto-xs"]
    config = TrainConfig(steps=1, label_smoothing=0.1)
    columns = resolve_targets(config, preset, batch, find_visited(config, batch))
    rows = {name: to_tensor(column) for name, column in columns.items()}
    prediction = Prediction(logits, torch.zeros(2, 3).log_softmax(1))
    legal = legal_labels(to_bytes(batch["planes"]))
    loss = row_losses(config, "wdl", prediction, rows, legal)["loss"]
    loss.sum().backward()
    assert loss.tolist() == [0.0, 0.0]
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("where", ["label", "visits"])
def test_an_illegal_target_is_refused(where: str) -> None:
    batch, config = dict(playout_rows(8, seed=1)), TrainConfig(steps=1)
    illegal = int(np.flatnonzero(~legal_mask(batch["planes"][3:4])[0])[0])
    if where == "label":
        batch["label"][3] = illegal
    else:
        batch["visits"] = np.empty(8, object)
        batch["visits"][3] = np.array([(illegal, 0.5)], VISIT)
    with pytest.raises(IllegalTargetError, match="labels are not legal moves"):
        resolve_targets(config, presets()["fianchetto-xs"], batch, find_visited(config, batch))


def test_evaluations_become_symmetric_probabilities() -> None:
    assert BATCH_SENTINELS["eval"] == NO_EVAL
    wdl = wdl_from_centipawns(np.array([0, 100, -100, 30_000, -30_000, 1000]))
    assert np.allclose(wdl.sum(1), 1.0)
    assert wdl.min() > 0
    assert np.allclose(wdl[1], wdl[2][::-1])
    assert np.array_equal(wdl[3], wdl[5])
    assert wdl[0, 0] == pytest.approx(wdl[0, 2])
    assert wdl_from_centipawns(np.array([EVAL_MARGIN]))[0, 0] == pytest.approx(0.5)


def test_wdl_from_score_inverts_wdl_from_centipawns() -> None:
    evaluated = wdl_from_centipawns(np.arange(-1000, 1001, 50))
    assert np.allclose(wdl_from_score(evaluated[:, 0] - evaluated[:, 2]), evaluated, atol=1e-9)
    scores = np.array([-1.0, -0.999, -0.5, -0.01, 0.0, 0.3, 0.97, 1.0, 1.02])
    wdl = wdl_from_score(scores)
    assert np.allclose(wdl[:, 0] - wdl[:, 2], scores.clip(-1, 1), atol=3e-6)
    assert np.allclose(wdl.sum(1), 1.0)
    assert wdl.min() > -1e-6
