"""Where a loop stands: one JSON file, replaced whole when a stage is done, and the only source of every other file.

state.json      {format_version, seconds, runs: [...], generations: [{number, stages: {explore, train, arena, eval},
                seconds: {stage: ...}, ended: {stage: ...}, verdict: {promoted, undone, reason}}, ...]}

Generation 0 is the supervised seed: it has no stage but eval, and is promoted by definition. A stage that is in `stages` is
done; the first that is not is what comes next. Who is best follows from the verdicts, so there is nothing to disagree with.

Stability: FORMAT_VERSION 1; `seconds`, `ended` and `runs` tell times and are the only part that differs between two runs of
the same loop, with what `explore` says of its own speed.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from engine.errors import UserError
from engine.json_files import check, read_json, shown
from pipeline.dataset.files.shards import publish_json

FORMAT_VERSION = 1
STATE = "state.json"
STAGES = ("explore", "train", "arena", "eval")
"""The stages of a generation in their order."""
NOTHING_PROMOTED = "Nothing was promoted: the best network is the seed itself, so they did not play each other."

Record = dict[str, Any]


class FinetuneError(UserError):
    """A loop that cannot be begun or gone on with, and why."""


class FinetuneBusyError(FinetuneError):
    """Another loop is at work in the directory."""


def now() -> str:
    """Return the time as a person and a program read it, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def generation(out: Path, number: int) -> Path:
    """Return the folder of a generation."""
    return out / "generations" / f"{number:03}"


def checkpoint_of(out: Path, number: int) -> Path:
    """Return the folder of a generation's network; generation 0 is the seed."""
    return generation(out, number) / "checkpoint" if number else out / "seed"


def finite(value: Any) -> Any:
    """Return a value as JSON has it, None for numbers that JSON does not have, at any depth."""
    return to_jsonable_python(value, inf_nan_mode="null")


class State:
    """The loop's memory."""

    def __init__(self, out: Path) -> None:
        """Read what is there; raises FinetuneError for a file that is none of ours."""
        self.out = out
        self.seconds = 0.0
        """Time spent, over all starts."""
        self.runs: list[Record] = []
        self.generations: list[Record] = []
        if (out / STATE).exists():
            self._read()

    def _read(self) -> None:
        from pipeline.finetune.schemas import FinetuneState

        path, hint = self.out / STATE, ": it cannot be gone on from; choose a new --out"
        found = read_json(path, FinetuneError)
        if isinstance(found, dict) and found.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
            said = shown(found["format_version"])
            raise FinetuneError(f"{path}: its format version is {said}, ours is {FORMAT_VERSION}{hint}")
        check(path, found, FinetuneState, FinetuneError, hint=hint)
        self.seconds, self.runs = float(found["seconds"]), list(found["runs"])
        self.generations = list(found["generations"])

    def publish(self) -> None:
        """Put the state on the disk."""
        content = {"format_version": FORMAT_VERSION, "seconds": round(self.seconds, 3), "runs": self.runs}
        publish_json(self.out, STATE, finite({**content, "generations": self.generations}))

    @property
    def judged(self) -> list[Record]:
        """The generations that have a verdict, the seed first."""
        return [record for record in self.generations if "verdict" in record]

    @property
    def best(self) -> int:
        """The generation that is best: the last one that was promoted."""
        return max((record["number"] for record in self.judged if record["verdict"]["promoted"]), default=0)

    def current(self, most: int | None) -> Record | None:
        """Return the generation under way, begun if need be; None when `most` generations are done."""
        if self.generations and "verdict" not in self.generations[-1]:
            return self.generations[-1]
        number = len(self.generations)
        if most is not None and number > most:
            return None
        self.generations.append({"number": number, "stages": {}, "seconds": {}, "ended": {}})
        return self.generations[-1]

    def stage(self, record: Record) -> str | None:
        """Return the stage that comes next in a generation, None when only the verdict is missing."""
        if "failed" in record["stages"].get("train", {}):
            return None  # there is no candidate to play or to measure
        return next((name for name in _stages(record["number"]) if name not in record["stages"]), None)

    def spent(self, record: Record, stage: str, seconds: float) -> None:
        """Count time."""
        self.seconds += seconds
        record["seconds"][stage] = round(record["seconds"].get(stage, 0.0) + seconds, 3)

    def done(self, record: Record, stage: str, figures: Record) -> None:
        """Note a stage's result and put it on the disk."""
        record["stages"][stage] = figures
        record["ended"][stage] = now()
        self.publish()

    def judge(self, record: Record, verdict: Record) -> None:
        """Note a verdict and put it on the disk: with this a generation is over, and the best is another or not."""
        record["verdict"] = verdict
        record["ended"]["verdict"] = now()
        self.publish()


def _stages(number: int) -> tuple[str, ...]:
    """Return the stages of a generation; the seed is only measured."""
    return STAGES if number else ("eval",)
