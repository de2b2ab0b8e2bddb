"""The loop: generation by generation EXPLORE -> TRAIN -> ARENA -> EVAL, and a verdict; killed anywhere, it goes on there.

It is a small machine over `State`: find the first stage that is not done, do it, note it. The stages are functions that it is
given (pipeline/finetune/stages.py), so that the machine can be tested without a network.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.compiling import interruptible
from engine.match.config import Limit
from engine.progress import Progress, Stop, Tick, never, silent
from engine.selfplay.warming import warm_up_games
from pipeline.errors import ConfigError, Stopped
from pipeline.executors.by_name import engine_of
from pipeline.finetune import manifest
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.gate import verdict
from pipeline.finetune.outputs import BEST, lineage, promote, reasons, refresh, table
from pipeline.finetune.preflight import PREFLIGHT, preflight
from pipeline.finetune.stages import Stage, StageContext, default_stages
from pipeline.finetune.state import FinetuneBusyError, FinetuneError, Record, State, checkpoint_of, generation, now
from pipeline.matches.config import SideConfig
from pipeline.matches.players import search_of
from pipeline.selfplay.evaluators import ONNX
from pipeline.storage.claims import require_apart
from pipeline.storage.stores import alone, temporaries

LOG = logging.getLogger(__name__)
STAGE_NAMES = {"explore": "self-play", "train": "train", "arena": "gate", "eval": "eval"}
"""Stages as people read them in progress."""


def finetune(
    checkpoint: Path,
    config: FinetuneConfig,
    out: Path,
    *,
    human: Sequence[Path] = (),
    stages: Mapping[str, Stage] | None = None,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Fine-tune a supervised checkpoint by self-play in `out` and return the result; `out/best` is the best network.

    `human` are datasets to mix into training and to measure on; without any, nothing guards human top-1. A loop found in
    `out` is gone on with: after a kill, after its minutes, or for more generations. Raises FinetuneError for another
    loop's directory or a full disk, FinetuneBusyError while another process is at it, Stopped when `stop` asked for it, and
    what the stages raise.
    """
    require(config, tuple(human))
    require_apart(out, [checkpoint, *human], FinetuneError)
    wanted = manifest.identity(checkpoint, human, config)
    busy = FinetuneBusyError(f"another fine-tuning is at work in {out}: wait for it, or choose a new --out")
    try:
        if config.minutes is not None:
            _warm_up(stop)
        with alone(out, busy):
            for left in temporaries(out):  # of a process that was killed while it wrote
                left.unlink(missing_ok=True)
            manifest.claim(out, wanted)
            promote(checkpoint, out / "seed", 0, {"generation": 0})
            preflight(out / "seed", config, human, out / PREFLIGHT, progress, stop)
            return _Loop(config, out, tuple(human), wanted, stages or default_stages(), progress, stop).go()
    except OSError as error:
        why = f"{error.strerror or error} ({error.filename or out})"
        raise FinetuneError(f"{why}: what was finished is kept, run the same command to continue") from error


def require(config: FinetuneConfig, human: Sequence[Path] | None = None) -> None:
    """Raise ConfigError or PlayerError for what a later stage would refuse, before any time is spent."""
    if not config.explore.plays and human == ():
        raise ConfigError(
            "the explorer reanalyse searches positions of people's games: name datasets with --positions, or take "
            "--explorer hand-written"
        )
    onnx = config.explore.uses_network and config.explore.device == ONNX
    if onnx and any(find_spec(package) is None for package in ("onnx", "onnxscript")):
        raise ConfigError("the device onnx needs the packages of an export: pip install 'fianchetto[onnx]'")
    if config.engine:
        engine_of(config.engine, config.workers)
    search_of(SideConfig(who="the gate", simulations=config.gate.simulations, options=config.gate.options), Limit())


def _warm_up(stop: Stop) -> None:
    """Compile what games need, before the minutes are counted; Stopped when `stop` says so."""
    from model.training.stopping import StopCheck, WorkInterrupted

    try:
        with interruptible(StopCheck(stop).check):
            warm_up_games()
    except WorkInterrupted:
        raise Stopped("stopped while kernels were compiled: run the same command to begin") from None


