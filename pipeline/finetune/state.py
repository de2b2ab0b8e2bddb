"""The state of a loop, and the files derived from it after each stage.

state.json        {format_version, seconds, generations: [{number, stages: {explore, train, arena,
                  eval}, seconds: {stage: ...}, verdict: {promoted, undone, reason}, teacher}, ...]}
best/             the best network so far: an ordinary checkpoint with its lineage in the card
generations.csv   one row per generation

Generation 0 is the supervised checkpoint. Its only stage is eval, and it counts as promoted.
`stages` has the figures of the finished stages; the first missing stage is run next. The best
network is the last one that was promoted.

Stability: FORMAT_VERSION 2. Two runs of the same loop differ only in `seconds`, and in the timing
figures of `explore`.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import to_jsonable_python

from engine.errors import UserError
from engine.json_files import parse_json, read_json, validate_content
from pipeline.dataset.files.manifest import Count, Number, Schema, Text
from pipeline.matches.match import format_elo
from pipeline.storage.stores import publish_bytes, publish_json
from pipeline.storage.tables import format_csv, format_markdown

FORMAT_VERSION: Literal[2] = 2
STATE_FILE, CSV_FILE = "state.json", "generations.csv"
GENERATIONS_FOLDER, BEST_FOLDER = "generations", "best"
STAGES = ("explore", "train", "arena", "eval")
"""The stages of a generation, in order."""
NOTHING_PROMOTED = (
    "Nothing was promoted: the best network is the supervised one, so they did not play each other."
)
TEACHER_SIMULATIONS = 64
"""Simulations per search when teachers are compared; with 1,024, the hand-written player's error is
hardly smaller."""
GAME_FIGURES = (
    "games", "positions", "decisive_share", "mean_plies", "resignations", "played_on",
    "false_resignations",
)  # fmt: skip
MATCH_FIGURES = ("games", "score", "elo", "elo_low", "elo_high")
HUMAN_FIGURES = ("top1", "top3", "cross_entropy", "value_brier")
"""Figures of EVAL, on human positions. GAME_FIGURES, MATCH_FIGURES and HUMAN_FIGURES are also
columns of generations.csv, those of matches with a prefix."""


class FinetuneError(UserError):
    """The loop cannot be started, resumed or saved."""


class Verdict(Schema):
    """The verdict on a generation's candidate."""

    promoted: bool = False
    undone: bool = False
    """Whether the SPRT accepted the candidate, but a later match or EVAL rejected it."""
    reason: Text


class TeacherComparison(Schema):
    """Errors of the network's and the hand-written player's searches on held-out positions."""

    truth: Literal["evaluations", "results"]
    """Reference of the errors: the datasets' evaluations, or the results of the games."""
    positions: Count
    games: Count
    network: Number
    """Mean squared error of the expected score after a search with the network."""
    hand_written: Number
    """Mean squared error after a search with the hand-written player."""
    low: float | None
    """Lower end of the 95 % interval of `hand_written - network`; None with too few games."""
    high: float | None
    """Upper end of the same interval."""

    @property
    def hand_written_teaches(self) -> bool:
        """Whether the hand-written player's error is significantly smaller."""
        return self.high is not None and self.high < 0.0

    @property
    def text(self) -> str:
        """The decision and its reason, in two sentences."""
        interval = "too few games for an interval"
        if self.low is not None:
            interval = f"{self.low:+.4f} to {self.high:+.4f}"
        decision = "No search teaches: the loop trains on human rows alone"
        if self.hand_written_teaches:
            decision = "The hand-written player teaches the value"
        truth = "the datasets' evaluations" if self.truth == "evaluations" else "the games' results"
        return (
            f"{decision}. On {self.positions:,} held-out positions of {self.games:,} games, after "
            f"{TEACHER_SIMULATIONS} simulations,\nthe hand-written player's mean squared error of "
            f"the expected score is {self.hand_written:.4f}, the network's {self.network:.4f}\n"
            f"(difference {self.hand_written - self.network:+.4f}, {interval}), measured against "
            f"{truth}."
        )


