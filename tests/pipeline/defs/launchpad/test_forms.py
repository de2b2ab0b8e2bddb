"""Launchpad forms: the same dataclasses as the command line's, bad values refused in words."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import dagster as dg
import pytest

from engine.errors import UserError
from pipeline.defs.launchpad.forms import descriptions, is_hidden, make_form, read_form
from pipeline.defs.launchpad.options import (
    CheckpointOptions,
    FetchOptions,
    PositionsOptions,
    ReportOptions,
    StrengthOptions,
    TrainDetails,
    TrainingSetOptions,
    TunedOptions,
)
from pipeline.ingest.chunk import IngestConfig

ALL = (
    FetchOptions,
    PositionsOptions,
    TrainingSetOptions,
    CheckpointOptions,
    ReportOptions,
    TunedOptions,
    StrengthOptions,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    """What is inside."""

    rate: float = 1e-5
    """How fast, per step."""
    steps: int | None = None
    """How many."""
    precision: Literal["auto", "half"] = "auto"
    """How wide."""
    other: Literal["auto", "half"] | None = None
    """How wide elsewhere."""

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise UserError(f"rate must be positive, not {self.rate}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    """What is outside."""

    where: str
    """A folder."""
    book: Path | None = None
    """A file."""
    engine: str = "stockfish"
    """A command."""
    names: tuple[str, ...] = ()
    """Some names."""
    count: int = 3
    """How often."""
    kind: Annotated[str, lambda: ("round", "square")] = "round"
    """Which."""
    inner: Inner = field(default_factory=lambda: Inner(steps=7))
    """The rest."""


def validated(cls: type, values: Mapping[str, object]) -> object:
    """Pass values through Dagster as a launchpad does, defaults filled in, and return the
    dataclass."""
    got = []

    @dg.op
    def take(config: make_form(cls)) -> None:  # type: ignore[valid-type]
        got.append(read_form(config))

    @dg.job
    def job() -> None:
        take()

    config = {
        "ops": {"take": {"config": values}},
        "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
    }
    job.execute_in_process(config)
    return got[0]


def test_defaults_and_given_values_arrive() -> None:
    assert validated(Outer, {"where": "/x"}) == Outer(where="/x")
    inner = {"rate": 1, "steps": 0, "precision": "half", "other": "half"}
    values = {"where": "/x", "names": ["a"], "kind": "square", "inner": inner}
    expected = Inner(rate=1.0, steps=None, precision="half", other="half")
    assert validated(Outer, values) == Outer(
        where="/x", names=("a",), kind="square", inner=expected
    )


@pytest.mark.parametrize("cls", [*ALL, IngestConfig])
def test_an_untouched_form_is_the_default(cls: type) -> None:
    assert validated(cls, {}) == cls()


def test_each_field_has_its_sentence_and_is_shown() -> None:
    for cls in (*ALL, IngestConfig, TrainDetails):
        fields = make_form(cls).model_fields
        hints = get_type_hints(cls, include_extras=True)
        names = [field.name for field in dataclasses.fields(cls) if "hidden" not in field.metadata]
        assert list(fields) == [name for name in names if not is_hidden(name, hints[name])]
        sentences = descriptions(cls)
        for name, shown in fields.items():
            assert (shown.description or "").startswith(sentences[name]), name
            assert sentences[name].rstrip().endswith("."), name
    assert make_form(Inner).model_fields["steps"].default == 0
    assert "0 means none" in str(make_form(Inner).model_fields["steps"].description)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "Missing required config entry"),
        ({"where": "/x", "engine": "/bin/sh"}, 'unexpected config entry "engine"'),
        ({"where": "/x", "book": "/etc/passwd"}, 'unexpected config entry "book"'),
        ({"where": "/x", "nams": []}, 'unexpected config entry "nams"'),
        (
            {"where": "/x", "inner": {"rate": "fast"}},
            "Invalid scalar at path root:ops:take:config:inner:rate",
        ),
        ({"where": "/x", "inner": {"precision": "wide"}}, "Literal['auto', 'half'] got wide"),
        ({"where": "/x", "kind": "flat"}, "Literal['round', 'square'] got flat"),
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
        (PositionsOptions, {"workers": -1}, "workers must be from 0 to 1024, got -1"),
        (PositionsOptions, {"workers": 10**9}, "workers must be from 0 to 1024, got 1000000000"),
        (Outer, {"where": "/x", "inner": {"rate": -1.0}}, r"^rate must be positive, not -1.0$"),
        (CheckpointOptions, {"train": {"steps": 5}}, "exactly one of minutes"),
        (CheckpointOptions, {"train": {"batch_size": 1}}, "batch_size is 1"),
    ],
)
def test_the_dataclass_refuses_what_the_form_cannot_know(
    cls: type, values: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        validated(cls, values)
