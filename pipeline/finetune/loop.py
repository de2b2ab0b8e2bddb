"""Run the loop: EXPLORE -> TRAIN -> ARENA -> EVAL and a verdict, for each generation.

The loop is a state machine over `State`: find the first unfinished stage, run it, record it. So it
can be killed at any moment and resumed. The stages are functions (pipeline/finetune/stages.py), so
that tests can run the loop without a network.
"""

import logging
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.dataset import Dataset
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.executors.by_name import make_engine
from pipeline.executors.local import LOCAL
from pipeline.finetune.config import FREE_TO_CHANGE, FinetuneConfig
from pipeline.finetune.stages import DEFAULT_STAGES, Stage, StageContext, decide, write_supervised
from pipeline.finetune.state import (
    BEST,
    FORMAT_VERSION,
    FinetuneError,
    Generation,
    Verdict,
    checkpoint_of,
    folder_of,
    format_table,
    publish_state,
    read_state,
    read_weights_hash,
    refresh,
)
from pipeline.finetune.teacher import choose_teacher, teach_by_hand
from pipeline.selfplay.config import ONNX_DEVICE
from pipeline.selfplay.draw import identify_datasets
from pipeline.storage.job_folder import FINETUNING_KIND, JobFolder, flatten_leaves

LOG = logging.getLogger(__name__)
STAGE_NAMES = {"explore": "self-play", "train": "train", "arena": "gate", "eval": "eval"}
"""Names of the stages in progress messages."""


