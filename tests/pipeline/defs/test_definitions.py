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
from pipeline.defs.launchpad.options import OPTIONS
from pipeline.defs.pages.metadata import CODE_VERSION, column_schema
from pipeline.defs.resources import parse_key
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
        by = f"by {kind.name}" if kind else "whole"
        parents = sorted(parent.to_user_string() for parent in node.parent_keys)
        shown = f"{key.to_user_string()} ({node.group_name}, {by}, in {op.pool or 'no pool'})"
        lines.append(f"{shown} <- {', '.join(parents) or 'nothing'}\n")
        assert node.description
        assert node.kinds
        changing = "1" if key.path == ["dump"] else CODE_VERSION
        rows = f", rows {ROWS_VERSION}" if key.path == ["positions"] else ""
        assert node.code_version == changing + rows, "out of date when its version changes"
    assert "".join(lines) == GRAPH
    story = definitions().resolve_job_def("first_network").all_node_defs
    assert {op.pool for op in story} == {"network", "processor", "accelerator"}


def test_the_asset_checks() -> None:
    graph = definitions().resolve_asset_graph()
    specs = [spec for asset in graph.assets_defs for spec in asset.check_specs]
    lines = [
        f"{it.asset_key.to_user_string()}: {it.name} {'blocks' if it.blocking else 'warns'}\n"
        for it in specs
    ]
    assert "".join(sorted(lines)) == CHECKS
    assert all(spec.description for spec in specs)
    alone = {
        key.asset_key.to_user_string()
        for key in graph.asset_check_keys
        if len(graph.get_execution_set_asset_and_check_keys(key)) == 1
    }
    assert alone == {"positions", "checkpoint"}, "they verify files, which may change"


def test_jobs_schedules_and_sensors() -> None:
    found = definitions()
    jobs = {job.name: job for job in found.resolve_all_job_defs() if job.name != "__ASSET_JOB"}
    assert set(jobs) == {"build_positions", "first_network", "verify"}
    automatic = [*(found.sensors or []), *(found.schedules or [])]
    assert all(each.description for each in (*jobs.values(), *automatic))
    running = {each.name for each in automatic if each.default_status.value == "RUNNING"}
    assert running == {"datasets_folder"}
    assert found.executor is dg.in_process_executor


@pytest.mark.usefixtures("root")
def test_make_run_prints_errors_and_failed_checks_as_one_line(
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {"files": ["x: missing"], "splits": [], "rows": [], "damage": [], "compared": 0}
    monkeypatch.setattr(dg.DagsterInstance, "get", lambda: nullcontext(instance))
    monkeypatch.setattr(first_network, "load", definitions)
    monkeypatch.setattr(first_network, "materialize", lambda *_: ())
    monkeypatch.setattr(checks, "verify", lambda *_: checks.evaluate_positions(found, 0))
    for dump, words in (("nosuch", "there is no dump 'nosuch'"), ("small", checks.FILES)):
        monkeypatch.setattr(sys, "argv", ["run", "--dump", dump])
        assert first_network.main() == 1
        assert words in capsys.readouterr().out


def test_launchpad_defaults_are_complete_and_in_order_of_importance() -> None:
    shown = {}
    for name in ("first_network", "__ASSET_JOB"):
        job = JobSnap.from_job_def(definitions().resolve_job_def(name))
        described = job.config_schema_snapshot
        top = described.get_config_snap(job.mode_def_snaps[0].root_config_key or "")
        shown[name] = default_values_from_type_snap(top, described)
    assert list(shown["first_network"].items()) == [
        ("games", "sample"), ("minutes", 5.0), ("start_from_embedded", True), ("report", True),
    ]  # fmt: skip
    for asset, cls in OPTIONS.items():
        form = shown["__ASSET_JOB"]["ops"][asset]["config"]
        assert list(form)[: len(cls.form)] == list(cls.form)
        assert len(cls.form) <= 5
        assert {name for name in form if name not in cls.form} <= {"more"}
        more = form.pop("more", {})
        assert (build_options(cls, form), more) == (cls(), {})


def test_partition_keys_of_dump_files() -> None:
    keys = {"lichess_2013-01.pgn.zst": "lichess_2013-01", "a.b.pgn": "a.b", "x.pgn.bz2": "x"}
    keys |= {"x.pgn.zip": "x", "x.pgn.gz": "x"}
    strange = ("x.pgn.part", ".hidden.pgn", ".pgn", "a...b.pgn", "README.md", "a\n.pgn")
    assert {name: parse_key(Path(name)) for name in keys} == keys
    assert not any(parse_key(Path(name)) for name in strange)


@pytest.mark.parametrize("form", PLANE_FORMATS)
def test_columns_of_positions_are_described(form: str) -> None:
    made = {"planes": form, "config": {"history": 3}}
    described = {column.name: column.description for column in column_schema(made).columns}
    assert list(described) == make_schema(form, ("last_move_2", "last_move_3")).names
    assert all(text and text.endswith(".") for text in described.values())


def test_progress_is_measured_by_stage(
    monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(steps.time, "monotonic", lambda: clock[0])

    @dg.asset
    def work(context: dg.AssetExecutionContext) -> None:
        log = steps.log_progress(context, context.asset_key, None)
        for stage, total in (("generation 1: self-play", 20), ("generation 1: gate", 5)):
            for done in range(total + 1):
                log(Tick(done, total, "games", {"loss": 3.1954374}, stage))
                clock[0] += 60.0

    assert dg.materialize([work], instance=instance).success
    records = instance.fetch_observations(work.key, 1000).records[::-1]
    seen = [
        {name: one.value for name, one in record.asset_observation.metadata.items()}
        for record in records
        if record.asset_observation is not None
    ]
    beginning = {"stage": "generation 1: self-play", "percent": 0.0, "loss": 3.195, "games": 0}
    assert seen[0] == beginning
    assert seen[10]["minutes_left"] == pytest.approx(10.0)
    assert (seen[21]["stage"], seen[21]["percent"]) == ("generation 1: gate", 0.0)
    assert seen[22]["minutes_left"] == pytest.approx(4.0), "of the games of this stage"
    shown = steps.describe_tick(Tick(30, 120, "s", {"step": 7}), 20, 60.0)
    assert list(shown) == ["percent", "minutes_left", "step", "seconds"]
    assert steps.describe_tick(Tick(5, None, "B"), 0, 1.0) == {"bytes": 5}
