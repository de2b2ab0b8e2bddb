"""Hostile rows and files of Lichess's evaluated positions: each is counted or refused, and loses no other row."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.encoding.views import NO_LABEL
from pipeline.errors import DumpError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets
from tests.pipeline.evaluated import read_rows

COMPACT = IngestConfig(planes="compact", chunk_mib=1)
START = chess.STARTING_FEN

HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"fen": START, "cp": 20, "move": "e2e4"}, "used"),
    ({"fen": START, "cp": 20, "move": None}, "used"),
    ({"fen": START, "mate": -2, "move": "g1f3"}, "used"),
    ({"fen": START, "cp": 900_000, "move": "e2e4"}, "used"),
    ({"fen": " ".join(START.split()[:4]), "cp": 20, "move": "e2e4"}, "used"),
    ({"fen": None, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START, "move": "e2e4"}, "bad row"),
    ({"fen": START, "cp": 20, "mate": 3, "move": "e2e4"}, "bad row"),
    ({"fen": START, "mate": 0, "move": "e2e4"}, "bad row"),
    ({"fen": "", "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": "♔" * 64, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START + "\n" + START, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START.replace(" ", "\t"), "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START + " " * 100_000, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": "9" * 2_000, "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": "8/8/8/8/8/8/8/8 w - - 0 1", "cp": 20, "move": "e2e4"}, "bad FEN"),
    ({"fen": "kk6/8/8/8/8/8/8/K7 w - - 0 1", "cp": 20, "move": "a1a2"}, "bad FEN"),
    ({"fen": "QQQQQQQQ/QQQQQQQQ/8/8/8/8/7k/K7 w - - 0 1", "cp": 1, "move": "a1a2"}, "bad FEN"),
    ({"fen": "1r2k1r1/8/8/8/8/8/8/1R2K1R1 w KQkq - 0 1", "cp": 0, "move": "e1g1"}, "variant"),
    ({"fen": "R5k1/5ppp/8/8/8/8/8/K7 b - - 0 1", "mate": -1, "move": None}, "no moves"),
    ({"fen": START, "cp": 20, "move": "e2e5"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "e1h1"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "e2e4q"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "z9z9"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "Nf3"}, "illegal move"),
    ({"fen": "8/P6k/8/8/8/8/8/K7 w - - 0 1", "cp": 900, "move": "a7a8"}, "illegal move"),
]


def test_every_hostile_row_is_counted_by_its_reason_and_place(tmp_path: Path) -> None:
    path = tmp_path / "hostile.parquet"
    rows = [{"cp": None, "mate": None, "move": None, **row} for row, _ in HOSTILE]
    pq.write_table(pa.Table.from_pylist(rows), path)
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    reasons = Counter(reason for _, reason in HOSTILE)
    assert manifest["games"] == {"read": len(HOSTILE), "used": reasons.pop("used"), "dropped": dict(reasons)}
    found = datasets.games(tmp_path / "out")
    assert [game["dropped"] or "used" for game in found] == [reason for _, reason in HOSTILE]
    assert len({game["offset"] for game in found}) == len(HOSTILE)
    kept = read_rows(tmp_path / "out")
    assert kept["eval"].tolist() == [20, 20, -32000, 32000, 20]
    assert kept["label"][1] == NO_LABEL


def test_hostile_lines_of_json_lose_no_other_line(tmp_path: Path) -> None:
    good = json.dumps({"fen": START, "evals": [{"pvs": [{"cp": 20, "line": "e2e4 e7e5"}], "knodes": 3, "depth": 20}]})
    bad = [
        "{", "[]", "null", '{"fen": 3, "evals": []}', '{"fen": "x", "evals": [{"pvs": [{"cp": "a", "line": "e2e4"}]}]}',
        '{"fen": "x", "evals": null}', json.dumps({"fen": START, "evals": []}),
        json.dumps({"fen": START, "evals": [{"pvs": []}]}),
        json.dumps({"fen": START, "evals": [{"pvs": [{"cp": 10**30, "line": "e2e4"}]}]}),
        "[" * 100_000, '{"fen": "' + "a" * 3_000_000,
    ]  # fmt: skip
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f"{good}\n{line}\n" for line in bad))
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"]["used"] == len(bad)
    assert manifest["games"]["dropped"] == {"bad row": len(bad)}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"fen": pa.array([1]), "cp": pa.array([1]), "mate": pa.array([1]), "move": pa.array(["e2e4"])},
            "column fen is int64",
        ),
        (
            {"fen": pa.array([START]), "cp": pa.array(["a"]), "mate": pa.array([1]), "move": pa.array(["e2e4"])},
            "column cp is string",
        ),
        (
            {"fen": pa.array([START]), "cp": pa.array([[1]]), "mate": pa.array([1]), "move": pa.array(["e2e4"])},
            "column cp is list",
        ),
        ({"fen": pa.array([START]), "cp": pa.array([1])}, "evaluations fen, cp, mate, move"),
    ],
)
def test_wrong_types_are_one_line_with_the_file_s_name(columns: dict[str, pa.Array], said: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DumpError, match=said) as caught:
        ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.parquet"
    columns = {"fen": pa.array([START]), "cp": pa.array([1]), "mate": pa.array([1]), "move": pa.array(["e2e4"])}
    pq.write_table(pa.Table.from_arrays([*columns.values(), columns["fen"]], names=[*columns, "fen"]), path)
    with pytest.raises(DumpError, match="column fen occurs twice"):
        ingest([str(path)], tmp_path / "out", COMPACT, workers=1)


def test_numbers_as_pandas_writes_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "floats.parquet"
    columns = {"fen": [START, START], "cp": [12.0, None], "mate": [None, -3.0], "move": ["e2e4", None]}
    pq.write_table(pa.table(columns), path)
    ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert read_rows(tmp_path / "out")["eval"].tolist() == [12, -32000]


def test_a_repeated_long_text_takes_no_memory(tmp_path: Path) -> None:
    path, rows = tmp_path / "bomb.parquet", 200_000
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["k" * (1 << 20)]))
    numbers = pa.array(np.zeros(rows, np.int64))
    good = pa.table({"fen": [START], "cp": [1], "mate": pa.array([None], pa.int64()), "move": ["e2e4"]})
    bomb = pa.table(
        {
            "fen": texts.cast(pa.dictionary(pa.int32(), pa.string())),
            "cp": numbers,
            "mate": pa.nulls(rows, pa.int64()),
            "move": pa.nulls(rows, pa.string()),
        }
    )
    with pq.ParquetWriter(path, good.schema) as writer:
        writer.write_table(good)
        for part in (bomb.slice(0, 1000),):
            writer.write_table(part.cast(good.schema))
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"] == {"read": 1001, "used": 1, "dropped": {"bad row": 1000}}
