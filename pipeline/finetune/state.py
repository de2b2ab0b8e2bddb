"""The state of a loop, and the files derived from it after each stage.

state.json        {format_version, seconds, generations: [{number, stages: {explore, train, arena,
                  eval}, seconds: {stage: ...}, verdict: {promoted, undone, reason}, teacher}, ...]}
best/             the best network so far: an ordinary checkpoint with its lineage in the card
generations.csv   one row per generation

Generation 0 is the supervised checkpoint. Its only stage is eval, and it counts as promoted. The
stages in `stages` are finished; the first missing one is next. The best network is the last one
that was promoted.

Stability: FORMAT_VERSION 2. Two runs of the same loop differ only in `seconds`, and in the timing
in `explore`.
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
STATE, GENERATIONS, CSV, BEST = "state.json", "generations", "generations.csv", "best"
STAGES = ("explore", "train", "arena", "eval")
"""The stages of a generation, in order."""
NOTHING_PROMOTED = (
    "Nothing was promoted: the best network is the supervised one, so they did not play each other."
)
SIMULATIONS = 64
"""Simulations per search when teachers are compared. With 1,024, the hand-written player's error is
hardly smaller."""
GAMES_COLUMNS = (
    "games", "positions", "decisive_share", "mean_plies", "resignations", "played_on",
    "false_resignations",
)  # fmt: skip
MATCH_COLUMNS = ("games", "score", "elo", "elo_low", "elo_high")
HUMAN_COLUMNS = ("top1", "top3", "cross_entropy", "value_brier")
"""Figures of a generation's evaluation on human positions. With GAMES_COLUMNS and MATCH_COLUMNS,
they are the columns of generations.csv."""


class FinetuneError(UserError):
    """The loop cannot be started or resumed."""


class Verdict(Schema):
    """The verdict on a generation's candidate."""

    promoted: bool = False
    undone: bool = False
    """Whether the SPRT accepted the candidate but a later measurement rejected it."""
    reason: Text


class Teacher(Schema):
    """Errors of the network's and the hand-written player's searches on held-out positions."""

    truth: Literal["evaluations", "results"]
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
    def teaches(self) -> bool:
        """Return whether the hand-written player's error is significantly smaller."""
        return self.high is not None and self.high < 0.0

    @property
    def text(self) -> str:
        """Return two sentences: the decision and its reason."""
        interval = "too few games for an interval"
        if self.low is not None:
            interval = f"{self.low:+.4f} to {self.high:+.4f}"
        done = "No search teaches: the loop trains on human rows alone"
        if self.teaches:
            done = "The hand-written player teaches the value"
        truth = "the datasets' evaluations" if self.truth == "evaluations" else "the games' results"
        return (
            f"{done}. On {self.positions:,} held-out positions of {self.games:,} games, after "
            f"{SIMULATIONS} simulations,\nits squared error of the expected score is "
            f"{self.hand_written:.4f}, the network's {self.network:.4f} (difference\n"
            f"{self.hand_written - self.network:+.4f}, {interval}), by {truth}."
        )


class Generation(Schema):
    """A generation, with the figures of each finished stage."""

    number: Count
    stages: dict[str, dict[str, Any]]
    seconds: dict[str, Number]
    verdict: Verdict | None = None
    teacher: Teacher | None = None
    """The comparison of this generation's network with the hand-written player, if one was made."""

    @property
    def status(self) -> str:
        """Return the verdict as one word."""
        if self.verdict is None:
            return "under way"
        if self.verdict.promoted:
            return "promoted"
        return "undone" if self.verdict.undone else "rejected"

    @property
    def next_stage(self) -> str | None:
        """Return the first unfinished stage, or None when only the verdict is missing."""
        if "failed" in self.stages.get("train", {}):
            return None  # there is no candidate to measure
        stages = STAGES if self.number else ("eval",)
        return next((name for name in stages if name not in self.stages), None)

    def row(self) -> dict[str, Any]:
        """Return the row of generations.csv; unknown figures are None."""
        games, training, arena, human = (self.stages.get(name, {}) for name in STAGES)
        gate, seed, control = (arena.get(name) or {} for name in ("best", "seed", "control"))
        row: dict[str, Any] = {"generation": self.number, "verdict": self.status}
        row |= {name: games.get(name) for name in GAMES_COLUMNS}
        row |= {f"train_{name}": training.get(name) for name in ("step", "loss")}
        row |= {f"gate_{name}": gate.get("sprt", {}).get(name) for name in ("verdict", "llr")}
        row |= {f"gate_{name}": gate.get(name) for name in ("games", "score")}
        row |= {f"seed_{name}": seed.get(name) for name in MATCH_COLUMNS}
        row |= {f"control_{name}": control.get(name) for name in MATCH_COLUMNS}
        if self.number == 0:
            row |= {"seed_elo": 0.0, "seed_elo_low": 0.0, "seed_elo_high": 0.0}
        row |= {name: human.get(name) for name in HUMAN_COLUMNS}
        row |= {f"seconds_{name}": self.seconds.get(name) for name in STAGES}
        return row | {"reason": self.verdict.reason if self.verdict else ""}


