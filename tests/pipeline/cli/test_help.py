"""What a terminal shows of results: columns for Markdown's tables, titles and the next command in colour."""

import io

import pytest

from pipeline.cli.help import coloured, emphasised


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_tables_are_columns_and_the_next_command_is_seen() -> None:
    text = "| net | top-1 |\n|---|---|\n| xs | 0.25 |\n| human | 0.4667 |\n\nDATASETS\nnext: fianchetto uci\n"
    assert emphasised(text).splitlines() == [
        "net     top-1",
        "xs       0.25",
        "human  0.4667",
        "",
        "\x1b[1mDATASETS\x1b[0m",
        "next: \x1b[36mfianchetto uci\x1b[0m",
    ]
    odd = "| a | b |\n|---|---|\n| a pipe | in | here |"
    assert emphasised(odd) == odd


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured(Terminal())
    assert not coloured(io.StringIO())
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        with monkeypatch.context() as set_:
            set_.setenv(name, value)
            assert not coloured(Terminal())
