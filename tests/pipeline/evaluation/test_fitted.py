"""The fitted baselines against torch's cross-entropy, a law that made the moves, and plays counted by python-chess."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest
import torch

from engine.encoding.planes import label_of
from engine.progress import silent
from model.data.playouts import playout_rows
from pipeline.dataset.batches import Batches
from pipeline.dataset.position_keys import position_keys
from pipeline.evaluation.fitted import PRIOR, Fitted, Logistic, fit, mean_nll, moves_of
from pipeline.evaluation.page.boards import board_of
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline.datasets import random_game


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    return playout_rows(600, seed=1)


def some_weights() -> torch.Tensor:
    return torch.randn(moves_of(playout_rows(1)["planes"]).features.shape[1] + 128, generator=torch.manual_seed(3))


def test_the_loss_is_torchs_cross_entropy(rows: dict[str, Any]) -> None:
    logistic, moves = Logistic(some_weights()), moves_of(rows["planes"])
    label = torch.from_numpy(rows["label"].astype(np.int64))
    played = torch.searchsorted(moves.places, torch.arange(len(label)) * 4096 + label)
    wanted = torch.nn.functional.cross_entropy(torch.from_numpy(logistic(rows["planes"])), label)
    assert float(mean_nll(logistic.scores(moves), moves, played)) == pytest.approx(float(wanted), rel=1e-5)
    legal = [len({label_of(move, board.turn) for move in board.legal_moves}) for board in boards(rows)]
    assert np.isfinite(logistic(rows["planes"])).sum(axis=1).tolist() == legal


def boards(rows: dict[str, Any]) -> list[chess.Board]:
    columns = zip(rows["planes"], *(rows[name].tolist() for name in ("castling", "ep_file", "ply")), strict=True)
    return [board_of(*row) for row in columns]


def test_a_fit_predicts_moves_as_well_as_the_law_that_made_them(rows: dict[str, Any]) -> None:
    """Moves are drawn from a conditional logit: the fitted one is at least as likely on them, and an optimum."""
    law = Logistic(some_weights())
    chance = np.random.default_rng(0)
    policy_RA = torch.softmax(torch.from_numpy(law(rows["planes"])).double(), 1).numpy()
    label_R = np.array([chance.choice(4096, p=policy_A / policy_A.sum()) for policy_A in policy_RA])
    told = {"planes": rows["planes"], "label": label_R.astype(np.uint16)}
    found = fit([{name: values[part] for name, values in told.items()} for part in (slice(0, 250), slice(250, None))])
    labels = torch.from_numpy(label_R)
    by = {name: torch.from_numpy(one(rows["planes"])) for name, one in (("law", law), ("fit", found))}
    nll = {name: float(torch.nn.functional.cross_entropy(logits, labels)) for name, logits in by.items()}
    uniform = float(np.log(np.isfinite(by["fit"].numpy()).sum(axis=1)).mean())
    assert nll["fit"] <= nll["law"] < uniform - 0.5
    other = playout_rows(300, seed=9)["planes"]
    expected = torch.softmax(torch.from_numpy(law(other)), 1)
    said = torch.log_softmax(torch.from_numpy(found(other)), 1)
    legal = torch.isfinite(said)
    apart = float((expected[legal] * (expected[legal].log() - said[legal])).sum() / len(other))
    assert apart < 0.35, "Kullback-Leibler divergence on positions that it was not fitted on, nats"


def test_a_book_counts_the_plays_of_train_in_the_same_position(tmp_path: Path) -> None:
    """Games of random moves meet again in their first positions; those of train are counted by python-chess."""
    text = "\n".join(random_game(seed, 6) for seed in range(150))
    (tmp_path / "games.pgn").write_text(text)
    ingest([str(tmp_path / "games.pgn")], tmp_path / "out", IngestConfig(test_share=0.3, val_share=0.0), workers=1)
    test = next(Batches([tmp_path / "out"], "test", batch_size=4096).drawn(4096))
    plays: Counter[tuple[str, int]] = Counter()
    for batch in Batches([tmp_path / "out"], "train", batch_size=4096).once():
        for board, label in zip(boards(batch), batch["label"].tolist(), strict=True):
            plays[board.epd(), label] += 1
    start = [one for one in boards(test) if one.board_fen() == chess.STARTING_BOARD_FEN]
    assert start
    assert sum(count for (epd, _), count in plays.items() if epd == start[0].epd()) > 75
    fitted = Fitted([tmp_path / "out"], position_keys(test["planes"], test["castling"]), silent)
    answers = fitted(test)
    seen = 0
    for row, board in enumerate(boards(test)):
        share = torch.softmax(torch.from_numpy(answers["logistic"][row]), 0).double().numpy()
        labels = {label_of(move, board.turn) for move in board.legal_moves}
        assert np.isfinite(answers["book"][row]).sum() == len(labels)
        for label in labels:
            count = plays[board.epd(), label]
            seen += count > 0
            assert answers["book"][row, label] == pytest.approx(math.log(count + PRIOR * share[label]), abs=1e-4)
    assert seen > 100
    assert f"{sum(plays.values()):,} rows of train" in fitted.words
