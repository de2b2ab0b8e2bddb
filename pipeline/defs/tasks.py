"""The table of work that a child process does: each row is one call of the library, from and to JSON.

`python -m pipeline.defs.tasks` is that process (pipeline/defs/child.py).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop
from pipeline.defs.child import Task, main
from pipeline.defs.launchpad.forms import filled

Arguments = Mapping[str, Any]


def ingest(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Turn the dump `source` into positions in `out` and return the manifest.

    With `replace`, or where the dump has changed since, they are built anew beside the old ones
    (pipeline/ingest/replacing.py).
    """
    from pipeline.dataset.files.shards import read_manifest
    from pipeline.errors import DamagedError, OtherDumpError
    from pipeline.executors.by_name import LOCAL, engine_of
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest as library
    from pipeline.ingest.replacing import recover, replace

    out, source = Path(arguments["out"]), arguments["source"]
    config = filled(IngestConfig, arguments["config"])
    engine = engine_of(arguments.get("engine", LOCAL), arguments["workers"])
    anew = partial(replace, Path(source), out, config, engine=engine, progress=progress, stop=stop)
    recover(out)
    try:
        if arguments["replace"]:
            return anew()
        try:
            return library([source], out, config, engine=engine, progress=progress, stop=stop)
        except OtherDumpError:  # the old positions are of no dump that is there: those of this one take their place
            return anew()
    except DamagedError:  # what came before the damage is a whole dataset, and a check says how it ended
        return read_manifest(out)


def fetch(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Fetch a `month` of Lichess into the folder `out` and say what became of it."""
    from pipeline.dumps.fetch import FetchConfig
    from pipeline.dumps.fetch import fetch as library

    config = filled(FetchConfig, arguments["config"])
    return library([arguments["month"]], Path(arguments["out"]), config, progress=progress, stop=stop)


def verify(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Look for problems in a positions dataset: a list for each question, empty when all is well, and `compared` rows."""
    from pipeline.validation.verify import LIMIT, verify_dataset

    directory, count = Path(arguments["positions"]), arguments["count"]
    return verify_dataset(directory, [arguments["source"]], games=count // 8, rows=count, limit=LIMIT, stop=stop)


def join(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Join positions into the training set `out`; a dataset in `remove` leaves it."""
    from pipeline.dataset.join import JoinConfig
    from pipeline.dataset.join import join as library

    positions, out = [Path(name) for name in arguments["positions"]], Path(arguments["out"])
    config = filled(JoinConfig, arguments["config"])
    page = library(positions, out, config, remove=arguments["remove"], progress=progress, stop=stop)
    entries = [{name: value for name, value in entry.items() if name != "kept"} for entry in page["datasets"]]
    return page | {"datasets": entries}


def audit(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Audit datasets or training sets together; keep it as text, JSON, Markdown and picture in `out`."""
    from pipeline.dataset.training_set import members
    from pipeline.dumps.paths import dumps_of
    from pipeline.validation.audit.audit import audit as library
    from pipeline.validation.audit.pages import write_audit

    positions = [Path(name) for name in arguments["positions"]]
    sources: dict[str, list[str]] = {}
    for member in (member for path in positions for member in members(path)):
        dumps = dumps_of(member.directory, member.manifest) if arguments["players"] else None
        sources |= {member.directory.resolve().name: dumps} if dumps else {}
    result = library(positions, sources=sources, progress=progress, stop=stop)
    write_audit(result, Path(arguments["out"]))
    return result


def train(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Train the preset on the positions and return the checkpoint's card."""
    from model.training.config import TrainConfig
    from pipeline.executors.by_name import LOCAL
    from pipeline.training.by_name import trainer_of

    train_on = trainer_of(arguments.get("engine", LOCAL), arguments.get("processes", 0))
    positions = [Path(name) for name in arguments["positions"]]
    config = filled(TrainConfig, arguments["config"])
    return train_on(positions, arguments["preset"], config, Path(arguments["out"]), progress, stop)


def report(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Measure a checkpoint on a split of a positions dataset; keep it as text, JSON and picture in `out`."""
    from pipeline.evaluation.render import write_report
    from pipeline.evaluation.report import Rule
    from pipeline.evaluation.report import report as library

    checkpoint, positions, out = (Path(arguments[name]) for name in ("checkpoint", "positions", "out"))
    rule = filled(Rule, arguments["rule"])
    result = library(checkpoint, positions=positions, split=arguments["split"], rule=rule, progress=progress)
    write_report(result, out)
    return result


def probe(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Load a checkpoint as its users do; give its loss on stored rows and its first choices on some of them."""
    import numpy as np

    from engine.encoding.planes import legal_mask
    from model.inference.evaluator import evaluator
    from pipeline.dataset.files.shards import read_manifest
    from pipeline.validation.verify import sample_rows

    directory = Path(arguments["positions"])
    rows = sample_rows(directory, read_manifest(directory), arguments["count"], arguments["split"])
    planes_RP = np.stack([np.frombuffer(row["planes"], "<u8") for row in rows])
    logits_RA, _ = evaluator(Path(arguments["checkpoint"]))(planes_RP)
    masked_RA = np.where(legal_mask(planes_RP), logits_RA.astype(np.float64), -np.inf)
    shifted_RA = masked_RA - masked_RA.max(axis=1, keepdims=True)
    log_RA = shifted_RA - np.log(np.exp(shifted_RA).sum(axis=1, keepdims=True))
    loss = -float(np.mean(log_RA[np.arange(len(rows)), [row["label"] for row in rows]]))
    first_R3 = np.argsort(-masked_RA, axis=1)[: arguments["drawn"], :3]
    choices = [
        [(int(label), float(np.exp(log_A[label]))) for label in first_3 if np.isfinite(log_A[label])]
        for first_3, log_A in zip(first_R3, log_RA, strict=False)
    ]
    return {"loss": loss if np.isfinite(loss) else None, "rows": len(rows), "choices": choices}


def finetune(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Fine-tune `checkpoint` in `out` and return the loop's result with its rows."""
    from pipeline.finetune.config import FinetuneConfig
    from pipeline.finetune.loop import finetune as library
    from pipeline.finetune.outputs import row
    from pipeline.finetune.state import State

    out, human = Path(arguments["out"]), [Path(name) for name in arguments["positions"]]
    config = filled(FinetuneConfig, arguments["config"])
    result = library(Path(arguments["checkpoint"]), config, out, human=human, progress=progress, stop=stop)
    state = State(out)
    return {**result, "rows": [row(record, state) for record in state.judged]}


def strength(arguments: Arguments, progress: Progress, stop: Stop) -> Mapping[str, Any]:
    """Play the best network of the fine-tuning `tuned` against its seed and outsiders; `against_seed` is that row."""
    from pipeline.finetune.strength import strength as library

    options = {name: arguments[name] for name in ("simulations", "games", "hand_written", "engine", "nodes")}
    return library(Path(arguments["tuned"]), Path(arguments["out"]), progress=progress, stop=stop, **options)


TASKS: Mapping[str, Task] = {
    "fetch": fetch,
    "ingest": ingest,
    "verify": verify,
    "join": join,
    "audit": audit,
    "train": train,
    "report": report,
    "probe": probe,
    "finetune": finetune,
    "strength": strength,
}
ASKING = ("fetch", "ingest", "train", "finetune", "strength")
"""Tasks that ask `stop` and keep what they did; the others write nothing that half of would be worth keeping."""


if __name__ == "__main__":
    main(TASKS, ASKING)