class _Loop:
    """One start of the loop."""

    def __init__(
        self,
        config: FinetuneConfig,
        out: Path,
        human: tuple[Path, ...],
        wanted: Mapping[str, Any],
        stages: Mapping[str, Stage],
        progress: Progress,
        stop: Stop,
    ) -> None:
        self.config, self.out, self.human, self.wanted = config, out, human, wanted
        self.stages, self.progress, self.asked = stages, progress, stop
        self.state = State(out)
        self.mark = time.monotonic()
        """When the time that is not yet counted began."""

    def go(self) -> dict[str, Any]:
        """Do stages until the generations or the minutes are over, or somebody asks to stop."""
        self.state.runs.append({"began": now(), **manifest.here()})
        self._write()
        why = "finished"
        try:
            while (record := self.state.current(self.config.generations)) is not None:
                if self._halted():
                    raise Stopped("stopped between two stages")
                self._advance(record)
        except Stopped:
            why = "stopped" if self.asked() else "its minutes are over"
        except BaseException as error:
            self._close(f"{type(error).__name__}: {error}"[:500])
            raise
        self._close(why)
        if why == "stopped":
            raise Stopped(f"stopped; {self.out / BEST} is the best so far: run the same command to continue")
        return self._result(why)

    def _halted(self) -> bool:
        """Return whether a stage has to stop: asked to, or out of time."""
        minutes = self.config.minutes
        spent = self.state.seconds + time.monotonic() - self.mark
        return self.asked() or (minutes is not None and spent >= 60 * minutes)

    def _advance(self, record: Record) -> None:
        """Do the next stage of a generation, or judge it."""
        state = self.state
        name = state.stage(record)
        if name is None:
            seed = state.generations[0]["stages"]["eval"]
            state.judge(record, verdict(record["stages"], seed, self.config.eval) if record["number"] else SEED)
            if record["number"]:
                LOG.info("%s", reasons(state)[-1])
        else:
            context = self._turn(record)
            context.folder.mkdir(parents=True, exist_ok=True)
            self.mark = time.monotonic()
            try:
                figures = self.stages[name](context, self._ticks(context.number, name), self._halted)
            finally:
                state.spent(record, name, time.monotonic() - self.mark)
                self.mark = time.monotonic()
            state.done(record, name, figures)
        self._write()

    def _turn(self, record: Record) -> StageContext:
        """Tell a stage what it has to know."""
        number, best = record["number"], self.state.best
        first = max(1, number - self.config.buffer + 1)
        gate = record["stages"].get("arena", {}).get("best", {})
        return StageContext(
            number=number,
            folder=generation(self.out, number),
            candidate=checkpoint_of(self.out, number),
            best=checkpoint_of(self.out, best),
            best_number=best,
            seed=checkpoint_of(self.out, 0),
            buffer=tuple(generation(self.out, one) / "selfplay" for one in range(first, number + 1)),
            human=self.human,
            config=self.config,
            accepted=number == 0 or gate.get("sprt", {}).get("verdict") == "H1",
            lineage={
                "generation": number,
                "played_by": best,
                "seed_weights_sha256": self.wanted["seed_checkpoint"]["weights_sha256"],
            },
            spent=self.state.generations[best]["stages"].get("train", {}).get("spent", {}),
        )

    def _ticks(self, number: int, stage: str) -> Progress:
        """Add the generation's number and the stage's name to what a stage reports."""
        name = f"generation {number}: {STAGE_NAMES[stage]}"

        def tick(one: Tick) -> None:
            self.progress(Tick(one.done, one.total, one.unit, {"generation": number, **one.values}, name))

        return tick

    def _write(self) -> None:
        """Put everything on the disk that follows from the state."""
        manifest.write(self.state, self.wanted)
        refresh(self.state)

    def _close(self, why: str) -> None:
        """Note how this start of the loop ended."""
        self.state.runs[-1] |= {"ended": now(), "why": why}
        self.state.publish()
        self._write()

    def _result(self, why: str) -> dict[str, Any]:
        """Return what the command prints."""
        state = self.state
        lines = [
            table(state),
            "",
            *(f"- {line}" for line in reasons(state)),
            "",
            f"best: generation {state.best}, in {self.out / BEST} ({why})",
        ]
        return {
            "out": str(self.out),
            "best": str(self.out / BEST),
            "generation": state.best,
            "generations": max(0, len(state.judged) - 1),
            "against_seed": lineage(state)["against_seed"],
            "eval": state.generations[state.best]["stages"].get("eval", {}) if state.generations else {},
            "seed_eval": state.generations[0]["stages"].get("eval", {}) if state.generations else {},
            "verdicts": [{"generation": record["number"], **record["verdict"]} for record in state.judged],
            "minutes": round(state.seconds / 60, 2),
            "ended": why,
            "text": "\n".join(lines),
        }


SEED = {"promoted": True, "undone": False, "reason": "the supervised seed, which the loop begins with"}
