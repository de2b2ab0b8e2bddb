"""Launchpad forms: values, defaults, errors, and no field that can name a program or a file."""

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


def validated(cls: type, values: Mapping[str, object]) -> object:
    """Pass values through Dagster as a launchpad does, defaults filled in, and return the
    dataclass."""
    form = make_form(cls)

    @dg.op
    def take(config: form) -> None:  # type: ignore[valid-type]
        pass

    job = dg.GraphDefinition(name="job", node_defs=[take]).to_job()
    resolved = dg.validate_run_config(job, {"ops": {"take": {"config": values}}})
    return read_form(form(**resolved["ops"]["take"]["config"]))


def test_form_values_reach_the_dataclass() -> None:
    longer = TrainConfig(steps=5, learning_rate=1e-4, batch_size=64)
    for more in (
        {"steps": 5, "learning_rate": "1e-4", "batch_size": 64},
        {"train": {"steps": 5, "batch_size": 64}, "train.learning_rate": 1e-4},
    ):
        options = {"minutes": 0.0, "preset": "fianchetto-xs", "more": more}
        assert validated(CheckpointOptions, options) == CheckpointOptions(
            preset="fianchetto-xs", train=longer
        )
    names = {"positions": ["a", "b"], "audit": False, "more": {"hold_out": "none"}}
    assert validated(TrainingSetOptions, names) == TrainingSetOptions(
        positions=("a", "b"), audit=False, join=JoinConfig(hold_out="none")
    )


@pytest.mark.parametrize("cls", OPTIONS_BY_ASSET.values())
def test_an_empty_form_is_the_default_and_the_page_lists_all_settings(
    cls: type[Any],
) -> None:
    assert validated(cls, {}) == cls()
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
    # by the dataclass
    (PositionsOptions, {"workers": 10**9}, "workers must be at most 1024, got 1000000000"),
    (CheckpointOptions, {"more": {"steps": 5}}, "exactly one of minutes"),
    (CheckpointOptions, {"more": {"batch_size": 1}}, "more: batch_size must be at least 2"),
    (CheckpointOptions, {"more": {"train": {"decay": "no"}}}, "more: train.decay must be"),
    (CheckpointOptions, {"more": {"batchsize": 1}}, "did you mean train.batch_size?"),
    (TunedOptions, {"more": {"engine": "/bin/sh"}}, "there is no setting 'engine'"),
    (TunedOptions, {"more": {"finetune": {"engine": "x"}}}, "no setting 'finetune.engine'"),
]


@pytest.mark.parametrize(("cls", "values", "words"), REFUSED)
def test_bad_values_are_refused_and_named(cls: type, values: dict[str, object], words: str) -> None:
    with pytest.raises((dg.DagsterInvalidConfigError, UserError)) as refusal:
        validated(cls, values)
    assert words in str(refusal.value)


NAMES = {
    *("base", "checkpoint", "games", "name", "positions", "remove", "start", "stranger"),
    "training_set",
}
"""Free texts that name a folder or a dump of datasets/; `DataFolder` refuses all but plain names and
known dumps."""
WORDS = {
    *("hold_out", "since", "speeds", "terminations", "until"),  # dates, filters, classes
    *("names", "player"),  # names in the tags of games
    "preset",  # a key of the table of presets
    "options",  # NAME=VALUE of our own search (pipeline/matches/players.py)
    *("log_level", "marker_to_close"),  # of Dagster itself
}
"""Free texts that are compared or parsed, and name nothing outside of the program."""


ANYTHING = {"checkpoint_loads_with_finite_loss", "dump", "io_manager"}
"""Operations and resources without a form, whose configuration Dagster takes whatever it is."""


def leaves(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Walk a configuration type; yield path and type of values that are no number or choice."""
    if getattr(kind, "fields", None):
        for name, entry in kind.fields.items():
            yield from leaves(entry.config_type, (*path, name))
    elif hasattr(kind, "scalar_type"):
        yield from leaves(kind.scalar_type, path)
    elif hasattr(kind, "inner_type"):
        yield from leaves(kind.inner_type, path)
    elif kind.kind.name not in ("ENUM", "STRICT_SHAPE") and kind.given_name not in (
        "Int",
        "Float",
        "Bool",
    ):
        yield path, str(kind.given_name)


def test_free_texts_of_a_run_cannot_name_programs_or_files() -> None:
    found = set()
    for job in definitions().resolve_all_job_defs():
        assert job.resource_defs["io_manager"] is dg.mem_io_manager, "another takes a folder"
        found |= set(leaves(job.run_config_schema.config_type))
    texts = {path for path, kind in found if kind == "String"}
    for cls in (*OPTIONS_BY_ASSET.values(), FirstNetworkOptions):  # what `more` takes
        folded = list_settings(cls).items()
        texts |= {tuple(key.split(".")) for key, it in folded if it.item_type is str and not it.choices}
    assert len(texts) > 15, "the walk has missed the forms"
    assert {path for path in texts if path[-1] not in NAMES | WORDS | {"path"}} == set()
    assert {path[0] for path in texts if path[-1] == "path"} <= {"loggers"}
    anything = [path for path, kind in found if kind != "String" and path[-1] != "more"]
    assert {path[1] for path in anything} <= ANYTHING


NOWHERE = (
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
    "https://x.test/x",
)


@pytest.mark.parametrize("name", NOWHERE)
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
    assert DataFolder().uci_engine == "", "no engine"
