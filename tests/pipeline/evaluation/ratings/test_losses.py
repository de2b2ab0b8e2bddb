"""What drawn moves lose, against sums over python-chess's moves by an engine whose judgements are known."""

from pathlib import Path
from typing import Any

import chess
import chess.engine
import numpy as np
import pytest

from engine.encoding.planes import label_of
from engine.progress import silent
from model.data.playouts import playout_rows
from pipeline.evaluation.judgements import expected
from pipeline.evaluation.ratings.config import RatingsConfig
from pipeline.evaluation.ratings.losses import boards_of, describe_losses, lost_terms, measure_losses
from pipeline.evaluation.ratings.sample import CENTERS
from tests.pipeline.evaluation.ratings.stubs import Stub, legal_labels
from tests.pipeline.evaluation.ratings.test_matrix import sampled, skill
from tests.pipeline.judging import engine

JUDGED = 4


def cp(centipawns: int) -> float:
    return expected(chess.engine.Cp(centipawns))


@pytest.mark.parametrize(
    ("best", "score", "centipawns", "advice"),
    [
        (cp(0), cp(0), 0, []),
        (cp(50), cp(-50), 100, []),  # 54.6 % to 45.4 %: 0.18 of the winning chances
        (cp(0), cp(-120), 120, []),
        (cp(0), cp(-200), 200, ["blunder"]),
        (cp(900), cp(700), 200, []),  # a won game stays won: 0.93 to 0.86
        (1.0, cp(0), 1000, ["blunder"]),  # a mate that was missed
        (1.0, 0.0, 2000, ["blunder"]),
        (0.65, 0.5, 168, ["blunder"]),  # 0.3 exactly
    ],
)
def test_losses_are_lichesss(best: float, score: float, centipawns: int, advice: list[str]) -> None:
    """lila's CpAdvice on the drop of 2 / (1 + exp(-0.00368208 * cp)) - 1, and centipawns within +-1000."""
    found = {name: float(values[0]) for name, values in lost_terms(np.array([best]), np.array([score])).items()}
    assert found["score"] == pytest.approx(best - score)
    assert found["centipawns"] == pytest.approx(centipawns, abs=0.5)
    assert [name for name in ("blunder",) if found[name]] == advice


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    """Give rows with promotions to every piece, half of them of 900, the others of 1500."""
    rows = playout_rows(140, seed=5)
    keep = rows["game"] == 1
    rows = {name: values[keep] for name, values in rows.items()}
    rows["elo"] = np.where(np.arange(keep.sum()) % 2, 900, 1500).astype(np.uint16)
    return rows


def test_means_are_sums_over_all_legal_moves(rows: dict[str, Any], tmp_path: Path) -> None:
    """The engine thinks less of each move in the order of its letters: 10 centipawns a step."""
    sample = sampled(rows, JUDGED * 5)
    command = " ".join(engine(tmp_path))
    config = RatingsConfig(judged=JUDGED * 5, engine=command, depth=1, workers=1)
    found = measure_losses(Stub(skill), sample, config, tmp_path / "judged", silent)  # type: ignore[arg-type]
    batch, band_R = sample.take(JUDGED * 5)
    assert [row["rating"] for row in found["rows"]] == [900, 1500]
    assert batch["promotion"].any(), "an under-promotion or a queen was played"
    for row in found["rows"]:
        people, drawn, first = [], {rating: list[float]() for rating in CENTERS}, []
        for at in np.flatnonzero(band_R == CENTERS.index(row["rating"])).tolist():
            board = boards_of({name: values[at : at + 1] for name, values in batch.items()})[0]
            moves = sorted(move.uci() for move in board.legal_moves)
            loss = {uci: round(cp(-10), 5) - round(cp(-10 * number), 5) for number, uci in enumerate(moves, 1)}
            of_label = {
                label_of(move, board.turn): loss[move.uci()]
                for move in board.legal_moves
                if move.promotion in (None, chess.QUEEN)
            }
            played = [m for m in board.legal_moves if label_of(m, board.turn) == batch["label"][at]]
            played = [m for m in played if (m.promotion or 0) == batch["promotion"][at]]
            people.append(loss[played[0].uci()])
            ranked = [of_label[label] for label in legal_labels(board)]
            for rating in CENTERS:
                chance = float(skill(np.array(float(rating)))) if len(ranked) > 1 else 1.0
                drawn[rating].append(chance * ranked[0] + (1 - chance) * sum(ranked[1:]) / max(len(ranked) - 1, 1))
            chance, others = float(skill(np.array(float(row["rating"])))), ranked[1:] or ranked
            first.append(ranked[0] if chance > (1 - chance) / len(others) else sum(others) / len(others))
        assert row["people_score"] == pytest.approx(np.mean(people), abs=1e-6)
        assert row["network_score"] == pytest.approx(np.mean(drawn[row["rating"]]), abs=1e-6)
        assert row["first_score"] == pytest.approx(np.mean(first), abs=1e-6), "equal first choices share"
        assert row["score_by_rating"] == pytest.approx([np.mean(drawn[rating]) for rating in CENTERS], abs=1e-6)
        assert row["difference_score"] == pytest.approx(row["network_score"] - row["people_score"])
    assert [row["band"] for row in found["rows"]] == ["800-999", "1400-1599"]
    assert describe_losses(found, config).startswith(f"{len(band_R)} positions of 2 bands, evaluated by")
