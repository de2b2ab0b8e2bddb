"""Parsing of command lines: help, options, settings, YAML files and mistakes."""

import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from engine.errors import UserError
from pipeline.cli.commands.base import BaseCommand
from pipeline.cli.main import COMMANDS, Command, parse
from tests.pipeline.cli.conftest import invoke

TRAIN = ["train", "--positions", "p", "--out", "x"]
MAX_OPTIONS = 16
"""Maximum number of options in a command's help, besides --help."""


def read_help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the text that a command line with --help or --version prints."""
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert not ended.value.code
    return capsys.readouterr().out


def read_error(*words: str) -> str:
    """Return the error message of a command line."""
    with pytest.raises(UserError) as error:
        parse(words)
    return str(error.value)


def test_the_help_lists_all_commands_first_steps_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = read_help(capsys, "--help")
    assert read_help(capsys) == text
    assert re.findall(r"^  ([a-z]+)  +[a-z]", text, re.MULTILINE) == list(COMMANDS)
    order = [text.index(words) for words in ("First steps:", "  fetch", "  uci", "More commands:")]
    assert order == sorted(order)
    for status in ("0", "1", "2", "130", "143"):
        assert re.search(rf"\b{status}\b", text), "the exit statuses are explained"
    assert read_help(capsys, "--version") == f"fianchetto {version('fianchetto')}\n"
    assert "Usage: fianchetto ingest [OPTIONS] DUMP..." in read_help(capsys, "ingest", "--help")
    assert "--against PATH,..." in read_help(capsys, "report", "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_one_screen_and_lists_all_settings(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(name)
    assert issubclass(command.cls, BaseCommand)
    monkeypatch.setenv("COLUMNS", "80")
    lines = read_help(capsys, name, "--help").splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    assert sum(line.startswith("  --") for line in lines) <= MAX_OPTIONS + 1
    all_lines = read_help(capsys, name, "--help-all").splitlines()
    assert max(map(len, all_lines)) <= 80
    shown = {line.split()[0] for line in all_lines if line[:1].strip()}
    assert set(command.settings) <= shown
    assert all(setting.description for setting in command.settings.values())


def test_lists_are_separated_by_commas_or_by_repeated_options(tmp_path: Path) -> None:
    for words in ("--speeds blitz,rapid", "--speeds blitz --speeds rapid"):
        command = parse(["ingest", "d.pgn", *words.split(), "--out", "x"])
        assert (command.sources, command.ingest.speeds) == (("d.pgn",), ("blitz", "rapid"))
    with_comma = tmp_path / "a,b"
    with_comma.mkdir()
    months = [f"datasets/positions/{2013 + at // 12}-{1 + at % 12:02}" for at in range(144)]
    for given, paths in (
        ("a,b", ["a", "b"]),
        (str(with_comma), [str(with_comma)]),
        (",".join(months), months),
    ):
        parsed = parse(["train", "--positions", given, "--out", "x", "--steps", "1"])
        assert [str(path) for path in parsed.positions] == paths
    report = parse(["report", "--checkpoint", "x", "--pgn", "none", "--against", "a,b"])
    assert (report.pgn, report.against) == (None, (Path("a"), Path("b")))


def test_a_setting_is_named_by_its_key_or_the_end_of_its_key() -> None:
    for key in ("train.ema", "ema"):
        assert parse([*TRAIN, "--steps", "5", "--set", f"{key}=0.5"]).train.ema == 0.5
    words = ["finetune", "--checkpoint", "c", "--out", "x", "--generations", "1"]
    tuned = parse([*words, "--set", "explore.search.c_puct=1.5", "--set", "seed=3"]).finetune
    assert tuned.explore.search.c_puct == 1.5
    assert tuned.seed == 3, "the least nested setting of this name"
    assert tuned.train.frozen_norms, "other settings keep the defaults of this command"


def test_the_command_line_overrides_a_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "preset: bishop\ningest: {speeds: [blitz, rapid], since: 2024-01-31, min_elo: 1_500}\n"
        "train: {steps: 7, amp: off, learning_rate: 1e-3, frozen_norms: true, batch_size: 64}\n"
    )
    config = ["--config", str(path)]
    command = parse([*TRAIN, *config, "--batch-size", "32", "--set", "ema=0"])
    train = command.train
    assert (command.preset, train.steps, train.amp) == ("bishop", 7, "off")
    assert (train.learning_rate, train.batch_size, train.ema) == (1e-3, 32, 0.0)
    assert train.frozen_norms
    settings = parse(["ingest", "d.pgn", "--out", "x", *config]).ingest
    assert (settings.speeds, settings.min_elo) == (("blitz", "rapid"), 1500)
    assert settings.since == "2024-01-31"
    assert parse([*TRAIN, *config, "--minutes", "2"]).train.steps is None, "a run has one length"
    assert "exactly one of" in read_error(*TRAIN, *config, "--minutes", "2", "--steps", "3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {stepz: 3}", "did you mean train.steps?"),
        ("train: 3", "train must contain settings"),
        ("- train", "the file must contain settings"),
        ("train: {steps: [1, 2]}", "train.steps must be a valid integer"),
        ("train: !!python/object/apply:os.getcwd []", "train must contain settings"),
        ("train: {steps: 1", "not a YAML file"),
        ("[" * 600, "not a YAML file"),
    ],
)
def test_a_mistake_in_a_file_names_the_file_and_the_key(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    error = read_error(*TRAIN, "--config", str(path))
    assert error.startswith(f"{path}: ")
    assert words in error


MISTAKES = f"""
frobnicate | there is no command 'frobnicate'
ingest d --spedes blitz | No such option
finetune --checkpoint x --out y --learning-rate 3 | use --set finetune.train.learning_rate=VALUE
ingest d --workers two | --workers must be a valid integer, got 'two'
train | --positions and --out must be given
show a b | unexpected extra argument
uci --evaluator foo | 'foo' is not one of 'hand-written', 'uniform'
train --positions x --out y --steps 1 --batch-size 0 | --batch-size must be at least 2
{" ".join(TRAIN)} --set ema | KEY=VALUE
{" ".join(TRAIN)} --set learnin_rate=1 | did you mean train.learning
{" ".join(TRAIN)} --set amp=full | 'auto', 'bf16' or 'off'
selfplay --out x --set temp=1 | there is no setting 'temp'
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_a_mistake_is_one_sentence_that_refers_to_the_help(line: str) -> None:
    words, _, expected = line.partition(" | ")
    error = read_error(*words.split())
    assert expected in error
    assert "\n" not in error
    assert re.search(r"\(see fianchetto (\w+ )?--help\)$", error)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(request: str, *words: str) -> str:
        monkeypatch.setenv("_FIANCHETTO_COMPLETE", request)
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return invoke()[1]

    script = tmp_path / "fianchetto.bash"
    script.write_text(complete("bash_source"))
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    for words, completion in (
        (["ing"], "plain,ingest"),
        (["ingest", "--sp"], "plain,--speeds"),
        (["ingest", "--planes", "c"], "plain,compact"),
    ):
        assert completion in complete("bash_complete", "fianchetto", *words).splitlines()
