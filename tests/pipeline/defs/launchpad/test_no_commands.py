"""No run configuration names a program, an address or a file: whoever can launch a run cannot run a
command by it."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from engine.errors import UserError
from pipeline.defs.launchpad.forms import is_hidden, make_form
from pipeline.defs.resources import Compute, Datasets
from tests.pipeline.defs.conftest import definitions
from tests.pipeline.defs.launchpad.test_forms import ALL

NAMES = {
    *("base", "checkpoint", "games", "name", "positions", "remove", "start", "stranger"),
    "training_set",
}
"""Free texts that name a folder or a dump of datasets/; `Datasets` refuses all but plain names and
known dumps."""
WORDS = {
    *("hold_out", "month", "since", "speeds", "terminations", "until"),  # dates, filters, classes
    *("names", "player"),  # names in the tags of games
    "options",  # NAME=VALUE of our own search (pipeline/matches/players.py)
    *("log_level", "marker_to_close"),  # of Dagster itself
}
"""Free texts that are compared or parsed, and name nothing outside of the program."""


def leaves(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Walk a configuration type; yield the path and the type of each value that is neither a number
    nor a choice."""
    if getattr(kind, "fields", None):
        for name, field in kind.fields.items():
            yield from leaves(field.config_type, (*path, name))
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


def test_a_runs_free_texts_are_names_of_folders_and_words() -> None:
    found = set()
    for job in definitions().resolve_all_job_defs():
        found |= set(leaves(job.run_config_schema.config_type))
    texts = {path for path, kind in found if kind == "String"}
    assert len(texts) > 15, "the walk has missed the forms"
    assert {
        path for path in texts if path[-1] not in NAMES | WORDS and path[0] != "loggers"
    } == set()
    assert {path[1] for path, kind in found if kind != "String"} == ANYTHING


ANYTHING = {
    *("accuracy_report_accuracy_beats_hand_written", "checkpoint_loads_with_finite_loss"),
    *(
        "training_set_no_game_in_train_and_a_test",
        "add_partitions",
        "dump",
        "io_manager",
        "leaderboard",
    ),
}
"""Operations and resources without a form, whose configuration Dagster takes whatever it is."""


def test_what_takes_any_configuration_reads_none() -> None:
    job = definitions().resolve_job_def("__ASSET_JOB")
    assert job.resource_defs["io_manager"] is dg.mem_io_manager
    others = definitions().resolve_job_def("register_dumps").all_node_defs
    ops = {op.name: op for op in (*job.all_node_defs, *others)}
    for name in ANYTHING - {"io_manager"}:
        assert "config" not in ops[name].compute_fn.decorated_fn.__annotations__  # type: ignore[union-attr]


@pytest.mark.parametrize("options", ALL)
def test_no_form_has_a_field_for_a_program_or_a_file(options: type[Any]) -> None:
    def walk(cls: type[Any]) -> Iterator[tuple[str, Any]]:
        for name, field in make_form(cls).model_fields.items():
            yield name, field.annotation
            nested = getattr(field.annotation, "made_from", None)
            if dataclasses.is_dataclass(nested):
                yield from walk(nested)  # type: ignore[arg-type]

    for name, kind in walk(options):
        assert not is_hidden(name, kind), name
        assert kind is not str or not {"command", "path", "file", "url", "address", "book"} & set(
            name.split("_")
        ), name


@pytest.mark.parametrize(
    "name",
    [
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
        "https://evil.test/x",
    ],
)
def test_a_folders_name_leads_nowhere_else(name: str) -> None:
    found = Datasets()
    for folder in (found.checkpoint, found.tuned, found.training_set, found.positions):
        with pytest.raises(UserError, match="plain folder name"):
            folder(name)
    if name:
        with pytest.raises(UserError, match="plain folder name"):
            found.find_positions((name,))
    assert found.checkpoint("xs-1..2").name == "xs-1..2"


def test_the_engine_is_stockfish_unless_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FIANCHETTO_UCI_ENGINE", raising=False)
    assert Compute().uci_engine == "stockfish"
    monkeypatch.setenv("FIANCHETTO_UCI_ENGINE", "/opt/lc0 --threads 1")
    assert Compute().uci_engine == "/opt/lc0 --threads 1"
    monkeypatch.setenv("FIANCHETTO_UCI_ENGINE", "")
    assert Compute().uci_engine == ""
