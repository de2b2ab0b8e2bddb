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

FIGURES = {
    "headline": "The network finds 26.2 % of the moves in 7,712 positions of the test split of s.",
    "compared": "On the same positions the hand-written player finds 51.8 %, and chance 7.1 %.",
}


def test_a_newcomer_is_told_what_the_figures_mean_and_what_is_next() -> None:
    text = describe_first_run(FIGURES, True, Path("reports/net/sample"), Path("my nets/net"))
    assert max(map(len, text.splitlines())) <= 80
    told = " ".join(text.split())
    assert f"{FIGURES['headline']} {FIGURES['compared']}" in told
    assert "2,000 games that the embedded network played" in told
    assert "reports/net/sample/report.html" in text
    (line,) = [line for line in text.splitlines() if line.startswith("play it:")]
    assert parse(shlex.split(line)[3:]).checkpoint == Path("my nets/net")


def test_of_ones_own_games_nothing_is_said_of_the_sample() -> None:
    text = describe_first_run(FIGURES, False, Path("r"), Path("c"))
    assert "sample" not in text


def test_a_report_says_what_was_measured_by_rating() -> None:
    figures = FIGURES | {"rule": "every ply"}
    assert (
        describe_report(figures, Path("net"), None).splitlines()[3]
        == "report: --out DIR writes a page with all figures"
    )
    plain = describe_report(figures, Path("net"), Path("out")).splitlines()
    more = describe_report(
        figures | {"rating_matrix": "best in 9 of 11 bands"}, Path("net"), Path("out")
    ).splitlines()
    assert [line for line in more if line not in plain] == ["by rating: best in 9 of 11 bands"]
    assert [line for line in more if line in plain] == plain


def test_the_next_command_can_be_copied() -> None:
    line = next_command("train", "--positions", "a b", "--minutes", 15, "--out", "x")
    assert line == "next: fianchetto train --positions 'a b' --minutes 15 --out x"
    assert parse(shlex.split(line)[2:]).positions == ("a b",)


def test_few_games_are_trained_from_the_embedded_network_and_many_from_scratch() -> None:
    few, many = (parse(shlex.split(next_training("d", count))[2:]) for count in (5_000, 8_000_000))
    assert few.start.resolve() == EMBEDDED
    assert many.start is None
    assert few.train.minutes == 5


def test_of_fetched_files_it_is_said_which_were_there() -> None:
    entry = {"bytes": 17_812_345, "sha256": "0", "verified": True, "fetched": True}
    text = describe_downloads(
        {
            "lichess_2013-01.pgn.zst": entry,
            "mine.pgn": entry | {"verified": False, "fetched": False},
        },
        Path("dumps"),
    )
    assert text.splitlines() == [
        "dumps/lichess_2013-01.pgn.zst: 17.8 MB, verified",
        "dumps/mine.pgn: 17.8 MB, not verified: no published hash; already complete, nothing was "
        "fetched",
        "next: fianchetto ingest dumps/lichess_2013-01.pgn.zst dumps/mine.pgn --out "
        "datasets/positions/lichess_2013-01",
    ]


WHY = "most of its games are of one day, 2013.0{}.03: only its val and test splits are held out"


def test_join_says_what_it_holds_out_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    months = [month(tmp_path, f"2013.0{number}", [number, number + 10]) for number in (1, 2)]
    said: list[str] = []

    def counted(*_: object) -> None:
        assert said == [
            f"held out of 2013.0{number}: none ({WHY.format(number)})" for number in (1, 2)
        ]
        raise Stopped("before anything is counted")

    monkeypatch.setattr(join.LOG, "info", lambda text, *values: said.append(text % values))
    monkeypatch.setattr(join, "_both_sides", counted)
    with pytest.raises(Stopped):
        join.join(months, tmp_path / "set")
