"""Fine-tune a checkpoint on recent self-play rows, each used a few times, and human rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.mixture import Mixture, Source, human_rows
from pipeline.errors import DatasetError
from pipeline.training.train import (
    count_positions,
    describe_data,
    describe_start,
    list_datasets,
    open_validation,
    run_folder,
    select_columns,
)

if TYPE_CHECKING:
    from model.training.config import TrainConfig

BLOCK_ROWS = 1 << 16
"""Rows of a shuffle block: 40 MB of planes, two blocks in memory for each dataset."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A source of the mixture: a self-play dataset, or all human datasets together."""

    entries: Sequence[Mapping[str, Any]]
    """Card entries of its datasets."""
    batches: Batches
    """Its rows in the order of their use."""
    first: int
    """Uses of its rows before this run."""
    takes: int = 0
    """Uses in this run."""

    @property
    def source(self) -> Source:
        """The mixture's source."""
        return Source(self.batches, self.first, self.takes)

    def row(self, drawn: int) -> dict[str, Any]:
        """Return the card's entry after `drawn` rows; `uses` counts a row's uses in all runs."""
        rows, names = self.batches.rows, [entry["name"] for entry in self.entries]
        hashes = [entry["manifest_sha256"] for entry in self.entries]
        uses = (self.first + drawn) / rows
        return {"names": names, "hashes": hashes, "rows": rows, "drawn": drawn, "uses": uses}


def tune_on(
    selfplay: Sequence[Path],
    human: Sequence[Path],
    start: Path,
    config: "TrainConfig",
    out: Path,
    *,
    human_share: float,
    most_uses: float,
    spent: Mapping[str, float],
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Train the checkpoint `start` on self-play and human datasets; return the new card.

    `human_share` of each batch are human rows (none without human datasets). The rest are self-play
    rows, from each dataset in proportion to the uses that its rows have left. An epoch is one pass
    over the self-play rows, and the run ends at the latest when these have been used `most_uses`
    times on average. `spent` has the earlier uses of a dataset's rows by its manifest's hash. They
    count, and the run continues in the dataset's order where they ended: with the same
    `config.seed` no row is used twice before every row was used once. The card's `uses` has the
    uses after this run; `add_uses` collects them.

    Validation is on the human datasets. Raises DatasetError (no rows, or none left to use), and the
    errors of `model.training.loop.train`.
    """
    from model.checkpoint import read_card
    from model.network.preset import preset_from_row
    from model.training.loop import train

    share = Fraction(human_share).limit_denominator(10_000) if human else Fraction(0)
    preset = preset_from_row(read_card(start)["preset"])
    columns = select_columns(config, preset)
    searched = [Dataset.open(path) for path in selfplay]
    played_by_people = [Dataset.open(path) for path in human]
    played, learned = describe_data(searched), describe_data(played_by_people)
    ahead = [
        _use([dataset], [entry], config, columns, spent)
        for dataset, entry in zip(searched, played["datasets"], strict=True)
    ]
    steps, uses = _plan(config, ahead, share, most_uses)
    people = list[_Use]()
    if share:
        use = _use(played_by_people, learned["datasets"], config, columns, spent)
        people = [replace(use, takes=human_rows(steps, config.batch_size, share))]
    mixture = Mixture(
        people[0].source if people else None,
        [use.source for use in uses],
        batch_size=config.batch_size,
        human_share=share,
        seed=config.seed,
    )
    plan = {
        "human_share": float(share),
        "most_uses": most_uses,
        "takes": [use.row(use.takes) for use in [*people, *uses]],
    }
    folder = run_folder(out, [*searched, *played_by_people, start])
    card = train(
        replace(config, steps=steps, epochs=None),
        preset,
        mixture.from_step,
        out,
        validation=open_validation(played_by_people, config, columns),
        data={
            "datasets": [*(learned["datasets"] if share else []), *played["datasets"]],
            "start": _flatten(describe_start(start)),
            "mixture": plan,
        },
        progress=progress,
        stop=stop,
        start=start,
        check_output=folder.begin,
    )
    folder.finish()
    drawn = zip([*people, *uses], mixture.counts(0, card["step"]).tolist(), strict=True)
    return {**card, "uses": [use.row(count) for use, count in drawn]}


def add_uses(card: Mapping[str, Any], spent: Mapping[str, float]) -> dict[str, float]:
    """Return `spent` for the next `tune_on`, from the last card and its own `spent`."""
    return {**spent, **{name: use["uses"] for use in card["uses"] for name in use["hashes"]}}


def _use(
    datasets: Sequence[Dataset],
    entries: Sequence[Mapping[str, Any]],
    config: "TrainConfig",
    columns: Sequence[str],
    spent: Mapping[str, float],
) -> _Use:
    """Open datasets as one source; its earlier uses are the most of any of its datasets."""
    batches = Batches(
        datasets,
        batch_size=config.batch_size,
        seed=config.seed,
        columns=columns,
        people_only=not config.engine_moves,
        block_rows=BLOCK_ROWS,
    )
    before = max(spent.get(str(entry["manifest_sha256"]), 0.0) for entry in entries)
    return _Use(entries, batches, first=round(before * batches.rows))


def _plan(
    config: "TrainConfig", uses: Sequence[_Use], share: Fraction, most_uses: float
) -> tuple[int, list[_Use]]:
    """Return the number of steps, and the uses with their rows; raises DatasetError."""
    assert config.epochs is not None, "the uses of rows are counted before a run begins"
    left = [max(0, int(most_uses * use.batches.rows + 1e-6) - use.first) for use in uses]
    a_step = config.batch_size * (1 - share)
    rows = sum(use.batches.rows for use in uses)
    steps = min(-int(-Fraction(config.epochs) * rows // a_step), int(sum(left) / a_step))
    if steps < 1:
        raise DatasetError(
            f"{sum(left)} of {rows} self-play positions may still be used, and one batch takes "
            f"{float(a_step):g}: play more games, or raise most_uses"
        )
    wanted = steps * config.batch_size - human_rows(steps, config.batch_size, share)
    taken = zip(uses, _divide(wanted, left), strict=True)
    return steps, [replace(use, takes=takes) for use, takes in taken]


def _divide(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a number by weights, by largest remainders; a part exceeds no weight."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % whole))
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def _flatten(lineage: dict[str, Any]) -> dict[str, Any]:
    """Return a start entry whose data are one flat list, so that generations do not nest."""
    entries = list_datasets(lineage["data"])
    seen = {entry.get("manifest_sha256", entry["name"]): entry for entry in entries}
    data = {"datasets": list(seen.values())}
    return {**lineage, "positions": count_positions(lineage), "data": data}
