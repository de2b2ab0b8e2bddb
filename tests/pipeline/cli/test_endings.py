"""The last lines of commands; those of real commands are in test_main.py."""

import shlex
from pathlib import Path

import pytest

from pipeline.cli.endings import (
    describe_downloads,
    describe_first_run,
    describe_report,
    next_command,
    next_training,
)
from pipeline.cli.main import parse
from pipeline.dataset import join
from pipeline.errors import Stopped
from pipeline.samples.shipped import EMBEDDED
from tests.pipeline.months import month

FIGURES = {"headline": "The network finds 26.2 %.", "compared": "Chance finds 7.1 %."}


def test_a_newcomer_reads_the_figures_and_the_next_command() -> None:
    text = describe_first_run(FIGURES, True, Path("reports/net/sample"), Path("my nets/net"))
    assert max(map(len, text.splitlines())) <= 80
    assert all(words in " ".join(text.split()) for words in FIGURES.values())
    assert "reports/net/sample/report.html" in text
    (line,) = [line for line in text.splitlines() if line.startswith("play it:")]
    assert parse(shlex.split(line)[3:]).checkpoint == Path("my nets/net")
    assert "sample" in text
    assert "sample" not in describe_first_run(FIGURES, False, Path("r"), Path("c"))


def test_a_report_says_where_its_page_is_and_what_was_measured_by_rating() -> None:
    figures = FIGURES | {"rule": "every ply"}
    assert "--out" in describe_report(figures, Path("net"), None).splitlines()[3]
    plain = describe_report(figures, Path("net"), Path("out")).splitlines()
    more = describe_report(figures | {"rating_matrix": "11 of 11"}, Path("net"), Path("out"))
    assert [line for line in more.splitlines() if line not in plain] == ["by rating: 11 of 11"]


def test_the_next_command_can_be_copied() -> None:
    line = next_command("train", "--positions", "a b", "--minutes", 15, "--out", "x")
    assert parse(shlex.split(line)[2:]).positions == ("a b",)
    few, many = (parse(shlex.split(next_training("d", count))[2:]) for count in (5_000, 8_000_000))
    assert few.start.resolve() == EMBEDDED
    assert many.start is None
    entry = {"bytes": 17_812_345, "sha256": "0", "verified": True, "fetched": True}
    found = {"month.pgn.zst": entry, "mine.pgn": entry | {"verified": False, "fetched": False}}
    first, second, following = describe_downloads(found, Path("dumps")).splitlines()
    assert first == "dumps/month.pgn.zst: 17.8 MB, verified"
    assert "not verified" in second
    assert parse(shlex.split(following)[2:]).sources == ("dumps/month.pgn.zst", "dumps/mine.pgn")


def test_join_says_what_it_holds_out_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    months = [month(tmp_path, f"2013.0{number}", [number, number + 10]) for number in (1, 2)]
    said: list[str] = []

    def counted(*_: object) -> None:
        assert len(said) == 2
        assert all("held out of 2013.0" in line for line in said)
        raise Stopped("before anything is counted")

    monkeypatch.setattr(join.LOG, "info", lambda text, *values: said.append(text % values))
    monkeypatch.setattr(join, "_both_sides", counted)
    with pytest.raises(Stopped):
        join.join(months, tmp_path / "set")
