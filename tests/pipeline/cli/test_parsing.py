"""Command lines: help on one screen, options and settings, YAML files, and mistakes of one
sentence."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from engine.errors import UserError
from pipeline.cli.commands.base import Common
from pipeline.cli.main import COMMANDS, Command, command_class, parse
from pipeline.cli.settings import SHARED
from tests import forked
from tests.conftest import REPOSITORY

TRAIN = ["train", "--positions", "p", "--out", "x"]
MOST_OPTIONS = 16
"""Rows of options in a command's help, but for --help."""
MOST_SETTINGS = 300
"""Settings of all commands together; 300 are the goal."""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command line prints that only asks for help."""
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert not ended.value.code
    return capsys.readouterr().out


def refusal(*words: str) -> str:
    """Return the error of a command line."""
    with pytest.raises(UserError) as refused:
        parse(words)
    return str(refused.value)


def test_every_command_of_the_list_is_a_frozen_dataclass() -> None:
    for name in COMMANDS:
        command = command_class(name)
        assert issubclass(command, Common)
        assert dataclasses.is_dataclass(command)
        assert command.__doc__
        with pytest.raises(dataclasses.FrozenInstanceError):
            object.__new__(command).json = True


def test_the_help_lists_all_commands_and_a_beginners_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "--help")
    assert printed(capsys) == text
    found = re.findall(r"^  ([a-z]+)  +[a-z]", text, re.MULTILINE)
    assert found == list(COMMANDS)
    assert (
        text.index("First steps:")
        < text.index("  fetch")
        < text.index("  uci")
        < text.index("More commands:")
    )
    assert printed(capsys, "--version") == f"fianchetto {version('fianchetto')}\n"


def test_the_front_imports_nothing_heavy() -> None:
    code = "import sys; from pipeline.cli.main import main\ntry: main()\nfinally:\n"
    code += "    assert not {'numpy', 'numba', 'torch', 'pyarrow'} & set(sys.modules), sys.modules"
    for words in ([], ["--help"], ["--version"]):
        assert (
            subprocess.run(
                [sys.executable, "-c", code, *words], cwd=REPOSITORY, check=False
            ).returncode
            == 0
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_one_screen(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(capsys, name, "--help").splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    assert sum(line.startswith("  --") for line in lines) <= MOST_OPTIONS + 1
    all_lines = printed(capsys, name, "--help-all").splitlines()
    assert max(map(len, all_lines)) <= 80
    assert set(Command(name).settings) <= {
        line.split()[0] for line in all_lines if line[:1].strip()
    }


def test_the_settings_of_all_commands_are_counted() -> None:
    assert sum(len(Command(name).settings) for name in COMMANDS) <= MOST_SETTINGS


def test_every_setting_says_what_it_does() -> None:
    for name in COMMANDS:
        assert not [key for key, setting in Command(name).settings.items() if not setting.text]


def test_help_names_what_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Usage: fianchetto ingest [OPTIONS] DUMP..." in printed(capsys, "ingest", "--help")
    assert "Usage: fianchetto arena [OPTIONS] PLAYER..." in printed(capsys, "arena", "--help")
    assert "--against PATH,..." in printed(capsys, "report", "--help")


@pytest.mark.parametrize(
    "words",
    [["d.pgn", "--speeds", "blitz,rapid"], ["--speeds", "blitz", "--speeds", "rapid", "d.pgn"]],
)
def test_a_list_is_written_with_commas_or_by_repeating_the_option(words: list[str]) -> None:
    command = parse(["ingest", *words, "--out", "x"])
    assert command.sources == ("d.pgn",)
    assert command.ingest.speeds == ("blitz", "rapid")


def test_a_list_of_many_months_is_not_taken_for_the_name_of_a_file() -> None:
    months = [
        f"datasets/positions/{year}-{month:02}"
        for year in range(2013, 2025)
        for month in range(1, 13)
    ]
    found = parse(
        ["train", "--positions", ",".join(months), "--out", "x", "--steps", "1"]
    ).positions
    assert [str(path) for path in found] == months


def test_lists_of_paths_and_options(tmp_path: Path) -> None:
    assert parse(["train", "--positions", "a,b", "--out", "x", "--steps", "1"]).positions == (
        "a",
        "b",
    )
    odd = tmp_path / "a,b"
    odd.mkdir()
    assert parse(["train", "--positions", str(odd), "--out", "x", "--steps", "1"]).positions == (
        str(odd),
    )
    report = parse(["report", "--checkpoint", "x", "--pgn", "none", "--against", "a,b"])
    assert (report.pgn, report.against) == (None, (Path("a"), Path("b")))


def test_a_setting_is_set_by_its_key_or_the_end_of_it() -> None:
    words = [*TRAIN, "--steps", "5", "--set"]
    for key in ("train.ema", "ema"):
        assert parse([*words, f"{key}=0.5"]).train.ema == 0.5
    words = ["finetune", "--checkpoint", "c", "--out", "x", "--generations", "1"]
    words += ["--set", "explore.search.c_puct=1.5", "--set", "seed=3"]
    tuned = parse(words)
    assert tuned.finetune.explore.search.c_puct == 1.5
    assert tuned.finetune.seed == 3, "the least nested of the settings of this name"
    assert tuned.finetune.train.frozen_norms, "other settings keep the defaults of this command"


def test_a_file_holds_settings_and_the_command_line_goes_before_it(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "# two commands\npreset: bishop\ningest: {speeds: [blitz, rapid], since: 2024-01-31, "
        "min_elo: 1_500}\n"
        "train:\n  steps: 7\n  amp: off\n  learning_rate: 1e-3\n  frozen_norms: true\n  "
        "batch_size: 64\n"
    )
    train = parse([*TRAIN, "--config", str(path), "--batch-size", "32", "--set", "ema=0"])
    settings = train.train
    assert (train.preset, settings.steps, settings.amp, settings.frozen_norms) == (
        "bishop",
        7,
        "off",
        True,
    )
    assert (settings.learning_rate, settings.batch_size, settings.ema) == (1e-3, 32, 0.0)
    settings = parse(["ingest", "d.pgn", "--out", "x", "--config", str(path)]).ingest
    assert (settings.speeds, settings.since, settings.min_elo) == (
        ("blitz", "rapid"),
        "2024-01-31",
        1500,
    )
    assert parse([*TRAIN, "--config", str(path), "--minutes", "2"]).train.steps is None, (
        "a run has one length"
    )
    assert "exactly one of" in refusal(
        *TRAIN, "--config", str(path), "--minutes", "2", "--steps", "3"
    )


def test_a_file_may_hold_settings_of_other_commands_only_if_there_is_one() -> None:
    tops = {key.partition(".")[0] for name in COMMANDS for key in Command(name).settings}
    assert tops >= SHARED


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("train: {stepz: 3}", "there is no setting 'train.stepz'; did you mean train.steps?"),
        ("trian: {steps: 3}", "there is no setting 'trian'; did you mean train?"),
        ("train: 3", "train must hold settings (key: value), got '3'"),
        ("- train", "the file must hold settings (key: value), got ['train']"),
        ("train: {steps: [1, 2]}", "train.steps must be a valid integer, got ['1', '2']"),
        (
            "train: {frozen_norms: perhaps}",
            "train.frozen_norms must be a valid boolean, got 'perhaps'",
        ),
        (
            "train: !!python/object/apply:os.getcwd []",
            "train must hold settings (key: value), got []",
        ),
        ("train: {steps: 1", "not a YAML file: "),
        ("train: \x00", "not a YAML file: "),
        ("[" * 1500, "not a YAML file: "),
    ],
)
def test_a_mistake_in_a_file_names_the_file_and_the_key(
    text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert refusal(*TRAIN, "--config", str(path)).startswith(f"{path}: {sentence}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("ingst x", "there is no command 'ingst'; did you mean ingest? (see fianchetto --help)"),
        ("frobnicate", "there is no command 'frobnicate' (see fianchetto --help)"),
        ("ingest d --spedes blitz", "No such option"),
        (
            "finetune --checkpoint x --out y --learning-rate 3",
            "--learning-rate is not an option; use --set finetune.train.learning_rate=VALUE",
        ),
        ("ingest d --zzz", "No such option"),
        ("ingest d --workers two", "--workers must be a valid integer, got 'two'"),
        ("ingest d --sample x", "--sample must be a valid number, got 'x'"),
        ("ingest d --out", "Option '--out' requires an argument"),
        ("ingest d --estimate=3", "Option '--estimate' does not take a value"),
        ("train", "--positions and --out must be given"),
        ("show", "FEN must be given"),
        ("verify", "DATASET... must be given"),
        ("show a b", "Got unexpected extra argument (b)"),
        (
            "uci --evaluator foo",
            "Invalid value for '--evaluator': 'foo' is not one of 'hand-written', 'uniform'",
        ),
        (
            "train --positions x --out y --steps 1 --batch-size 0",
            "--batch-size must be at least 2, got '0'",
        ),
        (f"{' '.join(TRAIN)} --set ema", "--set takes KEY=VALUE, not 'ema'"),
        (
            f"{' '.join(TRAIN)} --set learnin_rate=1",
            "--set: there is no setting 'learnin_rate'; did you mean train.learning",
        ),
        (
            f"{' '.join(TRAIN)} --set amp=full",
            "--set amp must be 'auto', 'bf16' or 'off', got 'full'",
        ),
        (
            "selfplay --out x --set temp=1",
            "--set: there is no setting 'temp'",
        ),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_help(words: str, sentence: str) -> None:
    said = refusal(*words.split())
    assert said.startswith(sentence)
    assert "\n" not in said
    assert said.endswith((f"(see fianchetto {words.split()[0]} --help)", "(see fianchetto --help)"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    def fianchetto(**environment: str) -> str:
        command = [sys.executable, "-m", "pipeline"]
        environment = {**os.environ, **environment}
        return forked.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=True, env=environment
        ).stdout

    script = tmp_path / "fianchetto.bash"
    script.write_text(fianchetto(_FIANCHETTO_COMPLETE="bash_source"))
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert "complete -o nosort" in script.read_text()

    def completed(*words: str) -> list[str]:
        asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        return [
            line.partition(",")[2]
            for line in fianchetto(_FIANCHETTO_COMPLETE="bash_complete", **asked).splitlines()
        ]

    assert completed("fianchetto", "ing") == ["ingest"]
    assert "--speeds" in completed("fianchetto", "ingest", "--sp")
    assert completed("fianchetto", "ingest", "--planes", "c") == ["compact"]
