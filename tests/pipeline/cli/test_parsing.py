"""Command lines: help without a command, lists, and mistakes of one sentence."""

import contextlib
import dataclasses
import io
import os
import pty
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_type_hints

import pytest

from engine.errors import UserError
from pipeline.cli.commands.base import Common
from pipeline.cli.help import descriptions
from pipeline.cli.parsing import COMMANDS, command_class, parse
from tests import forked
from tests.conftest import REPOSITORY


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Give what a command line prints that only asks for help."""
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert not ended.value.code
    return capsys.readouterr().out


def test_every_command_of_the_list_is_a_frozen_dataclass() -> None:
    for name in COMMANDS:
        command = command_class(name)
        assert issubclass(command, Common)
        assert dataclasses.is_dataclass(command)
        assert command.__doc__
        with pytest.raises(dataclasses.FrozenInstanceError):
            object.__new__(command).json = True


def test_alone_it_shows_six_verbs_and_asked_for_help_all(capsys: pytest.CaptureFixture[str]) -> None:
    def verbs(text: str) -> list[str]:
        return [line.split()[0] for line in text.splitlines() if line.startswith("  ")]

    assert verbs(printed(capsys)) == ["fetch", "ingest", "train", "report", "show", "uci"]
    assert verbs(printed(capsys, "--help")) == list(COMMANDS)
    assert printed(capsys, "--version") == f"fianchetto {version('fianchetto')}\n"


def test_the_front_imports_nothing_heavy() -> None:
    code = "import sys; from pipeline.cli.main import main\ntry: main()\nfinally:\n"
    code += "    assert not {'tyro', 'numpy', 'numba', 'torch', 'pyarrow'} & set(sys.modules), sys.modules"
    for words in ([], ["--help"], ["--version"]):
        assert subprocess.run([sys.executable, "-c", code, *words], cwd=REPOSITORY, check=False).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["d.pgn", "--speeds", "blitz,rapid"],
        ["--speeds", "blitz,rapid", "d.pgn"],
        ["d.pgn", "--speeds", "blitz", "rapid"],
    ],
)
def test_a_list_is_written_with_commas_or_as_before_behind_the_dumps(words: list[str]) -> None:
    command = parse(["ingest", *words, "--out", "x"])
    assert command.sources == ("d.pgn",)
    assert command.config.speeds == ("blitz", "rapid")


def test_a_single_value_does_not_swallow_the_dump_behind_it() -> None:
    command = parse(["ingest", "--speeds", "blitz", "a.pgn", "b.pgn", "--out", "x"])
    assert (command.sources, command.config.speeds) == (("a.pgn", "b.pgn"), ("blitz",))


def test_a_list_of_many_months_is_not_taken_for_the_name_of_a_file() -> None:
    months = [f"datasets/positions/{year}-{month:02}" for year in range(2013, 2025) for month in range(1, 13)]
    found = parse(["train", "--positions", ",".join(months), "--out", "x", "--steps", "1"]).positions
    assert [str(path) for path in found] == months


def test_lists_of_numbers_paths_and_options(tmp_path: Path) -> None:
    train = parse(["train", "--positions", "a,b", "--out", "x", "--steps", "1"])
    assert train.positions == parse(["train", "--positions", "a", "b", "--out", "x", "--steps", "1"]).positions
    ladder = parse(["ladder", "--simulations", "16,64", "--nodes", "", "datasets/embedded", "--out", "x"])
    assert (ladder.who, ladder.simulations, ladder.nodes) == ("datasets/embedded", (16, 64), ())
    before = parse(["ladder", "datasets/embedded", "--simulations", "16", "64", "--nodes", "--out", "x"])
    assert before == ladder
    assert parse(["ladder", "p", "--out", "x"]).simulations == (16, 64, 256), "a default is left as it is"
    arena = parse(["arena", "a", "b", "--a-option", "Path=x,y,Hash=16", "--out", "x"])
    assert arena.a_option == ("Path=x,y", "Hash=16"), "a comma in a value is not one between values"
    odd = tmp_path / "a,b"
    odd.mkdir()
    assert parse(["train", "--positions", str(odd), "--out", "x", "--steps", "1"]).positions == (str(odd),)
    report = parse(["report", "--checkpoint", "x", "--pgn", "None", "--against", "a,b"])
    assert (report.pgn, report.against) == (None, (Path("a"), Path("b")))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("ingst x", "there is no command 'ingst': did you mean ingest? (fianchetto --help lists them all)"),
        ("frobnicate", "there is no command 'frobnicate' (fianchetto --help lists them all)"),
        (
            "ingest d --spedes blitz",
            "--spedes is not an option: did you mean --speeds? (fianchetto ingest --help explains)",
        ),
        (
            "selfplay --out x --search.simulations 3",
            "--search.simulations is not an option: did you mean --simulations? (fianchetto selfplay --help explains)",
        ),
        (
            "finetune --checkpoint x --out y --learning_rate 3",
            "--learning_rate is not an option: did you mean --train.learning-rate? (fianchetto finetune --help explains)",
        ),
        ("ingest d --zzz", "--zzz is not an option (fianchetto ingest --help explains)"),
        ("ingest d --workers two", "--workers: 'two' is not a whole number (fianchetto ingest --help explains)"),
        ("ingest d --sample x", "--sample: 'x' is not a number (fianchetto ingest --help explains)"),
        ("ingest d --out", "--out needs a value (fianchetto ingest --help explains)"),
        (
            "ingest d --speeds blitz,rapid e.pgn",
            "--speeds: a list is written blitz,rapid,e.pgn, without spaces (fianchetto ingest --help explains)",
        ),
        ("train", "--positions and --out must be given (fianchetto train --help explains)"),
        ("show", "FEN must be given (fianchetto show --help explains)"),
        ("arena a b c --out x", "'c' is one argument too many (fianchetto arena --help explains)"),
        (
            "uci --evaluator foo",
            "--evaluator is one of hand-written, uniform, not 'foo' (fianchetto uci --help explains)",
        ),
        (
            "train --positions x --out y --steps 1 --batch-size 0",
            "batch_size is 0, and must be from 2 to 1000000 (fianchetto train --help explains)",
        ),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_help(words: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(words.split())
    assert str(refused.value) == sentence


@pytest.mark.parametrize("encoding", ["ascii", "UTF-8", "latin-1"])
def test_a_mistake_is_a_sentence_whatever_the_output_s_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """tyro draws its boxes of other characters where the encoding is not called `utf-8`, as with PYTHONIOENCODING=UTF-8."""
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    for words, sentence in (
        ("completion tcsh", "shell is one of bash, zsh, not 'tcsh' (fianchetto completion --help explains)"),
        ("train", "--positions and --out must be given (fianchetto train --help explains)"),
    ):
        with pytest.raises(UserError) as refused:
            parse(words.split())
        assert str(refused.value) == sentence


def test_help_names_what_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage: fianchetto ingest [-h] [OPTIONS] DUMP..." in printed(capsys, "ingest", "--help")
    assert "usage: fianchetto arena [-h] [OPTIONS] PLAYER_A PLAYER_B" in printed(capsys, "arena", "--help")
    assert "usage: fianchetto presets [-h] [OPTIONS] [PRESET...]" in printed(capsys, "networks", "--help")
    told = printed(capsys, "report", "--help")
    assert "--against PATH,..." in told
    assert "{None}" not in told


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_terminal_of_80_columns_and_breaks_no_sentence(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, name, "--help")
    assert max(map(len, text.splitlines())) <= 80
    told = " ".join(text.replace("│", " ").split())
    command = command_class(name)
    for paragraph in (command.__doc__ or "").split("\n\n"):
        assert " ".join(paragraph.split()) in told
    for field, sentence in descriptions(command).items():
        if not dataclasses.is_dataclass(get_type_hints(command)[field]):
            assert " ".join(sentence.split()) in told
    assert not any(line.endswith("one after        │") for line in text.splitlines()), "a docstring's line ends here"


def test_help_has_colours_on_a_terminal_that_wants_them() -> None:
    def shown(**environment: str) -> str:
        told = {"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "80", **environment}
        leader, follower = pty.openpty()
        done = forked.run(
            [sys.executable, "-m", "pipeline", "show", "--help"], cwd=REPOSITORY, stdout=follower, env=told, check=False
        )
        os.close(follower)
        text = b""
        with contextlib.suppress(OSError):  # EIO: nobody holds the other end
            while part := os.read(leader, 65536):
                text += part
        os.close(leader)
        assert done.returncode == 0
        return text.decode()

    assert "\x1b[" in shown()
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in shown(**plain)
        assert "Show the input planes" in shown(**plain)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    script = tmp_path / "fianchetto.bash"
    command = [sys.executable, "-m", "pipeline", "completion", "bash"]
    script.write_text(forked.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout)

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        asked = f'source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE="{" ".join(words)}"'
        asked += "; COMP_POINT=${#COMP_LINE}; _tyro_fianchetto; printf '%s\\n' \"${COMPREPLY[@]}\""
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
        return [word.strip() for word in done.stdout.split()]

    assert completed("fianchetto", "ing") == ["ingest"]
    assert "--speeds" in completed("fianchetto", "ingest", "--sp")
