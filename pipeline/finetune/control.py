"""The two controls of a loop: its seed with a calibrated value, and a network trained on human rows
alone.

A gain that a control also shows does not come from search. The control of a generation starts from
the control of the best network, at first from the seed, and has as many steps as the candidate. So
controls and best networks were trained equally long, but a control keeps the weights of its best
validation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop
from pipeline.dataset.dataset import Dataset
from pipeline.errors import Stopped
from pipeline.finetune.outputs import promote
from pipeline.finetune.state import StageContext
from pipeline.selfplay.draw import identify_datasets
from pipeline.training.train import find_validated, open_validation, select_columns, train_on

CONTROL = "control"
"""Folder of a generation's control."""
VALIDATIONS = 5
"""Validations of a control. It keeps the weights of the best one, because it overfits where human
rows are few."""


def write_seed(
    checkpoint: Path, human: Sequence[Path], target: Path, origin: Mapping[str, Any]
) -> None:
    """Copy the supervised checkpoint, and calibrate its value if its training did not.

    A value that did not learn results keeps its scale, as in `model.training.loop`.
    """
    from model.checkpoint import CARD, load, read_card, save
    from model.network.preset import preset_from_row
    from model.training.calibration import scale_value
    from model.training.config import TrainConfig
    from model.training.loop import VALIDATION_POSITIONS
    from model.training.monitor import CALIBRATED, validate
    from model.training.step import new_run

    if (target / CARD).exists():
        return
    card, config = read_card(checkpoint), TrainConfig(steps=1)
    settled = card.get("calibration") or not card["config"].get("results", True)
    columns = select_columns(config, preset_from_row(card["preset"]))
    batches = None if settled else open_validation(human, config, columns)
    if batches is None:
        promote(checkpoint, target, origin)
        return
    network, _ = load(checkpoint)
    run = new_run(config, network.preset)
    run.ema.load_state_dict(network.state_dict())
    figures = validate(run, batches(), VALIDATION_POSITIONS)
    if "value_factor" not in figures:
        promote(checkpoint, target, origin)
        return
    scale_value(network, figures["value_factor"])
    briers = {
        "value_brier_before": figures["value_brier"],
        "value_brier": figures[f"{CALIBRATED}value_brier"],
    }
    written = {**card, "finished": True, "finetune": dict(origin)}
    written["calibration"] = {"factor": figures["value_factor"], **briers}
    for name in ("files", "superseded"):
        written.pop(name, None)
    if figures["value_factor"] != 1.0:
        written.pop("human_search", None)  # a search's correction was fitted to the other value
    target.mkdir(parents=True, exist_ok=True)
    save(target, written, {"weights": network.state_dict()})


def train_control(context: StageContext, progress: Progress, stop: Stop) -> Path:
    """Train a generation's control for as many steps as its candidate; raises Stopped.

    It uses the requested settings: those that suit the chosen teacher, such as a value without
    results, would weaken it. Its batch norms follow the human rows, as in `fianchetto train`:
    frozen, they cost 0.008 nats (docs/log/2026-11-26.md).
    """
    from model.checkpoint import read_card

    card, out = read_card(context.candidate), context.folder / CONTROL
    settings = context.requested.training(context.requested.seed + context.number)
    config = replace(settings, epochs=None, steps=card["step"], frozen_norms=False)
    if find_validated(context.human, config):
        config = replace(
            config, validation_every_steps=-(-card["step"] // VALIDATIONS), patience=VALIDATIONS
        )
    start = find_control(context.best) or context.best
    done = train_on(context.human, card["preset"]["name"], config, out, progress, stop, start)
    if not done["finished"]:
        raise Stopped(f"stopped at step {done['step']} of the control")
    return out


def find_control(checkpoint: Path) -> Path | None:
    """Return the finished control beside a generation's network, None if there is none.

    The seed has none, and neither has a network that was trained on human rows alone.
    """
    from model.checkpoint import CARD, read_card

    control = checkpoint.parent / CONTROL
    return control if (control / CARD).exists() and read_card(control)["finished"] else None


def train_people(context: StageContext, progress: Progress, stop: Stop) -> dict[str, Any]:
    """Train a generation's candidate on human rows alone and return its figures; raises Stopped.

    It has as many steps as searched rows and human rows would have taken.
    """
    from model.checkpoint import read_card

    settings = context.config
    config = settings.training(settings.seed + context.number)
    assert config.epochs is not None
    rows = settings.explore.count * config.epochs / (1.0 - settings.human_share)
    config = replace(
        config, epochs=None, steps=max(1, round(rows / config.batch_size)), frozen_norms=False
    )
    preset = read_card(context.best)["preset"]["name"]
    human = [Dataset.open(path) for path in context.human]
    card = train_on(human, preset, config, context.candidate, progress, stop, context.best)
    if not card["finished"]:
        raise Stopped(f"stopped at step {card['step']}")
    found = {"step": card["step"], "positions": card["positions"], **card["metrics"]}
    passes = card["positions"] / sum(dataset.count("train") for dataset in human)
    hashes = [entry["manifest_sha256"] for entry in identify_datasets(context.human)]
    return found | {
        "spent": {
            **context.spent,
            **{name: context.spent.get(name, 0.0) + passes for name in hashes},
        }
    }