class Generation(Schema):
    """A generation, with the figures of each finished stage."""

    number: Count
    stages: dict[str, dict[str, Any]]
    seconds: dict[str, Number]
    verdict: Verdict | None = None
    teacher: TeacherComparison | None = None
    """The comparison of this generation's network with the hand-written player, if one was made."""

    @property
    def status(self) -> str:
        """The verdict in a word or two."""
        if self.verdict is None:
            return "under way"
        if self.verdict.promoted:
            return "promoted"
        return "undone" if self.verdict.undone else "rejected"

    @property
    def next_stage(self) -> str | None:
        """The first unfinished stage; None if all are finished, or if the training diverged."""
        if "failed" in self.stages.get("train", {}):
            return None  # there is no candidate to measure
        stages = STAGES if self.number else ("eval",)
        return next((name for name in stages if name not in self.stages), None)

    def to_row(self) -> dict[str, Any]:
        """Return the generation's row of generations.csv; unknown figures are None."""
        games, training, arena, human = (self.stages.get(name, {}) for name in STAGES)
        gate, seed, control = (arena.get(name) or {} for name in ("best", "seed", "control"))
        row: dict[str, Any] = {"generation": self.number, "verdict": self.status}
        row |= {name: games.get(name) for name in GAME_FIGURES}
        row |= {f"train_{name}": training.get(name) for name in ("step", "loss")}
        row |= {f"gate_{name}": gate.get("sprt", {}).get(name) for name in ("verdict", "llr")}
        row |= {f"gate_{name}": gate.get(name) for name in ("games", "score")}
        row |= {f"seed_{name}": seed.get(name) for name in MATCH_FIGURES}
        row |= {f"control_{name}": control.get(name) for name in MATCH_FIGURES}
        if self.number == 0:
            row |= {"seed_elo": 0.0, "seed_elo_low": 0.0, "seed_elo_high": 0.0}
        row |= {name: human.get(name) for name in HUMAN_FIGURES}
        row |= {f"seconds_{name}": self.seconds.get(name) for name in STAGES}
        return row | {"reason": self.verdict.reason if self.verdict else ""}


class State(Schema):
    """The content of state.json."""

    format_version: Literal[2]
    seconds: Annotated[float, Field(ge=0.0, lt=1e12)]
    """Running time in seconds, over all starts of the loop."""
    generations: list[Generation]

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        numbers = [generation.number for generation in self.generations]
        if numbers != list(range(len(numbers))):
            raise ValueError("its generations are not numbered 0, 1, 2, ...")
        return self

    @property
    def decided(self) -> list[Generation]:
        """The generations that have a verdict, the supervised checkpoint first."""
        return [generation for generation in self.generations if generation.verdict is not None]

    @property
    def best(self) -> int:
        """The number of the best generation, which is the last one that was promoted."""
        return self.best_before(len(self.generations))

    def best_before(self, number: int) -> int:
        """Return the last promoted generation before `number`; 0 if none was promoted."""
        return max((one for one in self.promoted if one < number), default=0)

    @property
    def promoted(self) -> list[int]:
        """The numbers of the promoted generations."""
        return [one.number for one in self.decided if one.status == "promoted"]

    @property
    def last_comparison(self) -> TeacherComparison | None:
        """The last comparison of teachers, or None if none was made."""
        comparisons = [generation.teacher for generation in self.generations if generation.teacher]
        return comparisons[-1] if comparisons else None

    def figures(self, number: int, stage: str) -> dict[str, Any]:
        """Return the figures of a generation's stage, or {} if it is not finished."""
        return self.generations[number].stages.get(stage, {}) if self.generations else {}

    def open_generation(self, limit: int | None) -> Generation | None:
        """Return the unfinished generation, or append a new one; None if `limit` is reached."""
        number = len(self.decided)
        if limit is not None and number > limit:
            return None
        if number == len(self.generations):
            self.generations.append(Generation(number=number, stages={}, seconds={}))
        return self.generations[number]

    def make_lineage(self) -> dict[str, Any]:
        """Return the best generation's number and control matches, and all promoted numbers."""
        arena, strength = self.figures(self.best, "arena"), dict[str, Any]()
        for name in ("seed", "control"):
            match = arena.get(name)
            figures = {key: match[key] for key in MATCH_FIGURES} if match else None
            strength[f"against_{name}"] = figures
        return {"generation": self.best, "through": self.promoted or [0], **strength}


