"""The last lines of commands; those of real commands are in test_main.py."""

import shlex
from pathlib import Path

from pipeline.cli.endings import describe_downloads, describe_first_run, next_command, next_training
from pipeline.cli.main import parse
from pipeline.samples.shipped import EMBEDDED

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
