"""Positions of random games: of both sides, with a legal move each, and few of them twice."""

import numpy as np

from engine.encoding.planes import legal_mask
from model.data.playouts import playout_rows


def test_playouts_are_positions_of_both_sides() -> None:
    planes = playout_rows(400)["planes"]
    assert 0.4 < np.mean(planes[:, 12] != 0) < 0.6
    assert legal_mask(planes).any(1).all()
    assert len(np.unique(planes, axis=0)) > 350
