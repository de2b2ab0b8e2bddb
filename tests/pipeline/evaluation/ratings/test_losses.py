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
from pipeline.evaluation.ratings.losses import boards_of, losses_sentence, losses_table, lost, told_losses
from pipeline.evaluation.ratings.sample import TOLD
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
        (cp(50), cp(-50), 100, ["inaccuracy"]),  # 54.6 % to 45.4 %: 0.18 of the winning chances
        (cp(0), cp(-120), 120, ["inaccuracy", "mistake"]),
        (cp(0), cp(-200), 200, ["inaccuracy", "mistake", "blunder"]),
        (cp(900), cp(700), 200, []),  # a won game stays won: 0.93 to 0.86
        (1.0, cp(0), 1000, ["inaccuracy", "mistake", "blunder"]),  # a mate that was missed
        (1.0, 0.0, 2000, ["inaccuracy", "mistake", "blunder"]),
        (0.65, 0.5, 168, ["inaccuracy", "mistake", "blunder"]),  # 0.3 exactly
    ],
)
def test_losses_are_lichesss(best: float, score: float, centipawns: int, advice: list[str]) -> None:
    """lila's CpAdvice on the drop of 2 / (1 + exp(-0.00368208 * cp)) - 1, and centipawns within +-1000."""
    found = {name: float(values[0]) for name, values in lost(np.array([best]), np.array([score])).items()}
    assert found["score"] == pytest.approx(best - score)
    assert found["centipawns"] == pytest.approx(centipawns, abs=0.5)
    assert [name for name in ("inaccuracy", "mistake", "blunder") if found[name]] == advice


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
    found = told_losses(Stub(skill), sample, config, tmp_path / "judged", silent)  # type: ignore[arg-type]
    batch, band_R = sample.take(JUDGED * 5)
    assert [row["told"] for row in found["rows"]] == [900, 1500]
    assert batch["promotion"].any(), "an under-promotion or a queen was played"
    for row in found["rows"]:
        people, drawn, first = [], {told: list[float]() for told in TOLD}, []
        for at in np.flatnonzero(band_R == TOLD.index(row["told"])).tolist():
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
            for told in TOLD:
                chance = float(skill(np.array(float(told)))) if len(ranked) > 1 else 1.0
                drawn[told].append(chance * ranked[0] + (1 - chance) * sum(ranked[1:]) / max(len(ranked) - 1, 1))
            first.append(drawn[row["told"]][-1])
        assert row["people_score"] == pytest.approx(np.mean(people), abs=1e-6)
        assert row["network_score"] == pytest.approx(np.mean(drawn[row["told"]]), abs=1e-6)
        assert row["score_by_told"] == pytest.approx([np.mean(drawn[told]) for told in TOLD], abs=1e-6)
        assert row["difference_score"] == pytest.approx(row["network_score"] - row["people_score"])
    by_told = [np.mean([row["score_by_told"][at] for row in found["rows"]]) for at in range(len(TOLD))]
    assert [row["score"] for row in found["by_told"]] == pytest.approx(by_told)
    assert [row["band"] for row in losses_table(found)] == ["800-999", "1400-1599"]
    assert losses_sentence(found, config).startswith(f"{len(band_R)} positions of 2 bands, judged by")


class Ranked:
    """A network that likes a move the less, the later its letters come: as the engine does."""

    def __call__(self, planes_BP: Any, batch: Any) -> Any:
        logits_BA = np.zeros((len(planes_BP), 4096), dtype=np.float32)
        for row, board in enumerate(boards_of({**batch, "planes": planes_BP})):
            for number, uci in enumerate(sorted(move.uci() for move in board.legal_moves)):
                move = chess.Move.from_uci(uci)
                if move.promotion in (None, chess.QUEEN):
                    logits_BA[row, label_of(move, board.turn)] = -0.3 * number
        return logits_BA, np.full((len(planes_BP), 3), 1 / 3, dtype=np.float32)


def test_at_the_matched_temperature_as_much_is_lost_as_by_people(tmp_path: Path) -> None:
    rows = playout_rows(30, seed=7)  # without promotions
    rows["elo"] = np.full(30, 1500, dtype=np.uint16)
    seventh = [sorted(board.legal_moves, key=lambda move: move.uci())[:7][-1] for board in boards_of(rows)]
    turns = [board.turn for board in boards_of(rows)]
    rows["label"] = np.array([label_of(move, turn) for move, turn in zip(seventh, turns, strict=True)], np.uint16)
    config = RatingsConfig(judged=30, engine=" ".join(engine(tmp_path)), depth=1, workers=1)
    (row,) = told_losses(Ranked(), sampled(rows, 30), config, tmp_path / "judged", silent)["rows"]  # type: ignore[arg-type]
    assert row["first_score"] == pytest.approx(0, abs=1e-6)
    assert row["first_score"] < row["network_score"] < row["people_score"]
    lost = []
    for board in boards_of(rows):
        number = np.arange(board.legal_moves.count())
        weights = np.exp(-0.3 * number / row["matched_temperature"])
        score = np.array([cp(-10 * (1 + at)) for at in number])
        lost.append(score[0] - (weights * score).sum() / weights.sum())
    assert np.mean(lost) == pytest.approx(row["people_score"], abs=1e-5)
