"""What EVAL says, against torch's own divergence; and the pictures, read back."""

import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import chess.pgn
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from engine.encoding.planes import legal_mask
from pipeline.finetune.config import EvalConfig
from pipeline.finetune.evaluation import _divergences, outsiders
from pipeline.finetune.pictures import BOARDS, SAMPLES, VIEWER, draw_curves, draw_elo, playable, write_samples
from tests.model.synthetic import batch
from tests.pipeline.datasets import dump


def saying(logits_BA: NDArray[np.float32]) -> Any:
    """Make an evaluator that says the same whatever it is asked."""
    return lambda planes, columns: (logits_BA, np.zeros((len(planes), 3), np.float32))


def test_the_divergence_is_torchs() -> None:
    rows, chance = batch(50, seed=3), np.random.default_rng(0)
    seed_BA, candidate_BA = (chance.normal(0, 3, (50, 4096)).astype(np.float32) for _ in range(2))
    seed_BA[:, 4000:] = 50.0  # illegal or not: the mask has to come first
    found_B = _divergences(saying(seed_BA), saying(candidate_BA), rows)
    legal_BA = torch.from_numpy(legal_mask(rows["planes"]))
    for row in range(50):
        one, two = (
            torch.log_softmax(torch.from_numpy(logits_BA[row])[legal_BA[row]].double(), 0)
            for logits_BA in (seed_BA, candidate_BA)
        )
        expected = torch.nn.functional.kl_div(two, one, reduction="sum", log_target=True)
        assert found_B[row] == pytest.approx(float(expected), abs=1e-9)
    assert _divergences(saying(seed_BA), saying(seed_BA), rows) == pytest.approx(0.0, abs=1e-12)


def test_an_engine_that_is_not_installed_is_no_opponent() -> None:
    names = [side.who for side in outsiders(EvalConfig(engine="no-such-engine"))]
    assert names == ["hand-written"]
    assert outsiders(EvalConfig(engine="", hand_written=0)) == []


def test_sample_games_are_kept_as_text_and_as_boards(tmp_path: Path) -> None:
    write_samples(dump(tmp_path / "games.pgn", 6), tmp_path / "eval", count=3)
    with (tmp_path / "games.pgn").open() as whole, (tmp_path / "eval" / SAMPLES).open() as kept:
        moves = 0
        for _ in range(3):
            game, sample = chess.pgn.read_game(whole), chess.pgn.read_game(kept)
            assert game is not None
            assert sample is not None
            assert list(sample.mainline_moves()) == list(game.mainline_moves())
            moves += len(list(game.mainline_moves()))
            board = chess.Board()
            for san in unquote(playable(sample).removeprefix("https://lichess.org/analysis/pgn/")).split("_"):
                board.push_san(san)
            assert board == game.end().board()
        assert chess.pgn.read_game(kept) is None
    assert max(map(len, (tmp_path / "eval" / SAMPLES).read_text().splitlines())) <= 120, "long lines are wrapped"
    assert (tmp_path / "eval" / VIEWER).read_text().count("<details name=") == moves
    root = ElementTree.parse(tmp_path / "eval" / BOARDS).getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}g/{name}svg")) == 3
    assert all("half-moves" in (text.text or "") for text in root.findall(f"{name}g/{name}text"))
    write_samples(tmp_path / "nowhere.pgn", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_curves_are_drawn_of_any_rows() -> None:
    seed = {"generation": 0, "verdict": "promoted", "seed_elo": 0.0, "seed_elo_low": 0.0, "seed_elo_high": 0.0}
    undone = {"generation": 1, "verdict": "undone", "seed_elo": -9.0, "seed_elo_low": -80.0, "seed_elo_high": 60.0}
    rejected = {"generation": 2, "verdict": "rejected", "seed_elo": None, "top1": 0.4, "games": 20}
    for rows in ([seed], [seed, undone, rejected]):
        for drawn, size in ((draw_curves(rows), (1200, 650)), (draw_elo(rows), (770, 440))):
            with Image.open(io.BytesIO(drawn)) as image:
                assert image.size == size
