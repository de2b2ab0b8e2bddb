"""The curves of a fine-tuning."""

import io

from PIL import Image

from pipeline.finetune.curves import draw_curves


def test_curves_are_drawn_of_any_rows() -> None:
    seed = {
        "generation": 0,
        "verdict": "promoted",
        "seed_elo": 0.0,
        "seed_elo_low": 0.0,
        "seed_elo_high": 0.0,
    }
    undone = {
        "generation": 1,
        "verdict": "undone",
        "seed_elo": -9.0,
        "seed_elo_low": -80.0,
        "seed_elo_high": 60.0,
    }
    rejected = {"generation": 2, "verdict": "rejected", "seed_elo": None, "top1": 0.4, "games": 20}
    swept = {
        "generation": 3,
        "verdict": "promoted",
        "seed_elo": None,
        "seed_elo_low": 161.0,
        "seed_elo_high": None,
    }
    played = rejected | {"cross_entropy": 1.8, "decisive_share": 0.5}
    beaten = swept | {"generation": 4, "seed_elo_low": None, "seed_elo_high": -161.0}
    for rows, lines in (
        ([seed], 1),
        ([seed, undone, rejected], 1),
        ([seed, swept, beaten], 1),
        ([seed, played], 2),
    ):
        with Image.open(io.BytesIO(draw_curves(rows))) as image:
            assert image.size == (810, 270 * lines)
