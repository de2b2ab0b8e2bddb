"""The definitions that Dagster loads: assets, checks, jobs, sensors, and the defaults of forms."""

import sys
from contextlib import nullcontext
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.snap.job_snapshot import JobSnap
from dagster._core.snap.snap_to_yaml import default_values_from_type_snap

from engine.progress import Tick
from pipeline.dataset.files.columns import PLANE_FORMATS, make_schema
from pipeline.defs import checks, first_network, steps
from pipeline.defs.launchpad.forms import build_options
from pipeline.defs.launchpad.options import OPTIONS_BY_ASSET
from pipeline.defs.pages.metadata import CODE_VERSION, make_column_schema
from pipeline.defs.resources import parse_dump_key
from pipeline.ingest.chunk import ROWS_VERSION
from tests.pipeline.defs.conftest import definitions

GRAPH = """\
dump (datasets, by dumps, in no pool) <- nothing
imitation (model, by players, in accelerator) <- nothing
positions (datasets, by dumps, in processor) <- dump
training_set (datasets, whole, in processor) <- positions
checkpoint (model, whole, in accelerator) <- training_set
accuracy_report (reports, whole, in accelerator) <- checkpoint, training_set
tuned_checkpoint (selfplay, by tunings, in accelerator) <- checkpoint, positions
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


def test_the_asset_graph() -> None:
    graph = definitions().resolve_asset_graph()
    lines = []
    for key in graph.toposorted_asset_keys:
        node, op = graph.get(key), definitions().resolve_assets_def(key).op
        kind = node.partitions_def
        assert kind is None or isinstance(kind, dg.DynamicPartitionsDefinition), "users add them"
        partitions = f"by {kind.name}" if kind else "whole"
        parents = sorted(parent.to_user_string() for parent in node.parent_keys)
        shown = (
            f"{key.to_user_string()} ({node.group_name}, {partitions}, in {op.pool or 'no pool'})"
        )
        lines.append(f"{shown} <- {', '.join(parents) or 'nothing'}\n")
        assert node.description
        assert node.kinds
        version = "1" if key.path == ["dump"] else CODE_VERSION
        rows = f", rows {ROWS_VERSION}" if key.path == ["positions"] else ""
        assert node.code_version == version + rows
    assert "".join(lines) == GRAPH
    ops = definitions().resolve_job_def("first_network").all_node_defs
    assert {op.pool for op in ops} == {"network", "processor", "accelerator"}


def test_the_asset_checks() -> None:
    graph = definitions().resolve_asset_graph()
    specs = [spec for asset in graph.assets_defs for spec in asset.check_specs]
    lines = [
        f"{it.asset_key.to_user_string()}: {it.name} {'blocks' if it.blocking else 'warns'}\n"
        for it in specs
    ]
    assert "".join(sorted(lines)) == CHECKS
    assert all(spec.description for spec in specs)
    executed_alone = {
        key.asset_key.to_user_string()
        for key in graph.asset_check_keys
        if len(graph.get_execution_set_asset_and_check_keys(key)) == 1
    }
    assert executed_alone == {"positions", "checkpoint"}, "their files may change"


def test_jobs_schedules_and_sensors() -> None:
    found = definitions()
    jobs = {job.name: job for job in found.resolve_all_job_defs() if job.name != "__ASSET_JOB"}
    assert set(jobs) == {"build_positions", "first_network", "verify"}
    automatic = [*(found.sensors or []), *(found.schedules or [])]
    assert all(each.description for each in (*jobs.values(), *automatic))
    running = {each.name for each in automatic if each.default_status.value == "RUNNING"}
    assert running == {"datasets_folder"}
    assert found.executor is dg.in_process_executor


@pytest.mark.usefixtures("data_folder")
def test_make_run_prints_errors_and_failed_checks_as_one_line(
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {"files": ["x: missing"], "splits": [], "rows": [], "damage": [], "compared": 0}
    monkeypatch.setattr(dg.DagsterInstance, "get", lambda: nullcontext(instance))
    monkeypatch.setattr(first_network, "load_definitions", definitions)
    monkeypatch.setattr(first_network, "materialize_asset", lambda *_: ())
    monkeypatch.setattr(checks, "verify_partition", lambda *_: checks.evaluate_positions(found, 0))
    for dump, problem in (("nosuch", "there is no dump 'nosuch'"), ("small", checks.FILES_CHECK)):
        monkeypatch.setattr(sys, "argv", ["run", "--dump", dump])
        assert first_network.main() == 1
        assert problem in capsys.readouterr().out


def test_launchpad_defaults_are_complete_and_in_order_of_importance() -> None:
    shown = {}
    for name in ("first_network", "__ASSET_JOB"):
        job = JobSnap.from_job_def(definitions().resolve_job_def(name))
        schema_snap = job.config_schema_snapshot
        root = schema_snap.get_config_snap(job.mode_def_snaps[0].root_config_key or "")
        shown[name] = default_values_from_type_snap(root, schema_snap)
    assert list(shown["first_network"].items()) == [
        ("games", "sample"), ("minutes", 5.0), ("start_from_embedded", True), ("report", True),
    ]  # fmt: skip
    for asset, cls in OPTIONS_BY_ASSET.items():
        form = shown["__ASSET_JOB"]["ops"][asset]["config"]
        assert list(form)[: len(cls.form)] == list(cls.form)
        assert len(cls.form) <= 5
        assert {name for name in form if name not in cls.form} <= {"more"}
        more = form.pop("more", {})
        assert (build_options(cls, form), more) == (cls(), {})


def test_partition_keys_of_dump_files() -> None:
    keys = {"lichess_2013-01.pgn.zst": "lichess_2013-01", "a.b.pgn": "a.b", "x.pgn.bz2": "x"}
    keys |= {"x.pgn.zip": "x", "x.pgn.gz": "x"}
    others = ("x.pgn.part", ".hidden.pgn", ".pgn", "a...b.pgn", "README.md", "a\n.pgn")
    assert {name: parse_dump_key(Path(name)) for name in keys} == keys
    assert not any(parse_dump_key(Path(name)) for name in others)


@pytest.mark.parametrize("planes", PLANE_FORMATS)
def test_the_schema_describes_every_stored_column(planes: str) -> None:
    columns = make_column_schema({"planes": planes, "config": {"history": 3}}).columns
    names = make_schema(planes, ("last_move_2", "last_move_3")).names
    assert [column.name for column in columns] == names
    assert all(str(column.description).endswith(".") for column in columns)


def test_the_remaining_minutes_are_those_of_the_current_stage(
    monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(steps.time, "monotonic", lambda: clock[0])

    @dg.asset
    def work(context: dg.AssetExecutionContext) -> None:
        progress = steps.log_progress(context, context.asset_key, None)
        for stage, total in (("generation 1: self-play", 20), ("generation 1: gate", 5)):
            for done in range(total + 1):
                progress(Tick(done, total, "games", {"loss": 3.1954374}, stage))
                clock[0] += 60.0

    assert dg.materialize([work], instance=instance).success
    records = instance.fetch_observations(work.key, 1000).records[::-1]
    logged = [
        {name: it.value for name, it in record.asset_observation.metadata.items()}
        for record in records
        if record.asset_observation is not None
    ]
    first = {"stage": "generation 1: self-play", "percent": 0.0, "loss": 3.195, "games": 0}
    assert logged[0] == first
    assert logged[10]["minutes_left"] == pytest.approx(10.0)
    assert (logged[21]["stage"], logged[21]["percent"]) == ("generation 1: gate", 0.0)
    assert logged[22]["minutes_left"] == pytest.approx(4.0)
    shown = steps.describe_tick(Tick(30, 120, "s", {"step": 7}), 20, 60.0)
    assert list(shown) == ["percent", "minutes_left", "step", "seconds"]
    assert steps.describe_tick(Tick(5, None, "B"), 0, 1.0) == {"bytes": 5}