def locate_generation(out: Path, number: int) -> Path:
    """Return the folder of a generation of the loop in `out`."""
    return out / GENERATIONS_FOLDER / f"{number:03}"


def locate_checkpoint(out: Path, number: int) -> Path:
    """Return the checkpoint of a generation; generation 0 is the supervised checkpoint."""
    return locate_generation(out, number) / "checkpoint" if number else out / "seed"


def read_weights_hash(checkpoint: Path) -> str:
    """Return the SHA-256 of a checkpoint's weights, according to its card."""
    from model.checkpoint import read_card

    return str(read_card(checkpoint)["files"]["weights"]["sha256"])


def read_state(out: Path) -> State:
    """Read the state of the loop in `out`, or return the state of a new loop.

    Raises FinetuneError for a damaged file or another version of the format.
    """
    path = out / STATE_FILE
    if not path.exists():
        return State(format_version=FORMAT_VERSION, seconds=0.0, generations=[])
    content = read_json(path, FinetuneError)
    validate_content(
        path, content, State, FinetuneError, hint=": it cannot be resumed; choose a new --out"
    )
    return State.model_validate(content)


def publish_state(out: Path, state: State) -> None:
    """Write the state to state.json; NaN and infinities become null."""
    publish_json(out, STATE_FILE, to_jsonable_python(state, inf_nan_mode="null"))


def update_derived_files(out: Path, state: State) -> None:
    """Update best/ and generations.csv from the state."""
    replace_checkpoint(locate_checkpoint(out, state.best), out / BEST_FOLDER, state.make_lineage())
    rows = [generation.to_row() for generation in state.generations]
    columns = list(rows[0]) if rows else ["generation"]
    publish_bytes(out, CSV_FILE, format_csv(columns, rows).encode())


def replace_checkpoint(source: Path, target: Path, origin: Mapping[str, Any]) -> None:
    """Replace the checkpoint `target` with a copy of `source`, unless it already is this copy.

    The copy's card has `origin` as its entry `finetune`. `target` can be loaded at any moment, even
    while it is replaced. Raises CheckpointError.
    """
    from model.checkpoint import (
        CARD_FILE,
        DamagedFileError,
        delete_superseded,
        read_card,
        save_files,
    )

    card = read_card(source)
    entry = card["files"]["weights"]
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # missing or damaged card
        current = parse_json((target / CARD_FILE).read_bytes())
        if (
            current["files"]["weights"]["sha256"] == entry["sha256"]
            and current["finetune"] == origin
        ):
            # a process may have been killed after it wrote the card
            delete_superseded(target, current)
            return
    data = (source / entry["name"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise DamagedFileError(f"{source / entry['name']} does not match its hash in the card")
    target.mkdir(parents=True, exist_ok=True)
    save_files(target, card | {"finished": True, "finetune": dict(origin)}, [("weights", data)])


def format_generations(rows: list[dict[str, Any]]) -> str:
    """Format the rows of generations as a Markdown table, followed by the verdicts' reasons."""
    cells = []
    for row in rows:
        elo = [format_elo(row, name) for name in ("seed_", "control_")]
        top1 = "" if row["top1"] is None else f"{row['top1']:.4f}"
        cells.append([str(row["generation"]), row["verdict"], str(row["games"] or ""), *elo, top1])
    titles = (
        "generation|verdict|games|Elo against supervised (95 %)|against human rows alone (95 %)|"
        "human top-1"
    )
    reasons = [
        f"- generation {row['generation']}: {row['verdict']}: {row['reason']}"
        for row in rows
        if row["generation"]
    ]
    return "\n".join([format_markdown(titles, cells), "", *reasons])
