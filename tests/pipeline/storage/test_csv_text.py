"""CSV files hold no formulas: texts of others, such as an engine's name, are opened by
spreadsheets."""

import csv
import io
import re
import subprocess

import pytest

from pipeline.dataset.fen_rows import SCHEMA
from pipeline.storage.csv_text import FORMULA, csv_text
from tests.conftest import REPOSITORY

HOSTILE = ('=HYPERLINK("http://evil","x")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_begins_like_a_formula_is_a_text(text: str) -> None:
    assert text.startswith(FORMULA)
    found = list(
        csv.DictReader(
            io.StringIO(csv_text(["name", "points"], [{"name": text, "points": -0.5}]), newline="")
        )
    )
    assert found == [{"name": f"'{text}", "points": "-0.5"}]


def test_a_carriage_return_begins_no_row() -> None:
    written = csv_text(["name", "points"], [{"name": "engine\r=1+1\n=2", "points": 1}])
    assert list(csv.reader(io.StringIO(written, newline=""))) == [
        ["name", "points"],
        ["engine =1+1\n=2", "1"],
    ]


def test_no_other_module_writes_texts_of_others_as_csv() -> None:
    """`rows` writes numbers and texts that are made here: splits, FEN and UCI."""
    assert [field.name for field in SCHEMA if field.type == "string"] == ["split", "fen", "uci"]
    listed = subprocess.run(
        [
            "git",
            "grep",
            "-lE",
            r"csv\.(writer|DictWriter|CSVWriter)|write_csv|to_csv",
            "--",
            "*.py",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("no git here")
    code = {name for name in listed.stdout.split() if not re.match("tests/", name)}
    assert code == {"pipeline/storage/csv_text.py", "pipeline/dataset/fen_rows.py"}
