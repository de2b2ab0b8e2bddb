"""The last lines that commands print. test_main.py reads those of whole commands."""

import shlex
from pathlib import Path

from pipeline.cli.endings import describe_downloads, suggest_command, suggest_training
from pipeline.cli.main import parse
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT


def test_suggested_commands_can_be_pasted_into_a_shell() -> None:
    line = suggest_command("train", "--positions", "a b", "--minutes", 15, "--out", "x")
    assert parse(shlex.split(line)[2:]).positions == ("a b",)
    small, large = (
        parse(shlex.split(suggest_training("d", count))[2:]) for count in (5_000, 8_000_000)
    )
    assert small.start.resolve() == EMBEDDED_CHECKPOINT
    assert large.start is None
    entry = {"bytes": 17_812_345, "sha256": "0", "verified": True, "fetched": True}
    files = {"month.pgn.zst": entry, "mine.pgn": entry | {"verified": False, "fetched": False}}
    first, second, suggestion = describe_downloads(files, Path("dumps")).splitlines()
    assert first == "dumps/month.pgn.zst: 17.8 MB, verified"
    assert "not verified" in second
    assert parse(shlex.split(suggestion)[2:]).sources == ("dumps/month.pgn.zst", "dumps/mine.pgn")
