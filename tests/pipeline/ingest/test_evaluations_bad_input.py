"""Hostile rows and files of Lichess's evaluated positions: each is counted or refused, and loses no
other row."""

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
from pipeline.dumps.formats import evaluations
from pipeline.errors import DumpError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets
from tests.pipeline.evaluated import read_rows

COMPACT = IngestConfig(planes="compact", chunk_mib=1)
START, END = chess.STARTING_FEN, "4k3/8/8/8/8/8/4P3/4K3 w - -"

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
    ({"fen": START.replace(" - ", " e-3 "), "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START.replace("KQkq", "KKKK"), "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START.replace("0 1", f"{2**64} 1"), "cp": 20, "move": "e2e4"}, "bad row"),
    ({"fen": START[:5] + "\0" + START[5:], "cp": 20, "move": "e2e4"}, "bad row"),
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
    ({"fen": START, "cp": 20, "move": "e2e4\0"}, "illegal move"),
    ({"fen": START, "cp": 20, "move": "e2e4" * 1_000}, "illegal move"),
    ({"fen": "8/P6k/8/8/8/8/8/K7 w - - 0 1", "cp": 900, "move": "a7a8"}, "illegal move"),
]


def test_every_hostile_row_is_counted_by_its_reason_and_place(tmp_path: Path) -> None:
    path = tmp_path / "hostile.parquet"
    rows = [{"cp": None, "mate": None, "move": None, **row} for row, _ in HOSTILE]
    pq.write_table(pa.Table.from_pylist(rows), path)
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    reasons = Counter(reason for _, reason in HOSTILE)
    assert manifest["games"] == {
        "read": len(HOSTILE),
        "used": reasons.pop("used"),
        "dropped": dict(reasons),
    }
    found = datasets.games(tmp_path / "out")
    assert [game["dropped"] or "used" for game in found] == [reason for _, reason in HOSTILE]
    assert len({game["offset"] for game in found}) == len(HOSTILE)
    kept = read_rows(tmp_path / "out")
    assert kept["eval"].tolist() == [20, 20, -32000, 32000, 20]
    assert kept["label"][1] == NO_LABEL


def test_hostile_lines_of_json_lose_no_other_line(tmp_path: Path) -> None:
    good = json.dumps(
        {
            "fen": START,
            "evals": [{"pvs": [{"cp": 20, "line": "e2e4 e7e5"}], "knodes": 3, "depth": 20}],
        }
    )
    bad = [
        "{",
        "[]",
        "null",
        '{"fen": 3, "evals": []}',
        '{"fen": "x", "evals": [{"pvs": [{"cp": "a", "line": "e2e4"}]}]}',
        '{"fen": "x", "evals": null}',
        json.dumps({"fen": START, "evals": []}),
        json.dumps({"fen": START, "evals": [{"pvs": []}]}),
        *(
            good.replace("20", number, 1)
            for number in (str(10**30), "12.5", "NaN", "1e400", "true")
        ),
        good.replace(START, "\\u0000" + START),
        good.replace(START, "\\ud800"),
        good + good,
        "[" * 100_000,
        '{"fen": "' + "a" * 3_000_000,
    ]
    path = tmp_path / "lines.jsonl"
    bad.append(good[:40])  # torn, the last line
    path.write_text("\n".join(f"{good}\n{line}" for line in bad))
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"]["used"] == len(bad)
    assert manifest["games"]["dropped"] == {"bad row": len(bad)}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {
                "fen": pa.array([1]),
                "cp": pa.array([1]),
                "mate": pa.array([1]),
                "move": pa.array(["e2e4"]),
            },
            "column fen is int64",
        ),
        (
            {
                "fen": pa.array([START]),
                "cp": pa.array(["a"]),
                "mate": pa.array([1]),
                "move": pa.array(["e2e4"]),
            },
            "column cp is string",
        ),
        (
            {
                "fen": pa.array([START]),
                "cp": pa.array([[1]]),
                "mate": pa.array([1]),
                "move": pa.array(["e2e4"]),
            },
            "column cp is list",
        ),
        ({"fen": pa.array([START]), "cp": pa.array([1])}, "evaluations fen, cp, mate, move"),
    ],
)
def test_wrong_types_are_one_line_with_the_file_s_name(
    columns: dict[str, pa.Array], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DumpError, match=said) as caught:
        ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.parquet"
    columns = {
        "fen": pa.array([START]),
        "cp": pa.array([1]),
        "mate": pa.array([1]),
        "move": pa.array(["e2e4"]),
    }
    pq.write_table(
        pa.Table.from_arrays([*columns.values(), columns["fen"]], names=[*columns, "fen"]), path
    )
    with pytest.raises(DumpError, match="column fen occurs twice"):
        ingest([str(path)], tmp_path / "out", COMPACT, workers=1)


