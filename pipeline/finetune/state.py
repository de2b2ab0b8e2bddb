"""The loop's progress: one JSON file, replaced whole when a stage is done, from which every other
file is made.

state.json      {format_version, seconds, generations: [{number, stages: {explore, train, arena,
eval}, seconds: {stage: ...},
                verdict: {promoted, undone, reason}}, ...]}

Generation 0 is the supervised checkpoint: its only stage is eval, and it counts as promoted. A
stage that is in `stages` is done; the first that is not comes next. The best network follows from
the verdicts.

Stability: FORMAT_VERSION 2. Two runs of one loop differ in `seconds` and the timing in `explore`
only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import to_jsonable_python

from engine.errors import UserError
from engine.json_files import check, read_json
from pipeline.dataset.files.manifest import Count, Number, Schema, Text
from pipeline.dataset.files.shards import publish_json
from pipeline.finetune.config import FinetuneConfig

FORMAT_VERSION: Literal[2] = 2
STATE, GENERATIONS = "state.json", "generations"
STAGES = ("explore", "train", "arena", "eval")
"""The stages of a generation in their order."""
NOTHING_PROMOTED = (
    "Nothing was promoted: the best network is the supervised one, so they did not play each other."
)


class FinetuneError(UserError):
    """A loop that cannot be started or resumed."""


class Verdict(Schema):
    """The verdict on a generation's candidate."""

    promoted: bool = False
    undone: bool = False
    """The gate accepted the candidate, and a later measurement took it back."""
    reason: Text


class Generation(Schema):
    """A generation, with the figures of each stage that is done."""

    number: Count
    stages: dict[str, dict[str, Any]]
    seconds: dict[str, Number]
    verdict: Verdict | None = None

    @property
    def word(self) -> str:
        """Return the verdict as one word."""
        if self.verdict is None:
            return "under way"
        return (
            "promoted" if self.verdict.promoted else "undone" if self.verdict.undone else "rejected"
        )

    @property
    def next_stage(self) -> str | None:
        """Return the first stage that is not done, None when only the verdict is missing."""
        if "failed" in self.stages.get("train", {}):
            return None  # there is no candidate to play or to measure
        stages = STAGES if self.number else ("eval",)
        return next((name for name in stages if name not in self.stages), None)


class State(Schema):
    """state.json."""

    format_version: Literal[2]
    seconds: Annotated[float, Field(ge=0.0, lt=1e12)]
    """Time spent, over all starts."""
    generations: list[Generation]

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        if [one.number for one in self.generations] != list(range(len(self.generations))):
            raise ValueError("its generations are not numbered one after the other")
        return self

    @property
    def decided(self) -> list[Generation]:
        """Return the generations that have a verdict, the supervised checkpoint first."""
        return [one for one in self.generations if one.verdict is not None]

    @property
    def best(self) -> int:
        """Return the best generation: the last one that was promoted."""
        return self.best_before(len(self.generations))

    def best_before(self, number: int) -> int:
        """Return the best of the generations before one, which that one was made from."""
        return max(
            (one.number for one in self.decided[:number] if one.word == "promoted"), default=0
        )

    def current(self, most: int | None) -> Generation | None:
        """Return the generation under way or a new one, None after `most` generations."""
        number = len(self.decided)
        if most is not None and number > most:
            return None
        if number == len(self.generations):
            self.generations.append(Generation(number=number, stages={}, seconds={}))
        return self.generations[number]


def read_state(out: Path) -> State:
    """Return the state of the loop in `out`, a new one if none exists; raises FinetuneError."""
    path = out / STATE
    if not path.exists():
        return State(format_version=FORMAT_VERSION, seconds=0.0, generations=[])
    found = read_json(path, FinetuneError)
    check(path, found, State, FinetuneError, hint=": it cannot be resumed; choose a new --out")
    return State.model_validate(found)


def publish_state(out: Path, state: State) -> None:
    """Write the state; None replaces NaN and infinities, which JSON does not have."""
    publish_json(out, STATE, to_jsonable_python(state, inf_nan_mode="null"))


def folder_of(out: Path, number: int) -> Path:
    """Return the folder of a generation."""
    return out / GENERATIONS / f"{number:03}"


def checkpoint_of(out: Path, number: int) -> Path:
    """Return the folder of a generation's network; generation 0 is the supervised one."""
    return folder_of(out, number) / "checkpoint" if number else out / "seed"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
    """The inputs of a stage."""

    number: int
    """Number of the generation; 0 is the supervised checkpoint."""
    folder: Path
    """Folder of the generation."""
    candidate: Path
    """Checkpoint of this generation, which TRAIN writes."""
    best: Path
    """Checkpoint of the best network so far."""
    seed: Path
    """The supervised checkpoint."""
    buffer: tuple[Path, ...]
    """Self-play datasets that TRAIN may read, the newest last."""
    human: tuple[Path, ...]
    """Human datasets."""
    config: FinetuneConfig
    """Settings of the generation."""
    requested: FinetuneConfig
    """The settings as requested, with which the control is trained."""
    lineage: Mapping[str, Any]
    """Origin of the data, for the manifest of the self-play dataset."""
    spent: Mapping[str, float]
    """How often the trainings that led to the best network have used each dataset's rows, by the
    manifest's hash."""
