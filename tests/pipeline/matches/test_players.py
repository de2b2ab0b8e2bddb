"""Words of a command line as players."""

from pathlib import Path

import chess
import numpy as np
import pytest

from engine.encoding.planes import legal_mask
from model.inference.onnx_evaluator import OnnxError
from pipeline.matches.config import SideConfig
from pipeline.matches.players import player_of
from pipeline.validation.verify import planes_of
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import make


def test_an_exported_network_plays_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The embedded one, in 8-bit integers, prefers what torch prefers."""
    embedded = REPOSITORY / "datasets" / "embedded"
    player, identity = player_of(SideConfig(who=f"onnx:{embedded}"), seed=1)
    theirs, other = player_of(SideConfig(who=str(embedded)), seed=1)
    assert player.name == "embedded onnx 64"
    assert player.search == theirs.search
    assert identity["weights"] == other["weights"]
    assert identity["evaluator"] != other["evaluator"]
    boards = [
        chess.Board(),
        chess.Board("r1bqkbnr/pppp1ppp/2n5/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4"),
    ]
    planes_BP = np.stack([planes_of(board) for board in boards])
    assert player.evaluator is not None
    assert theirs.evaluator is not None
    (mine_BL, wdl_B3), (logits_BL, wanted_B3) = (
        each(planes_BP) for each in (player.evaluator, theirs.evaluator)
    )
    legal_BL = legal_mask(planes_BP)
    first_B, wanted_B = (
        np.where(legal_BL, each_BL, -np.inf).argmax(1) for each_BL in (mine_BL, logits_BL)
    )
    assert first_B.tolist() == wanted_B.tolist()
    assert np.abs(wdl_B3 - wanted_B3).max() < 0.1
    greedy, _ = player_of(SideConfig(who=f"policy:onnx:{embedded}"), seed=1)
    assert greedy.search is None
    make(tmp_path / "net")
    (tmp_path / "net" / "model.onnx").write_bytes((embedded / "model.onnx").read_bytes())
    with pytest.raises(
        OnnxError, match=r"net: checkpoint\.json names no model\.onnx of these weights; "
    ):
        player_of(SideConfig(who=f"onnx:{tmp_path / 'net'}"), seed=1)
    (tmp_path / "net" / "model.onnx").unlink()
    with pytest.raises(OnnxError, match=r"net: there is no model\.onnx; `fianchetto export --int8"):
        player_of(SideConfig(who=f"onnx:{tmp_path / 'net'}"), seed=1)
