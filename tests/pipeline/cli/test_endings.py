"""The last lines of commands; test_main.py has those of real commands."""

import shlex
from pathlib import Path

from pipeline.cli.endings import describe_downloads, suggest_command, suggest_training
from pipeline.cli.main import parse
from pipeline.samples.shipped import EMBEDDED


def test_the_next_command_can_be_pasted() -> None:
    line = suggest_command("train", "--positions", "a b", "--minutes", 15, "--out", "x")
    assert parse(shlex.split(line)[2:]).positions == ("a b",)
    few, many = (
        parse(shlex.split(suggest_training("d", count))[2:]) for count in (5_000, 8_000_000)
    )
    assert few.start.resolve() == EMBEDDED
    assert many.start is None
    entry = {"bytes": 17_812_345, "sha256": "0", "verified": True, "fetched": True}
    found = {"month.pgn.zst": entry, "mine.pgn": entry | {"verified": False, "fetched": False}}
    first, second, following = describe_downloads(found, Path("dumps")).splitlines()
    assert first == "dumps/month.pgn.zst: 17.8 MB, verified"
    assert "not verified" in second
    assert parse(shlex.split(following)[2:]).sources == ("dumps/month.pgn.zst", "dumps/mine.pgn")
