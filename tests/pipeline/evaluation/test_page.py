"""The report page of real networks, measured on games with hostile tags."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import chess
import numpy as np
import polars as pl
import pytest

from model.network.presets import preset
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.evaluation import charts
from pipeline.evaluation.measure import BOARD_SECTIONS, PositionFilter, choose_rows
from pipeline.evaluation.render import render_report, write_report
from pipeline.evaluation.report import report, reports
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.model.test_checkpoint import make
from tests.pipeline.datasets import random_game

HOSTILE = (
    "<img src=x "
    "onerror=\"document.title='hacked'\"></figcaption><script>document.title='hacked'</script>"
)


def hostile_game(seed: int) -> str:
    """Return a random game with scripts and markup in its players, event and site."""
    escaped = HOSTILE.replace('"', '\\"')
    tags = f'[White "{escaped}"]\n[Black "{seed}{escaped}"]\n'
    event = f"Rated </style> https://lichess.org/tournament/x{escaped}"
    text = random_game(seed, 20).replace("Rated Rapid game", event)
    site = (
        "https://lichess.org/",
        "javascript:alert(1)//",
        'https://x.org/\\" onmouseover=\\"alert(1)',
    )[seed % 3]
    return tags + text.replace("https://lichess.org/", site)


class ParsedPage(HTMLParser):
    """The tags, attributes and text of a page."""

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
def comparison(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Compare the embedded network with a copy and an untrained network, on hostile games."""
    folder = tmp_path_factory.mktemp("page")
    dump, positions = folder / "dumps" / "hostile.pgn", folder / "positions" / "games"
    dump.parent.mkdir()
    dump.write_text("".join(map(hostile_game, range(40))))
    ingest([str(dump)], positions, IngestConfig(test_share=0.5), workers=1)
    twin = shutil.copytree(EMBEDDED_CHECKPOINT, folder / "twin")
    make(folder / "untrained", preset("fianchetto-xs"))
    networks = [twin, folder / "untrained", EMBEDDED_CHECKPOINT]
    return reports(networks, positions=positions, rule=PositionFilter(limit=80), rating_rows=2)


