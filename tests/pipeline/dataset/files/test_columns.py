"""The table of columns, and the pages that are made from it."""

import re

import pyarrow as pa

from pipeline.dataset.files.columns import (
    BY_NAME,
    FORMS,
    OPTIONAL,
    ROW_COLUMNS,
    columns_of,
    schema,
    writer_options,
)
from tests.conftest import REPOSITORY


def test_the_readme_describes_every_column_as_the_table_does() -> None:
    text = (REPOSITORY / "datasets" / "README.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| \w+(?:, null)? \| (.+?) \|$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^\| (\w+) \| (\w+(?:, null)?) \|", text, re.MULTILINE))
    for column in ROW_COLUMNS:
        kind = (
            "list"
            if column.name == "visits"
            else "float32"
            if column.type == pa.float32()
            else str(column.type)
        )
        assert rows[column.name] == column.meaning, column.name
        assert kinds[column.name] == kind + (", null" if column.null is not None else "")


def test_every_column_has_a_codec_and_optional_ones_come_last() -> None:
    for form in FORMS:
        names = [column.name for column in columns_of(form, OPTIONAL)]
        assert names == schema(form, OPTIONAL).names
        assert names[-len(OPTIONAL) :] == list(OPTIONAL)
        assert set(writer_options(schema(form))["compression"]) >= {*names} - {"visits", *OPTIONAL}
    assert len(BY_NAME) == len({column.name for column in BY_NAME.values()})
