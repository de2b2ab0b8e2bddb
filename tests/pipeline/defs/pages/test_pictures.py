"""Thumbnails are small enough for Dagster to show in place, and draw what they are given."""

import base64
import re
from pathlib import Path
from xml.etree import ElementTree

import dagster_webserver
import pytest

from pipeline.defs.pages.pictures import INLINE, MOST_DRAWN, THUMB, inline, thumbnail


def drawn(markdown: str) -> list[str]:
    """Return the drawing commands of a thumbnail's one path."""
    found = re.search(r"base64,([^)]+)\)", markdown)
    assert found is not None
    (path,) = ElementTree.fromstring(base64.b64decode(found[1]))
    return re.findall(r"[MLV]", path.attrib["d"])


@pytest.mark.parametrize("bars", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 31, 5000])
def test_a_thumbnail_of_any_length_is_shown_in_place(count: int, bars: bool) -> None:
    values = [1e9 * (-1) ** at * at for at in range(count)] if not bars else [float(at) for at in range(count)]
    markdown = inline("x" * 5000, thumbnail(values, "loss " * 100, bars=bars))
    assert len(markdown) < INLINE
    if count:
        assert len(drawn(thumbnail(values, "", bars=bars))) == min(count, MOST_DRAWN) * (2 if bars else 1)


def test_the_highest_value_is_the_highest_bar() -> None:
    found = re.search(r"base64,([^)]+)\)", thumbnail([1, 4, 2], "", bars=True))
    assert found is not None
    (path,) = ElementTree.fromstring(base64.b64decode(found[1]))
    tops = [int(y) for y in re.findall(r"V(\d+)", path.attrib["d"])]
    assert tops[1] == 2
    assert tops[1] < tops[2] < tops[0] < THUMB[1]


def test_dagsters_page_shows_markdown_in_place_below_this_length() -> None:
    """What decides it is in the UI's own code: `mdStr.length<1e3`."""
    scripts = (Path(dagster_webserver.__file__).parent / "webapp" / "build").rglob("*.js")
    assert any(f"mdStr.length<{INLINE // 1000}e3" in path.read_text(errors="replace") for path in scripts)