@pytest.fixture(scope="module")
def written(comparison: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of one network and that of all three."""
    folder = tmp_path_factory.mktemp("written")
    write_report(comparison["reports"][0], folder / "one")
    with pytest.MonkeyPatch.context() as patch:  # to save time: the first page has these charts
        patch.setattr(charts, "draw_bars", lambda *_, **__: "")
        write_report(comparison, folder / "three")
    return folder


def test_the_page_has_every_section_and_loads_nothing(
    comparison: dict[str, Any], written: Path
) -> None:
    html = (written / "one" / "report.html").read_text()
    page, report = ParsedPage(html), comparison["reports"][0]
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    order = [report["headline"], report["compared"], "Moves found, by the player's rating"]
    order += ["Accuracy by position and move", "Calibration", "At each rating", "Terms"]
    order += [report["rule"]]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    top1 = f"{100 * report['top1']:.1f} %"
    assert report["headline"].startswith(
        f"The embedded network finds {top1} of the moves of unseen"
    )
    assert "of the test split of games" in report["compared"]
    assert "Maia-2 published 53.3 % on its own test games" in report["compared"]
    assert "It reads both players' ratings." in text
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


@pytest.mark.parametrize("name", ["one", "three"])
def test_no_two_columns_of_a_table_have_the_same_head(written: Path, name: str) -> None:
    html = (written / name / "report.html").read_text()
    tables = re.findall("<table.*?</tr>", html, re.DOTALL)
    assert tables
    for table in tables:
        heads = [re.sub("<[^>]*>", "", head) for head in re.findall("<th.*?</th>", table)]
        assert len(set(heads)) == len(heads), heads


def test_boards_show_legal_moves_of_the_games(comparison: dict[str, Any]) -> None:
    boards = comparison["reports"][0]["details"]["boards"]
    assert 0 < max(map(len, boards.values())) <= 12
    for rows in boards.values():
        assert len({row["game"] for row in rows}) == len(rows), "two boards of one game"
        for row in rows:
            board = chess.Board(row["fen"])
            assert board.is_legal(chess.Move.from_uci(row["played"]))
            assert board.is_legal(chess.Move.from_uci(row["chosen"]))
            assert 0 <= row["played_probability"] <= row["chosen_probability"] + 1e-5
            assert row["white"] == HOSTILE[:80]
            assert row["event"].startswith("Rated </style>")
            assert "https:" not in row["event"]
    assert all(row["rank"] > 1 for row in boards["sure_and_wrong"])
    sure = [row["chosen_probability"] for row in boards["sure_and_wrong"]]
    assert sure == sorted(sure, reverse=True)


def test_the_headline_compares_the_last_network_with_the_first(
    comparison: dict[str, Any], written: Path
) -> None:
    assert comparison["names"] == ["the embedded network", "twin", "untrained"]
    assert comparison["reports"][0]["top1_not_in_train"] is not None
    matrix = comparison["reports"][2]["rating_matrix"]
    assert matrix == "skipped: fianchetto-xs is not conditioned on ratings"
    twin, untrained = comparison["differences"]
    assert twin["against"] == "the embedded network"
    assert [twin[name] for name in ("top1_difference", "top1_low", "top1_high")] == [0, 0, 0]
    assert (twin["gained"], twin["lost"]) == (0, 0)
    hits = [round(80 * report["top1"]) for report in comparison["reports"]]
    assert untrained["gained"] - untrained["lost"] == hits[2] - hits[0]
    headline = comparison["headline"]
    points = f"{abs(100 * untrained['top1_difference']):.1f} points"
    assert headline.startswith(f"untrained finds {100 * hits[2] / 80:.1f} % of the moves")
    assert f"{points} {'fewer' if hits[2] < hits[0] else 'more'} than the" in headline
    html, text, content = (
        (written / "three" / f"report.{suffix}").read_text() for suffix in ("html", "txt", "json")
    )
    assert headline in ParsedPage(html).text
    assert "Side by side" in html
    assert json.loads(content)["headline"] == headline
    assert text.startswith(headline)
    assert "\n| twin |" in text


def test_a_comparison_shows_boards_on_which_one_network_alone_is_right(
    comparison: dict[str, Any], written: Path
) -> None:
    boards, difference = comparison["boards"], comparison["differences"][-1]
    for section, count in (("found", "gained"), ("missed", "lost")):
        assert 0 < len(boards[section]) <= min(12, difference[count])
        for row in boards[section]:
            is_right = [row["rank"] == 1, row["reference"]["rank"] == 1]
            assert is_right == ([True, False] if section == "found" else [False, True])
            for choice in (row, row["reference"]):
                assert chess.Board(row["fen"]).is_legal(chess.Move.from_uci(choice["chosen"]))
                assert (choice["chosen"] == row["played"]) == (choice["rank"] == 1)
    page = (written / "three" / "report.html").read_text()
    assert page.count("<figure>") == sum(map(len, boards.values()))
    first = page[: page.index("Side by side")]
    assert first.count("<figure>") == 3
    assert "Only untrained expected it" in first
    assert "Only the embedded network expected it" in first


def test_a_page_without_boards_has_no_caption_for_them(
    comparison: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = comparison["reports"][0]
    monkeypatch.setattr(charts, "draw_bars", lambda *_, **__: "")
    page = render_report(report | {"details": report["details"] | {"boards": {}}}).decode()
    assert "Arrows:" not in page
    assert "<figure>" not in page


def test_boards_come_from_every_rating_band_and_from_different_games() -> None:
    """Nine bands share twelve boards, and rows of unknown rating are not shown."""
    number = np.arange(200)
    is_known = number < 180
    columns = {
        "band": np.where(is_known, number % 9, 9),
        "elo": np.where(is_known, 1500, BATCH_SENTINELS["elo"]),
        "nll": number / 10,
        "rank": np.where((number < 170) | ~is_known, 2, 1),
    }
    table = pl.DataFrame(
        columns | {"game": number // 2, "key": np.where(is_known, number % 150, number)}
    )
    chosen = table[choose_rows(table, BOARD_SECTIONS["disagreement"])]
    assert chosen["band"].to_list() == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8]
    assert chosen["rank"].to_list() == [2] * 12
    assert chosen["game"].n_unique() == chosen["key"].n_unique() == 12


def test_a_chart_is_xml_with_escaped_names_counts_and_the_colors_of_the_page() -> None:
    row = {"band": "a <b> & $x$", "positions": 1234, "top1": 0.5, "hand_written_top1": 0.3}
    rows = [row | {"top1_low": 0.4, "top1_high": 0.6}]
    svg = charts.draw_bars({"one": rows}, 0.3)
    plain = charts.draw_bars({"one": rows}, 0.55)
    assert "var(--series-1)" not in plain, "a bar is in color although its interval has the average"
    texts = [text for element in ElementTree.fromstring(svg).iter() if (text := element.text)]
    assert {"a <b> & $x$", "(1,234)", "50.0"} <= set(texts)
    assert "0 %" not in texts, "the axis begins at 0"
    assert "var(--series-1)" in svg
    assert "var(--ink)" in svg
    assert charts.draw_bars({"one": rows}, 0.3) == svg
    both = charts.draw_bars({"one": rows, "two": rows})
    assert "var(--series-2)" in both
    assert ">two<" in both, "the legend lacks a name"


def test_a_short_game_without_ratings_and_clocks_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "one.pgn").write_text(
        '[Event "?"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Ke7 3. Qxe5# 1-0\n\n'
    )
    result = report(EMBEDDED_CHECKPOINT, pgn=tmp_path / "one.pgn", players=False)
    assert (result["positions"], result["common_rule"]["positions"]) == (5, 0)
    write_report(result, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "too few games" in page
    assert "At each rating" not in page
    assert "rating_matrix" not in result
    json.loads(
        (tmp_path / "out" / "report.json").read_text(),
        parse_constant=lambda name: pytest.fail(name),
    )
