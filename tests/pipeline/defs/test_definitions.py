"""What Dagster finds: the assets, how they hang together, and that its own check passes."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.snap.job_snapshot import JobSnap
from dagster._core.snap.snap_to_yaml import default_values_from_type_snap

from engine.progress import Tick
from model.training.config import TrainConfig
from pipeline.cli.settings import fields_of
from pipeline.dataset.files.columns import FORMS, schema
from pipeline.defs import jobs
from pipeline.defs.launchpad.forms import build_options
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    PositionsOptions,
    ReportOptions,
    StrengthOptions,
    TrainingSetOptions,
    TunedOptions,
)
from pipeline.defs.pages.metadata import CODE_VERSION, column_schema
from pipeline.defs.progress import describe_tick
from pipeline.defs.resources import Datasets, key_of
from pipeline.ingest.chunk import ROWS_VERSION
from tests.pipeline.defs.conftest import ROOT, definitions, random_pgn

GRAPH = """\
dump (datasets, by dumps, in no pool) <- nothing
imitation (model, by players, in accelerator) <- nothing
positions (datasets, by dumps, in processor) <- dump
training_set (datasets, whole, in processor) <- positions
checkpoint (model, whole, in accelerator) <- training_set
accuracy_report (reports, whole, in accelerator) <- checkpoint, training_set
tuned_checkpoint (selfplay, by tunings, in accelerator) <- checkpoint, positions
leaderboard (reports, whole, in no pool) <- accuracy_report
strength_report (reports, by tunings, in accelerator) <- tuned_checkpoint
"""

CHECKS = """\
accuracy_report: accuracy_beats_hand_written warns
checkpoint: loads_with_finite_loss blocks
imitation: plays_more_like_the_player_than_the_base warns
positions: dump_read_to_its_end warns
positions: files_match_manifest blocks
positions: no_game_in_two_splits blocks
positions: rows_match_source blocks
strength_report: stronger_than_supervised warns
training_set: no_game_in_train_and_a_test warns
tuned_checkpoint: loads_with_finite_loss blocks
"""


def test_the_graph_is_this() -> None:
    graph = definitions().resolve_asset_graph()
    lines = []
    for key in graph.toposorted_asset_keys:
        node = graph.get(key)
        by = "whole" if node.partitions_def is None else f"by {node.partitions_def.name}"
        parents = (
            ", ".join(sorted(parent.to_user_string() for parent in node.parent_keys)) or "nothing"
        )
        pool = definitions().resolve_assets_def(key).op.pool or "no pool"
        lines.append(f"{key.to_user_string()} ({node.group_name}, {by}, in {pool}) <- {parents}\n")
    assert "".join(lines) == GRAPH


def test_materialize_all_makes_partitions_that_a_user_added_and_downloads_nothing() -> None:
    """All of a fresh instance is the sample, its training set, a network and its report."""
    found = definitions()
    graph = found.resolve_asset_graph()
    for key in graph.materializable_asset_keys:
        kind = graph.get(key).partitions_def
        assert kind is None or isinstance(kind, dg.DynamicPartitionsDefinition), key
        assert found.resolve_assets_def(key).op.pool != "network", key
    assert {op.pool for op in found.resolve_job_def("fetch_month").all_node_defs} == {"network"}


def test_the_checks_are_these() -> None:
    assets = definitions().resolve_asset_graph().assets_defs
    specs = [spec for asset in assets for spec in asset.check_specs]
    lines = [
        f"{it.asset_key.to_user_string()}: {it.name} {'blocks' if it.blocking else 'warns'}\n"
        for it in specs
    ]
    assert "".join(sorted(lines)) == CHECKS


def test_checks_are_executed_from_their_pages_without_materialising() -> None:
    graph = definitions().resolve_asset_graph()
    made_with = {
        key
        for key in graph.asset_check_keys
        if len(graph.get_execution_set_asset_and_check_keys(key)) > 1
    }
    assert {key.asset_key.to_user_string() for key in made_with} == {
        "tuned_checkpoint",
        "strength_report",
        "imitation",
    }


def test_jobs_schedules_and_sensors() -> None:
    found = definitions()
    names = {job.name for job in found.resolve_all_job_defs() if not job.name.startswith("__")}
    assert names == {
        "build_positions",
        "fetch_month",
        "finetune",
        "register_dumps",
        "train",
        "verify",
    }
    for switched in (found.get_sensor_def("new_dumps"), *(found.schedules or [])):
        assert switched.default_status.value == "STOPPED"
    listing = found.get_sensor_def("dumps_folder")
    assert (listing.default_status.value, listing.minimum_interval_seconds) == ("RUNNING", 20)
    assert found.executor is dg.in_process_executor


@pytest.mark.usefixtures("root")
def test_a_dump_that_is_not_there_is_named_and_heavy_libraries_stay_out_of_the_code_server() -> (
    None
):
    code = (
        "import sys; from pipeline.definitions import defs; from pipeline.defs import run; defs()\n"
        "sys.argv = ['run', '--dump', 'nosuch']; status = run.main()\n"
        "print([name for name in ('torch', 'matplotlib', 'polars') if name in sys.modules]); "
        "sys.exit(status)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert said.returncode == 2
    assert "there is no dump 'nosuch'" in said.stderr
    assert said.stdout.strip() == "[]"


def test_the_launchpad_is_filled_with_every_default() -> None:
    shown = {}
    for name in ("build_positions", "fetch_month", "finetune", "__ASSET_JOB", "train"):
        job = JobSnap.from_job_def(definitions().resolve_job_def(name))
        schema = job.config_schema_snapshot
        top = schema.get_config_snap(job.mode_def_snaps[0].root_config_key or "")
        form = default_values_from_type_snap(top, schema)
        shown |= form.get("ops", {})
    for asset, cls in (
        ("positions", PositionsOptions),
        ("training_set", TrainingSetOptions),
        ("checkpoint", CheckpointOptions),
        ("accuracy_report", ReportOptions),
        ("tuned_checkpoint", TunedOptions),
        ("strength_report", StrengthOptions),
    ):
        assert build_options(cls, shown[asset]["config"]) == cls()
    trained = shown["checkpoint"]["config"]
    settings = {field.name for field in dataclasses.fields(TrainConfig)}
    assert set(trained["train"]) == settings - {"minutes"}, "minutes come first, outside of it"
    first = {"minutes": 5.0, "positions": [], "preset": "fianchetto-human", "start": "auto"}
    assert dict(list(form.items())[:4]) == first, "the form of `train` begins with the usual"
    assert list(trained)[:3] == ["minutes", "preset", "start"]
    order = [field.name for field in fields_of(TrainConfig) if field.name != "minutes"]
    assert list(trained["train"]) == order, "as --help-all lists them"
    assert shown["download"] == {"config": {"month": "2013-01"}}


@pytest.mark.slow
@pytest.mark.usefixtures("root")
def test_dg_check_defs_passes() -> None:
    said = subprocess.run(
        [f"{sys.prefix}/bin/dg", "check", "defs"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "All definitions loaded successfully" in said.stdout + said.stderr


def test_a_dumps_key_is_its_stem() -> None:
    keys = {"lichess_2013-01.pgn.zst": "lichess_2013-01", "a.b.pgn": "a.b", "x.pgn.bz2": "x"}
    keys["x.pgn.zip"] = "x"
    strange = ("x.pgn.part", ".hidden.pgn", ".pgn", "a...b.pgn", "README.md")
    assert {name: key_of(Path(name)) for name in (*keys, *strange)} == {
        **keys,
        **dict.fromkeys(strange),
    }


def test_registering_finds_dumps_and_the_sample_once(root: Path) -> None:
    (root / "sample").mkdir()
    (root / "sample" / "games.pgn").write_text(random_pgn(1))
    with dg.DagsterInstance.ephemeral() as instance:
        assert jobs.register(instance, Datasets()) == ["sample", "small"]
        assert jobs.register(instance, Datasets()) == []
        assert Datasets().source("sample") == root / "sample" / "games.pgn"


def test_assets_are_out_of_date_when_their_version_changes() -> None:
    graph = definitions().resolve_asset_graph()
    versions = {
        key.to_user_string(): str(graph.get(key).code_version)
        for key in graph.materializable_asset_keys
    }
    assert versions["positions"].endswith(f", rows {ROWS_VERSION}")
    files = {name for name, version in versions.items() if version == "1"}
    assert files == {"dump", "leaderboard"}
    assert {versions[name] for name in versions.keys() - files - {"positions"}} == {CODE_VERSION}


def test_everything_that_is_shown_has_its_words() -> None:
    graph = definitions().resolve_asset_graph()
    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        assert node.description, key
        assert node.kinds, key
    for asset in graph.assets_defs:
        for spec in asset.check_specs:
            assert spec.description, spec.name
    for job in definitions().resolve_all_job_defs():
        assert job.name == "__ASSET_JOB" or job.description, job.name
    for switched in (*(definitions().sensors or []), *(definitions().schedules or [])):
        assert switched.description, switched.name
    for form in FORMS:
        made = {"planes": form, "config": {"history": 3}}
        described = {column.name: column.description for column in column_schema(made).columns}
        assert list(described) == schema(form, ("last_move_2", "last_move_3")).names
        assert all(text and text.endswith(".") for text in described.values())


def test_an_observation_begins_with_what_is_asked_first() -> None:
    tick = Tick(
        30,
        120,
        "s",
        {
            "step": 7,
            "loss": 3.1954374,
            "learning_rate": 0.0026319739,
            "positions_per_second": 651.234,
        },
    )
    assert list(describe_tick(tick, 20, 60.0).items()) == [
        ("percent", 25.0),
        ("minutes_left", 4.5),
        ("step", 7),
        ("loss", 3.195),
        ("learning_rate", 0.002632),
        ("positions_per_second", 651.2),
        ("seconds", 30),
    ]
    assert describe_tick(Tick(5, None, "B", {}), 0, 1.0) == {"bytes": 5}