def finetune(
    checkpoint: Path,
    config: FinetuneConfig,
    out: Path,
    *,
    human: Sequence[Path] = (),
    stages: Mapping[str, Stage] = DEFAULT_STAGES,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Fine-tune a supervised checkpoint in `out` and return the result; `out/best` is the best.

    `human` are datasets or training sets to search, to mix into training and to measure on. Without
    them, the loss of human top-1 is not limited. An existing loop in `out` is resumed.

    Raises FinetuneError if `out` is in use or belongs to another loop, Stopped if `stop` returns
    True or the minutes end before a candidate was measured, and the errors of the stages.
    """
    check_settings(config, human)
    folder = JobFolder(out, FINETUNING_KIND, FinetuneError, reads=[checkpoint, *human])
    folder.check()
    identity = identify(checkpoint, human, config)
    with folder.lock():
        folder.claim(identity)
        write_supervised(checkpoint, human, out / "seed", {"generation": 0})
        return _Loop(config, out, tuple(human), stages, progress, stop).run()


def check_settings(config: FinetuneConfig, human: Sequence[Path]) -> None:
    """Raise ConfigError for settings that a later stage would reject."""
    if not config.explore.plays:
        raise ConfigError(
            "explore.source cannot be set for a loop: use --games-share and --near-share instead"
        )
    if config.sources.keys() - {"games"} and not human:
        raise ConfigError(
            "no datasets of human positions to search: name them with --positions, or only play "
            "games with --games-share 1"
        )
    if config.train.teach == "none" and not human:
        raise ConfigError("--teach none trains on human rows alone: name datasets with --positions")
    if config.explore.device == ONNX_DEVICE and not (find_spec("onnx") and find_spec("onnxscript")):
        raise ConfigError(
            "the device onnx needs packages for the export: pip install 'fianchetto[onnx]'"
        )
    if config.engine != LOCAL:
        make_engine(config.engine, config.workers)


def identify(checkpoint: Path, human: Sequence[Path], config: FinetuneConfig) -> dict[str, Any]:
    """Return a loop's identity: the supervised weights, human datasets and fixed settings."""
    weights = read_weights_hash(checkpoint)
    for directory in human:
        if not Dataset.open(directory).has_rows("train"):
            raise DatasetError(f"{directory} has no positions in its train split to fine-tune on")
    settings = flatten_leaves(to_jsonable_python(config))
    return {
        "format_version": FORMAT_VERSION,
        "checkpoint": {"name": checkpoint.resolve().name, "weights": weights},
        "human": identify_datasets(human),
        "config": {name: value for name, value in settings.items() if name not in FREE_TO_CHANGE},
    }


class _Loop:
    """One start of the loop."""

    def __init__(
        self,
        config: FinetuneConfig,
        out: Path,
        human: tuple[Path, ...],
        stages: Mapping[str, Stage],
        progress: Progress,
        stop: Stop,
    ) -> None:
        self.config, self.out, self.human, self.stages = config, out, human, stages
        self.weights, self.progress, self.stop = read_weights_hash(out / "seed"), progress, stop
        self.state = read_state(out)
        self.counted_until = time.monotonic()
        """Time up to which the loop's seconds are counted."""

    def run(self) -> dict[str, Any]:
        """Run stages until the generations or minutes are reached, or `stop` returns True."""
        refresh(self.out, self.state)
        why, best = "finished", self.out / BEST
        try:
            while (generation := self.state.current(self.config.generations)) is not None:
                if self._must_stop():
                    raise Stopped("stopped between two stages")
                self._advance(generation)
        except Stopped:
            if self.stop():
                raise Stopped(
                    f"stopped; {best} is the best so far: run the same command to continue"
                ) from None
            why = "its minutes are over"
            if len(self.state.decided) < 2:
                done = "nothing was trained"
                if any("train" in one.stages for one in self.state.generations):
                    done = "one candidate was trained and not measured"
                raise Stopped(
                    f"{done} in {self.config.minutes:g} minutes; {best} is the supervised network",
                    remedy="increase minutes, and run the same command again to continue",
                    code="too-short",
                ) from None
        finally:
            publish_state(self.out, self.state)  # includes the time of an unfinished stage
        return self._result(why)

    def _settings(self, number: int) -> FinetuneConfig:
        """Return a generation's settings; with `teach` auto, compare the two teachers first."""
        teach, explore = self.config.train.teach, self.config.explore
        if teach in ("auto", "value") and not explore.uses_network:
            return teach_by_hand(self.config, self._count_rows())
        if not number or teach != "auto" or self.config.sources.keys() == {"games"}:
            return self.config
        best = self.state.generations[self.state.best_before(number)]
        if best.teacher is None:
            checkpoint = checkpoint_of(self.out, best.number)
            self.counted_until = time.monotonic()
            with self._add_time():
                ticks = self._ticks(number, "teacher")
                best.teacher = choose_teacher(
                    checkpoint, self.human, explore.device, ticks, self._must_stop
                )
            publish_state(self.out, self.state)
            LOG.info("%s: %s", checkpoint, best.teacher.text)
        if best.teacher.teaches:
            return teach_by_hand(self.config, self._count_rows())
        return replace(self.config, train=replace(self.config.train, teach="none"))

    def _count_rows(self) -> int:
        opened = map(Dataset.open, self.human)
        return sum(one.count_rows("train") for one in opened if not one.has_engine_moves)

    def _must_stop(self) -> bool:
        minutes = self.config.minutes
        spent = self.state.seconds + time.monotonic() - self.counted_until
        return self.stop() or (minutes is not None and spent >= 60 * minutes)

    @contextmanager
    def _add_time(self, seconds: dict[str, float] | None = None, name: str = "") -> Iterator[None]:
        """On exit, add the time since `counted_until` to the seconds of the loop and of a stage."""
        try:
            yield
        finally:
            spent = time.monotonic() - self.counted_until
            self.counted_until += spent
            self.state.seconds += spent
            if seconds is not None:
                seconds[name] = seconds.get(name, 0.0) + spent

    def _advance(self, generation: Generation) -> None:
        name = generation.next_stage
        if name is None and not generation.number:
            generation.verdict = Verdict(promoted=True, reason="the supervised checkpoint")
        elif name is None:
            supervised, most = self.state.figures(0, "eval"), self.config.gate.max_top1_drop
            generation.verdict = decide(generation.stages, supervised, most)
            LOG.info("generation %d: %s", generation.number, generation.verdict.reason)
        else:
            context = self._context(generation.number)
            context.folder.mkdir(parents=True, exist_ok=True)
            ticks = self._ticks(context.number, STAGE_NAMES[name])
            self.counted_until = time.monotonic()
            with self._add_time(generation.seconds, name):
                figures = self.stages[name](context, ticks, self._must_stop)
            generation.stages[name] = figures
        publish_state(self.out, self.state)
        refresh(self.out, self.state)

    def _context(self, number: int) -> StageContext:
        best = self.state.best
        return StageContext(
            number=number,
            folder=folder_of(self.out, number),
            candidate=checkpoint_of(self.out, number),
            best=checkpoint_of(self.out, best),
            supervised=checkpoint_of(self.out, 0),
            buffer=self._buffer(number),
            human=self.human,
            config=self._settings(number),
            requested=self.config,
            lineage={"generation": number, "played_by": best, "seed_weights_sha256": self.weights},
            spent=self.state.figures(best, "train").get("spent", {}),
        )

    def _buffer(self, number: int) -> tuple[Path, ...]:
        """Return the self-play datasets of recent generations with the same explorer and targets.

        The newest is last.
        """
        settings, datasets = self._settings(number), list[Path]()
        for recent in range(max(1, number - self.config.buffer + 1), number + 1):
            earlier = self._settings(recent)
            same_targets = earlier.train.teach == settings.train.teach
            if same_targets and earlier.explore.explorer == settings.explore.explorer:
                datasets += [folder_of(self.out, recent) / source for source in earlier.sources]
        return tuple(datasets)

    def _ticks(self, number: int, stage: str) -> Progress:

        def tick(one: Tick) -> None:
            values = {"generation": number, **one.values}
            self.progress(replace(one, values=values, stage=f"generation {number}: {stage}"))

        return tick

    def _result(self, why: str) -> dict[str, Any]:
        """Return the best network's figures, one row per generation, and text for the terminal."""
        state, teacher = self.state, self.state.teacher
        rows, lineage = [one.row() for one in state.decided], state.lineage()
        decision = [] if teacher is None else [textwrap.indent(teacher.text, "    "), ""]
        best = f"best: generation {state.best}, in {self.out / BEST} ({why})"
        return {
            "out": str(self.out),
            "best": str(self.out / BEST),
            "generation": state.best,
            "generations": max(0, len(rows) - 1),
            "against_seed": lineage["against_seed"],
            "against_control": lineage["against_control"],
            "eval": state.figures(state.best, "eval"),
            "seed_eval": state.figures(0, "eval"),
            "rows": rows,
            "teacher": None if teacher is None else to_jsonable_python(teacher),
            "minutes": round(state.seconds / 60, 2),
            "ended": why,
            "text": "\n".join([*decision, format_table(rows), "", best]),
        }
