"""Launchpad forms: values, defaults, errors, and that no field can name a program or a file."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pytest

from engine.errors import UserError
from model.training.config import TrainConfig
from pipeline.dataset.join import JoinConfig
from pipeline.defs.first_network import FirstNetworkOptions
from pipeline.defs.launchpad.forms import describe_settings, list_settings, make_form, read_form
from pipeline.defs.launchpad.options import (
    OPTIONS_BY_ASSET,
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    TrainingSetOptions,
    TunedOptions,
)
from pipeline.defs.resources import DataFolder
from tests.pipeline.defs.conftest import definitions


def submit(cls: type, values: Mapping[str, object]) -> object:
    """Pass values through Dagster as the launchpad does, and return the dataclass."""
    form = make_form(cls)

    @dg.op
    def op_with_form(config: form) -> None:  # type: ignore[valid-type]
        pass

    job = dg.GraphDefinition(name="job", node_defs=[op_with_form]).to_job()
    resolved = dg.validate_run_config(job, {"ops": {"op_with_form": {"config": values}}})
    return read_form(form(**resolved["ops"]["op_with_form"]["config"]))


def test_form_values_reach_the_dataclass() -> None:
    train = TrainConfig(steps=5, learning_rate=1e-4, batch_size=64)
    for more in (
        {"steps": 5, "learning_rate": "1e-4", "batch_size": 64},
        {"train": {"steps": 5, "batch_size": 64}, "train.learning_rate": 1e-4},
    ):
        options = {"minutes": 0.0, "preset": "fianchetto-xs", "more": more}
        assert submit(CheckpointOptions, options) == CheckpointOptions(
            preset="fianchetto-xs", train=train
        )
    names = {"positions": ["a", "b"], "audit": False, "more": {"hold_out": "none"}}
    assert submit(TrainingSetOptions, names) == TrainingSetOptions(
        positions=("a", "b"), audit=False, join=JoinConfig(hold_out="none")
    )


@pytest.mark.parametrize("cls", OPTIONS_BY_ASSET.values())
def test_an_empty_form_is_the_default_and_the_page_lists_all_settings(
    cls: type[Any],
) -> None:
    assert submit(cls, {}) == cls()
    page = describe_settings({"the <title>": cls})
    assert "the &lt;title&gt;" in page
    for name, field in make_form(cls).model_fields.items():
        assert str(field.description).rstrip().endswith((".", ".)")), name
    for key, setting in list_settings(cls).items():
        assert setting.description.endswith("."), key
        assert f"<td>{key}</td>" in page


REFUSED: list[tuple[type, dict[str, object], str]] = [
    (PositionsOptions, {"workrs": 1}, 'unexpected config entry "workrs"'),
    (CheckpointOptions, {"minutes": "many"}, "config:minutes"),
    (CheckpointOptions, {"preset": "flat"}, "got flat"),
    (ReportOptions, {"split": "tets"}, "got tets"),
    (TrainingSetOptions, {"positions": "a"}, "positions"),
    # the following values are refused by the dataclass
    (PositionsOptions, {"workers": 10**9}, "workers must be at most 1024, got 1000000000"),
    (CheckpointOptions, {"more": {"steps": 5}}, "exactly one of minutes"),
    (CheckpointOptions, {"more": {"batch_size": 1}}, "more: batch_size must be at least 2"),
    (CheckpointOptions, {"more": {"train": {"decay": "no"}}}, "more: train.decay must be"),
    (CheckpointOptions, {"more": {"batchsize": 1}}, "did you mean train.batch_size?"),
    (TunedOptions, {"more": {"engine": "/bin/sh"}}, "there is no setting 'engine'"),
    (TunedOptions, {"more": {"finetune": {"engine": "x"}}}, "no setting 'finetune.engine'"),
]


@pytest.mark.parametrize(("cls", "values", "problem"), REFUSED)
def test_the_error_for_a_bad_value_names_it(
    cls: type, values: dict[str, object], problem: str
) -> None:
    with pytest.raises((dg.DagsterInvalidConfigError, UserError)) as error:
        submit(cls, values)
    assert problem in str(error.value)


FOLDER_NAMES = {
    *("base", "checkpoint", "games", "name", "positions", "remove", "start", "stranger"),
    "training_set",
}
"""Text fields that name a folder or a dump in datasets/; `DataFolder` refuses anything else."""
PARSED_TEXTS = {
    *("hold_out", "since", "speeds", "terminations", "until"),  # dates, filters, classes
    *("names", "player"),  # names in the tags of games
    "preset",  # a key of the table of presets
    "options",  # NAME=VALUE of our own search (pipeline/matches/players.py)
    *("log_level", "marker_to_close"),  # of Dagster itself
}
"""Text fields that are compared or parsed, and name nothing outside of the program."""
UNTYPED = {"checkpoint_loads_with_finite_loss", "dump", "io_manager"}
"""Ops and resources without a form, for which Dagster accepts any configuration."""


def list_text_fields(
    config_type: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the type of all fields that are neither a number nor a choice."""
    if getattr(config_type, "fields", None):
        for name, entry in config_type.fields.items():
            yield from list_text_fields(entry.config_type, (*path, name))
    elif hasattr(config_type, "scalar_type"):
        yield from list_text_fields(config_type.scalar_type, path)
    elif hasattr(config_type, "inner_type"):
        yield from list_text_fields(config_type.inner_type, path)
    elif config_type.kind.name not in ("ENUM", "STRICT_SHAPE") and (
        config_type.given_name not in ("Int", "Float", "Bool")
    ):
        yield path, str(config_type.given_name)


