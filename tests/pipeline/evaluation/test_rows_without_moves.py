"""Positions without a move: no report, no check and no export indexes with their label."""

from pathlib import Path

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.encoding.views import NO_LABEL
from model.data.rows import input_columns
from model.inference.evaluator import evaluator
from pipeline.dataset.batches import Batches
from pipeline.defs.tasks import probe
from pipeline.errors import ConfigError
from pipeline.evaluation.measure import COLUMNS
from pipeline.evaluation.report import choose_network, report
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED


def positions_of(moves: list[str | None], folder: Path) -> Path:
    """Ingest evaluated positions with these moves, all of them in the test split."""
    boards = [chess.Board() for _ in moves]
    for at, board in enumerate(boards):
        board.push(list(board.legal_moves)[at])
        board.push_san("e5")
    table = {
        "fen": [board.fen() for board in boards],
        "cp": [9] * len(moves),
        "mate": [None] * len(moves),
        "move": moves,
    }
    folder.mkdir()
    pq.write_table(pa.table(table), folder / "evals.parquet")
    config = IngestConfig(test_share=0.9, val_share=0.0)
    ingest([str(folder / "evals.parquet")], folder / "out", config, workers=1)
    return folder / "out"


def test_a_report_says_that_positions_have_no_moves(tmp_path: Path) -> None:
    made = positions_of([None] * 12, tmp_path / "none")
    with pytest.raises(ConfigError, match=r"none of the .* positions has a known move"):
        report(EMBEDDED, positions=made, split="test")
    assert probe(EMBEDDED, made, "test", 64) == {"loss": None, "rows": 0}


def test_rows_without_a_move_are_left_out_of_comparisons(tmp_path: Path) -> None:
    made = positions_of(["b1c3", None] * 6, tmp_path / "some")
    network = evaluator(EMBEDDED)
    batches = Batches(
        [made], "test", batch_size=8, columns=(*COLUMNS, *input_columns(network.preset))
    )
    rows = list(batches.read_rows())
    labels = np.concatenate([batch["label"] for batch in rows])
    assert (labels == NO_LABEL).any()
    labelled = int((labels != NO_LABEL).sum())
    _, words = choose_network(EMBEDDED, network, rows)
    assert f"on {labelled} positions" in words
    assert probe(EMBEDDED, made, "test", 64)["loss"] is not None