class State(Schema):
    """The content of state.json."""

    format_version: Literal[2]
    seconds: Annotated[float, Field(ge=0.0, lt=1e12)]
    """Time spent over all starts of the loop, in seconds."""
    generations: list[Generation]

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        if [one.number for one in self.generations] != list(range(len(self.generations))):
            raise ValueError("its generations are not numbered 0, 1, 2, ...")
        return self

    @property
    def decided(self) -> list[Generation]:
        """Return the generations that have a verdict, the supervised checkpoint first."""
        return [one for one in self.generations if one.verdict is not None]

    @property
    def best(self) -> int:
        """Return the number of the best generation: the last one that was promoted."""
        return self.best_before(len(self.generations))

    def best_before(self, number: int) -> int:
        """Return the best generation before `number`, from which its training started."""
        return max(
            (one.number for one in self.decided[:number] if one.status == "promoted"), default=0
        )

    @property
    def teacher(self) -> Teacher | None:
        """Return the last comparison of teachers, or None if the user chose the teacher."""
        return next((one.teacher for one in self.generations[::-1] if one.teacher), None)

    def figures(self, number: int, stage: str) -> dict[str, Any]:
        """Return the figures of a generation's stage, or {} if it is not finished."""
        return self.generations[number].stages.get(stage, {}) if self.generations else {}

    def current(self, maximum: int | None) -> Generation | None:
        """Return the unfinished generation or a new one, or None after `maximum` generations."""
        number = len(self.decided)
        if maximum is not None and number > maximum:
            return None
        if number == len(self.generations):
            self.generations.append(Generation(number=number, stages={}, seconds={}))
        return self.generations[number]

    def lineage(self) -> dict[str, Any]:
        """Return the promotions up to the best network, and its matches with both controls."""
        promoted = [one.number for one in self.decided if one.status == "promoted"] or [0]
        arena = self.figures(self.best, "arena")
        strength = {
            f"against_{one}": {name: arena[one][name] for name in MATCH_COLUMNS}
            if arena.get(one)
            else None
            for one in ("seed", "control")
        }
        return {"generation": self.best, "through": promoted, **strength}


def folder_of(out: Path, number: int) -> Path:
    """Return the folder of generation `number`."""
    return out / GENERATIONS / f"{number:03}"


def checkpoint_of(out: Path, number: int) -> Path:
    """Return the checkpoint of generation `number`; generation 0 is the supervised checkpoint."""
    return folder_of(out, number) / "checkpoint" if number else out / "seed"


def read_weights_hash(checkpoint: Path) -> str:
    """Return the SHA-256 of a checkpoint's weights, as its card states it."""
    from model.checkpoint import read_card

    return str(read_card(checkpoint)["files"]["weights"]["sha256"])


def read_state(out: Path) -> State:
    """Read the state of the loop in `out`, or create a new one; raises FinetuneError."""
    path = out / STATE
    if not path.exists():
        return State(format_version=FORMAT_VERSION, seconds=0.0, generations=[])
    found = read_json(path, FinetuneError)
    validate_content(
        path, found, State, FinetuneError, hint=": it cannot be resumed; choose a new --out"
    )
    return State.model_validate(found)


def publish_state(out: Path, state: State) -> None:
    """Write the state to state.json; NaN and infinities become null."""
    publish_json(out, STATE, to_jsonable_python(state, inf_nan_mode="null"))


def refresh(out: Path, state: State) -> None:
    """Update best/ and then generations.csv from the state."""
    promote(checkpoint_of(out, state.best), out / BEST, state.lineage())
    rows = [one.row() for one in state.generations]
    columns = list(rows[0]) if rows else ["generation"]
    publish_bytes(out, CSV, format_csv(columns, rows).encode())


def promote(source: Path, target: Path, origin: Mapping[str, Any]) -> None:
    """Replace the checkpoint `target` by a copy of `source`, with `origin` in its card.

    `target` can be loaded at any moment. Raises CheckpointError.
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
            # an earlier process may have died before it deleted these files
            delete_superseded(target, current)
            return
    data = (source / entry["name"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise DamagedFileError(f"{source / entry['name']} does not match its hash in the card")
    target.mkdir(parents=True, exist_ok=True)
    save_files(target, card | {"finished": True, "finetune": dict(origin)}, [("weights", data)])


def format_table(rows: list[dict[str, Any]]) -> str:
    """Return the generations as a Markdown table, followed by the reason for each verdict."""
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