def test_no_text_field_of_a_run_can_name_a_program_or_a_file() -> None:
    fields = set()
    for job in definitions().resolve_all_job_defs():
        assert job.resource_defs["io_manager"] is dg.mem_io_manager, "others take a folder"
        fields |= set(list_text_fields(job.run_config_schema.config_type))
    texts = {path for path, kind in fields if kind == "String"}
    for cls in (*OPTIONS_BY_ASSET.values(), FirstNetworkOptions):  # settings inside `more`
        for key, setting in list_settings(cls).items():
            if setting.item_type is str and not setting.choices:
                texts.add(tuple(key.split(".")))
    assert len(texts) > 15, "the forms were not searched"
    known = FOLDER_NAMES | PARSED_TEXTS | {"path"}
    assert {path for path in texts if path[-1] not in known} == set()
    assert {path[0] for path in texts if path[-1] == "path"} <= {"loggers"}
    untyped = [path for path, kind in fields if kind != "String" and path[-1] != "more"]
    assert {path[1] for path in untyped} <= UNTYPED


BAD_NAMES = [
    "../x",
    "/etc",
    "a/b",
    "..",
    ".",
    ".hidden",
    "",
    "a\\b",
    "a\nb",
    "a\0b",
    "https://x.test",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_folder_names_cannot_escape_the_data_folder(name: str) -> None:
    with pytest.raises(UserError, match="plain folder name"):
        DataFolder().result_folder("tuned", name)
    with pytest.raises(UserError, match="plain folder name"):
        DataFolder().find_positions((name,))


def test_programs_and_servers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIANCHETTO_UCI_ENGINE", "FIANCHETTO_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    assert (DataFolder().uci_engine, DataFolder().executor) == ("stockfish", "local")
    monkeypatch.setenv("FIANCHETTO_UCI_ENGINE", "/opt/lc0 --threads 1")
    monkeypatch.setenv("FIANCHETTO_ENGINE", "ray://head:10001")
    assert DataFolder().uci_engine == "/opt/lc0 --threads 1"
    assert DataFolder().executor == "ray://head:10001"
    monkeypatch.setenv("FIANCHETTO_UCI_ENGINE", "")
    assert DataFolder().uci_engine == "", "an empty variable means no engine"
