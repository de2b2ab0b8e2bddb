"""The report page of real networks on games with hostile tags, parsed."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import chess
import pytest

from pipeline.evaluation import charts
from pipeline.evaluation.measure import Rule
from pipeline.evaluation.render import write_report, write_reports
from pipeline.evaluation.report import report, reports
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game

NETWORK = REPOSITORY / "datasets" / "embedded"
HOSTILE = (
    "<img src=x "
    "onerror=\"document.title='hacked'\"></figcaption><script>document.title='hacked'</script>"
)


def hostile_game(seed: int) -> str:
    """Return a random game whose players, event and site are somebody's attack."""
    escaped = HOSTILE.replace('"', '\\"')
    tags = f'[White "{escaped}"]\n[Black "{seed}{escaped}"]\n'
    text = random_game(seed, 20).replace("Rated Rapid game", f"</style>{escaped}")
    site = (
        "https://lichess.org/",
        "javascript:alert(1)//",
        'https://x.org/\\" onmouseover=\\"alert(1)',
    )[seed % 3]
    return tags + text.replace("https://lichess.org/", site)


class Parsed(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Measure the embedded network twice, as two checkpoints, on the test split of hostile
    games."""
    folder = tmp_path_factory.mktemp("page")
    dump, positions = folder / "dumps" / "hostile.pgn", folder / "positions" / "games"
    dump.parent.mkdir()
    dump.write_text("".join(map(hostile_game, range(40))))
    ingest([str(dump)], positions, IngestConfig(test_share=0.5), workers=1)
    twin = shutil.copytree(NETWORK, folder / "twin")
    return reports([NETWORK, twin], positions=positions, rule=Rule(limit=80), rating_rows=2)


@pytest.fixture(scope="module")
def written(found: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_report(found["reports"][0], folder / "one")
    with pytest.MonkeyPatch.context() as patch:  # the first page has the same charts
        patch.setattr(charts, "draw_bars", lambda *_: "")
        write_reports(found, folder / "two")
    return folder


def test_the_page_holds_every_section_and_loads_nothing(
    found: dict[str, Any], written: Path
) -> None:
    html = (written / "one" / "report.html").read_text()
    page, report = Parsed(html), found["reports"][0]
    text = page.text
    assert f"{100 * report['top1']:.1f}\N{NO-BREAK SPACE}%" in text
    order = [report["headline"], report["compared"], report["rule"], "Calibration"]
    order += ["Accuracy by position and move", "Conditioned on a rating"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "the test split of games, which it was not trained on." in report["headline"]
    assert "Maia-2 published 53.3 % on its own games" in report["compared"]
    assert "Maia-2, on its own games" in text, "the chart's line"
    assert len(html) < 3 << 20
    loading = {"script", "iframe", "object", "embed", "link", "img", "base", "form"}
    assert not loading & {tag for tag, _ in page.tags}
    assert "url(http" not in html
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name) or "#"
            linked = tag == "a" and re.fullmatch(r"https://lichess\.org/\d{8}", value)
            assert value.startswith("#") or linked, value
    boards = [row for rows in report["details"]["boards"].values() for row in rows]
    assert html.count("<figure>") == len(boards) > 12
    assert any("link" in row for row in boards)


def test_boards_show_legal_moves_of_the_games(found: dict[str, Any]) -> None:
    boards = found["reports"][0]["details"]["boards"]
    assert 0 < max(map(len, boards.values())) <= 12
    for rows in boards.values():
        assert len({row["game"] for row in rows}) == len(rows), "one board of a game"
        for row in rows:
            board = chess.Board(row["fen"])
            assert board.is_legal(chess.Move.from_uci(row["played"]))
            assert board.is_legal(chess.Move.from_uci(row["chosen"]))
            assert 0 <= row["played_probability"] <= row["chosen_probability"] + 1e-5
            assert row["white"] == HOSTILE[:80]
    assert all(row["rank"] > 1 for row in boards["sure_and_wrong"])
    sure = [row["chosen_probability"] for row in boards["sure_and_wrong"]]
    assert sure == sorted(sure, reverse=True)


def test_two_alike_differ_by_nothing(found: dict[str, Any], written: Path) -> None:
    assert found["reports"][0]["top1_not_in_train"] is not None
    (difference,) = found["differences"]
    assert (difference["name"], difference["against"]) == ("twin", "embedded")
    assert [difference[name] for name in ("top1_difference", "top1_low", "top1_high")] == [0, 0, 0]
    page = (written / "two" / "report.html").read_text()
    assert "Differences, paired on the same positions" in page
    assert "<figure>" not in page, "a report of one checkpoint has the boards"
    assert json.loads((written / "two" / "report.json").read_text())["names"] == [
        "embedded",
        "twin",
    ]
    assert "| twin |" in (written / "two" / "report.txt").read_text()


def test_a_chart_is_xml_with_its_counts_and_the_pages_colours() -> None:
    rows = [
        {
            "band": "a <b> & $x$",
            "positions": 1234,
            "top1": 0.5,
            "top1_low": 0.4,
            "top1_high": 0.6,
            "hand_written_top1": 0.3,
        }
    ]
    svg = charts.draw_bars(rows, 0.3)
    assert "var(--first)" not in charts.draw_bars(rows, 0.55), "no color within the interval"
    root = ElementTree.fromstring(svg)
    assert "a <b> & $x$  (1,234)" in [text for element in root.iter() if (text := element.text)]
    assert "var(--first)" in svg
    assert "var(--ink)" in svg
    assert charts.draw_bars(rows, 0.3) == svg, "the same file every day"


def test_a_game_without_ratings_clocks_and_many_moves_has_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "one.pgn").write_text(
        '[Event "?"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Ke7 3. Qxe5# 1-0\n\n'
    )
    result = report(NETWORK, pgn=tmp_path / "one.pgn", players=False)
    assert (result["positions"], result["common_rule"]["positions"]) == (5, 0)
    write_report(result, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "too few games" in page
    assert "Conditioned on a rating" not in page
    assert "rating_matrix" not in result
    json.loads(
        (tmp_path / "out" / "report.json").read_text(),
        parse_constant=lambda name: pytest.fail(name),
    )
