"""The divergence of EVAL against torch's, and the curves."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from engine.encoding.planes import legal_mask
from pipeline.finetune.curves import draw_curves
from pipeline.finetune.evaluation import divergences, log_policy
from tests.model.synthetic import batch


def test_the_divergence_is_torchs() -> None:
    rows, chance = batch(50, seed=3), np.random.default_rng(0)
    seed_BA, candidate_BA = (chance.normal(0, 3, (50, 4096)).astype(np.float32) for _ in range(2))
    seed_BA[:, 4000:] = 50.0  # illegal or not: the mask has to come first
    legal_BA = legal_mask(rows["planes"])
    seed, candidate = (log_policy(logits_BA, legal_BA) for logits_BA in (seed_BA, candidate_BA))
    found_B = divergences(seed, candidate)
    for row in range(50):
        one, two = (
            torch.log_softmax(torch.from_numpy(logits_BA[row][legal_BA[row]]).double(), 0)
            for logits_BA in (seed_BA, candidate_BA)
        )
        expected = torch.nn.functional.kl_div(two, one, reduction="sum", log_target=True)
        assert found_B[row] == pytest.approx(float(expected), abs=1e-9)
    assert divergences(seed, seed) == pytest.approx(0.0, abs=1e-12)


def test_curves_are_drawn_of_any_rows() -> None:
    seed = {"generation": 0, "verdict": "promoted", "seed_elo": 0.0, "seed_elo_low": 0.0, "seed_elo_high": 0.0}
    undone = {"generation": 1, "verdict": "undone", "seed_elo": -9.0, "seed_elo_low": -80.0, "seed_elo_high": 60.0}
    rejected = {"generation": 2, "verdict": "rejected", "seed_elo": None, "top1": 0.4, "games": 20}
    for rows in ([seed], [seed, undone, rejected]):
        with Image.open(io.BytesIO(draw_curves(rows))) as image:
            assert image.size == (1100, 600)
