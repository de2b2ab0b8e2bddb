"""Launchpad forms: the same dataclasses as the command line's, bad values refused in words."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import dagster as dg
import pytest

from engine.errors import UserError
from model.training.config import TrainConfig
from pipeline.defs.launchpad.forms import descriptions, filled, form, plain
from pipeline.defs.launchpad.options import CheckpointOptions, PositionsOptions, ReportOptions
from pipeline.ingest.chunk import IngestConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    """What is inside."""

    rate: float = 1e-5
    """How fast, per step."""
    steps: int | None = None
    """How many."""
    precision: Literal["auto", "half"] = "auto"
    """How wide."""

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise UserError(f"rate must be positive, not {self.rate}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    """What is outside."""

    where: Path
    """A folder."""
    names: tuple[str, ...] = ()
    """Some names."""
    inner: Inner = field(default_factory=lambda: Inner(steps=7))
    """The rest."""


def validated(cls: type, values: Mapping[str, object]) -> dict[str, object]:
    """Pass values through Dagster as a launchpad does, defaults filled in."""
    got = {}

    @dg.op(config_schema=form(cls))
    def take(context: dg.OpExecutionContext) -> None:
        got.update(context.op_config)

    @dg.job
    def job() -> None:
        take()

    config = {"ops": {"take": {"config": values}}, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    job.execute_in_process(config)
    return got


def test_defaults_and_given_values_arrive() -> None:
    assert filled(Outer, validated(Outer, {"where": "/x"})) == Outer(where=Path("/x"))
    values = {"where": "/x", "names": ["a"], "inner": {"rate": 1, "steps": 0, "precision": "half"}}
    expected = Outer(where=Path("/x"), names=("a",), inner=Inner(rate=1.0, steps=None, precision="half"))
    assert filled(Outer, validated(Outer, values)) == expected


@pytest.mark.parametrize("cls", [PositionsOptions, CheckpointOptions, ReportOptions, IngestConfig])
def test_an_untouched_form_is_the_default(cls: type) -> None:
    assert filled(cls, validated(cls, {})) == cls()


def test_json_and_back_is_the_same() -> None:
    for settings in (Outer(where=Path("/x"), names=("a", "b")), TrainConfig(steps=3)):
        assert filled(type(settings), plain(settings)) == settings


def test_each_field_has_its_sentence_and_is_shown() -> None:
    for cls in (IngestConfig, TrainConfig, PositionsOptions, CheckpointOptions, ReportOptions):
        fields = form(cls)
        assert list(fields) == [field.name for field in dataclasses.fields(cls)]
        for name, shown in fields.items():
            assert (shown.description or "").startswith(descriptions(cls)[name]), name
            assert descriptions(cls)[name].rstrip().endswith("."), name
    assert form(Inner)["steps"].default_value == 0
    assert "0: none" in str(form(Inner)["steps"].description)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "Missing required config entry"),
        ({"where": "/x", "nams": []}, 'unexpected config entry "nams"'),
        ({"where": "/x", "inner": {"rate": "fast"}}, "Invalid scalar at path root:ops:take:config:inner:rate"),
        ({"where": "/x", "inner": {"precision": "wide"}}, "precision: 'auto' | 'half' got wide"),
        ({"where": "/x", "names": "a"}, "names"),
    ],
)
def test_the_form_refuses(values: dict[str, object], words: str) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError) as refusal:
        validated(Outer, values)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("cls", "values", "words"),
    [
        (PositionsOptions, {"workers": -1}, "workers is -1, and must be from 0 to"),
        (PositionsOptions, {"verified_rows": -5}, "verified_rows is -5"),
        (ReportOptions, {"drawn": -1}, "drawn is -1"),
        (ReportOptions, {"drawn": 10**9}, "drawn is 1000000000"),
    ],
)
def test_options_that_cannot_be_are_named(cls: type, values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        filled(cls, validated(cls, values))


def test_the_dataclass_refuses_what_the_form_cannot_know() -> None:
    with pytest.raises(UserError, match=r"^rate must be positive, not -1.0$"):
        filled(Outer, validated(Outer, {"where": "/x", "inner": {"rate": -1.0}}))
    with pytest.raises(UserError, match="Inner has no option 'steeps'; it has rate, steps, precision"):
        filled(Inner, {"steeps": 1})
    with pytest.raises(UserError, match="either minutes or steps"):
        filled(CheckpointOptions, validated(CheckpointOptions, {"train": {"steps": 5}}))