@pytest.mark.parametrize(
    ("cp", "kept"),
    [
        (pa.array([12.0, None, np.nan, np.nan, 7.0]), [12, -32000, -32000, 7]),
        (pa.array([12.5, 1e30, np.inf, -np.inf, 7.0]), [-32000, -32000, 7]),
        (pa.array([2**64 - 1, 0, 5, 6, 7], pa.uint64()), [5, 7]),
        (pa.array([2**63 - 1, -(2**63), 5, 6, 7], pa.int64()), [32000, 5, 7]),
    ],
)
def test_a_number_that_is_none_loses_no_other_row(
    cp: pa.Array, kept: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "numbers.parquet"
    has_mate = [False, True, False, True, False]
    mate = pa.array([-3.0 if mate else None for mate in has_mate])
    pq.write_table(
        pa.table({"fen": [START] * 5, "cp": cp, "mate": mate, "move": ["e2e4"] * 5}), path
    )
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"]["read"] == 5
    assert read_rows(tmp_path / "out")["eval"].tolist() == kept


def test_columns_of_nulls_alone_are_read(tmp_path: Path) -> None:
    path = tmp_path / "nulls.parquet"
    pq.write_table(
        pa.table({"fen": [START] * 2, "cp": [12, 13], "mate": pa.nulls(2), "move": pa.nulls(2)}),
        path,
    )
    ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert read_rows(tmp_path / "out")["eval"].tolist() == [12, 13]


ANALYSES = pa.table(
    {
        "fen": [START, None, None, START, "9" * 2_000, END],
        "line": ["e2e4 e7e5", "a2a3", "a2a3", "d2d4", "a2a3", "e2e4"],
        "depth": [20.0, 99.0, 99.0, np.nan, 99.0, 20.0],
        "knodes": [5, 5, 5, 5, 5, 5],
        "cp": [20, 1, 2, 30, 3, 40],
        "mate": pa.nulls(6, pa.int64()),
    }
)


def test_a_bad_analysis_is_not_taken_for_its_neighbour_s(tmp_path: Path) -> None:
    path = tmp_path / "analyses.parquet"
    pq.write_table(ANALYSES, path)
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"] == {"read": 6, "used": 3, "dropped": {"bad row": 3}}
    assert read_rows(tmp_path / "out")["eval"].tolist() == [20, 30, 40]


def test_a_position_without_end_is_kept_as_one_row() -> None:
    batch = ANALYSES.take(pa.array([0] * 1_000)).to_batches()[0]
    finished, rest = evaluations._deepest(batch, None)
    assert (len(finished), len(rest)) == (0, 1)


@pytest.mark.parametrize("repeated", [True, False])
def test_long_texts_are_read_few_at_a_time(repeated: bool, tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    good = pa.table(
        {"fen": [START], "cp": [1], "mate": pa.array([None], pa.int64()), "move": ["e2e4"]}
    )
    bomb = good.set_column(0, "fen", pa.array(["k" * (1 << 20)])).take(pa.array([0] * 100))
    with pq.ParquetWriter(path, good.schema, use_dictionary=repeated, compression="zstd") as writer:
        writer.write_table(good)
        writer.write_table(bomb)
    with pq.ParquetFile(path) as file:
        sizes = [evaluations._batch_size(file, path, group, ["fen", "move"]) for group in (0, 1)]
    assert sizes[0] == evaluations.BATCH
    assert sizes[1] <= 16
    manifest = ingest([str(path)], tmp_path / "out", COMPACT, workers=1)
    assert manifest["games"] == {"read": 101, "used": 1, "dropped": {"bad row": 100}}
