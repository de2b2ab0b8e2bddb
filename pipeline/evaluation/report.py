"""What a checkpoint is worth: how often its first choice is the human's move, on games it never saw, and by which rule.

Every figure is a mean over the counted positions. Intervals treat a *game* as the sampling unit, since the positions of one
game are alike. The baselines are measured on the same rows.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.progress import Progress, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import MANIFEST, Batch, file_hash, read_manifest
from pipeline.dataset.position_keys import KEYED_BY, position_keys
from pipeline.dataset.train_keys import stand_in
from pipeline.dataset.training_set import LATEST, Member, Shard, members
from pipeline.dumps.paths import dumps_of
from pipeline.errors import ConfigError, DamagedError
from pipeline.evaluation.measure import (
    BATCH,
    COLUMNS,
    COMMON,
    Baseline,
    measured_rows,
    most_frequent,
)
from pipeline.evaluation.measure import Rule as Rule
from pipeline.evaluation.ratings.config import RatingsConfig
from pipeline.evaluation.ratings.sample import BandSample
from pipeline.storage.preflight import is_installed
from pipeline.training.train import datasets_of, positions_of

if TYPE_CHECKING:
    import polars as pl

    from model.inference.evaluator import NetworkEvaluator
    from pipeline.evaluation.fitted import Fitted
    from pipeline.evaluation.puzzles import Puzzle


class Measured(NamedTuple):
    """One checkpoint's report and the rows that it was counted from."""

    result: dict[str, Any]
    table: "pl.DataFrame"


class _Where(NamedTuple):
    """The rows to measure on."""

    positions: Path
    split: str
    words: str
    train: list[Shard]
    """Shards of train in which positions are looked for."""
    fitted_on: list[Path]
    """Datasets or training sets that these are of."""
    dumps: Sequence[str]
    """Dumps of the only dataset, for links to games; none where they are not there."""


class _How(NamedTuple):
    """How to measure."""

    rule: Rule
    players: bool
    puzzles: "Sequence[Puzzle] | None"
    ratings: RatingsConfig
    judgements: Path | None
    baselines: Sequence[Baseline]


@contextmanager
def _rows_of(
    positions: Path | None, split: str, pgn: Path | None, against: Sequence[Path], progress: Progress
) -> Iterator[_Where]:
    """Return the rows of a dataset's split, or ingest a PGN file into a temporary folder."""
    if positions is not None:
        found = members(positions, progress)
        train = _trains(against or (positions,)) if split != "train" else {}
        dumps = dumps_of(found[0].directory, found[0].manifest) if len(found) == 1 else None
        shards = [shard for mine in train.values() for shard in mine]
        yield _Where(
            positions, split, f"the {split} split of {positions.resolve().name}", shards, [*train], dumps or []
        )
        return
    from pipeline.ingest.chunk import IngestConfig
    from pipeline.ingest.job import ingest

    assert pgn is not None
    damage = ""
    with tempfile.TemporaryDirectory(prefix="fianchetto-report-") as folder:
        try:
            ingest([str(pgn)], Path(folder), IngestConfig(test_share=0.0, val_share=0.0), workers=1)
        except DamagedError:  # the games before the damage are measured, and the report says so
            damage = f", up to where the archive is damaged ({read_manifest(Path(folder))['sources'][0]['damage']})"
        train = _trains(against)
        shards = [shard for mine in train.values() for shard in mine]
        yield _Where(Path(folder), "train", f"all games of {pgn.name}{damage}", shards, [*train], [str(pgn)])


def report(
    checkpoint: Path,
    *,
    positions: Path | None = None,
    split: str = "test",
    pgn: Path | None = None,
    against: Sequence[Path] = (),
    rule: Rule | None = None,
    players: bool = True,
    puzzles: Path | None = None,
    ratings: RatingsConfig | None = None,
    judgements: Path | None = None,
    baselines: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure a checkpoint on a split of a dataset or training set, or on all games of a PGN file.

    `against` are datasets whose train split the positions are looked for in, that of `positions` if there are none.
    Without `players`, a network that reads ratings and clocks is told that they are unknown. `puzzles` is a CSV file of
    Lichess puzzles. `ratings` says how a network that reads ratings is measured under told ones; the engine's judgements are
    kept in the folder `judgements`, if one is given. With `baselines`, two are fitted on train
    (pipeline/evaluation/fitted.py).

    Returns `positions top1 top3 top5 cross_entropy legal_mass value_brier` (model/metrics.py defines them), the interval
    `top1_low top1_high` (None where the games are too few, which `top1_interval` says), the baselines, `rule` in words,
    `common_rule` (the same figures by that rule), `slices` (tables by ply, rating, legal moves and clock, and by whether the
    position, of a game that was never seen, occurs in train all the same: `top1_not_in_train top1_in_train`), what told
    ratings do in words (`told_ratings told_losses`), and `details`, the rest of what the report page shows. `cross_entropy`
    is in nats; values and clocks are the mover's.
    """
    same: dict[str, Any] = {"split": split, "pgn": pgn, "against": against, "rule": rule, "players": players}
    same |= {"puzzles": puzzles, "ratings": ratings, "judgements": judgements, "baselines": baselines}
    found = reports([checkpoint], positions=positions, progress=progress, **same)
    return dict(found["reports"][0])


def reports(
    checkpoints: Sequence[Path],
    *,
    positions: Path | None = None,
    split: str = "test",
    pgn: Path | None = None,
    against: Sequence[Path] = (),
    rule: Rule | None = None,
    players: bool = True,
    puzzles: Path | None = None,
    ratings: RatingsConfig | None = None,
    judgements: Path | None = None,
    baselines: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure several checkpoints on the same rows: `reports` as `report` returns them, and `differences` from the first.

    A difference is paired: of both networks on the same positions, with the interval by games.
    """
    from model.checkpoint import read_card
    from pipeline.evaluation.details import BASELINES, paired
    from pipeline.evaluation.puzzles import read_puzzles

    if (positions is None) == (pgn is None):
        raise ConfigError("say what to measure on: either positions or a PGN file")
    for path in checkpoints:  # before minutes of ingest
        read_card(path)
    tried = None if puzzles is None else read_puzzles(puzzles)
    with _rows_of(positions, split, pgn, against, progress) as where, ExitStack() as scratch:
        rule, ratings = rule or Rule(), ratings or RatingsConfig()
        if ratings.judged and judgements is None:  # one for all checkpoints
            judgements = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="fianchetto-judged-")))
        fitted = _fitted(where, rule, progress) if baselines else None
        frequent = most_frequent(where.train)
        compared = [baseline for baseline in (fitted, frequent) if baseline is not None]
        how = _How(rule, players, tried, ratings, judgements, compared)
        found = [_measured(path, where, how, progress) for path in checkpoints]
        if fitted is not None:
            for one in found:
                top1 = {row["name"]: row["top1"] for row in one.result["details"]["baselines"]}
                figures = ", ".join(
                    f"{title} {top1[title]:.4f}" for title in (BASELINES["logistic"], BASELINES["book"])
                )
                one.result["fitted_baselines"] = f"top-1 {figures} ({fitted.words})"
    names = _names(checkpoints)
    differences = [
        {"name": name, "against": names[0], **paired(found[0].table, one.table)}
        for name, one in list(zip(names, found, strict=True))[1:]
    ]
    return {"names": names, "reports": [one.result for one in found], "differences": differences}


def _names(checkpoints: Sequence[Path]) -> list[str]:
    """Return a name for each checkpoint: its folder's, with the folder above where two are alike."""
    plain = [path.resolve().name for path in checkpoints]
    return [
        name if plain.count(name) == 1 else f"{path.resolve().parent.name}/{name}"
        for name, path in zip(plain, checkpoints, strict=True)
    ]


def _trains(directories: Sequence[Path]) -> dict[Path, list[Shard]]:
    """Return the shards of train of each dataset or training set that has some."""
    found = {path: [shard for member in members(path) for shard in member.shards("train")] for path in directories}
    return {path: shards for path, shards in found.items() if shards}


def _seen(card: dict[str, Any], positions: Path, split: str) -> str:
    """Return whether the network was trained on these games, by the hashes in its card: yes, unknown or no."""
    said = {_seen_dataset(card, member, split) for member in members(positions) if member.shards(split)}
    return next((word for word in ("yes", "unknown", "no") if word in said), "no, another dump")


def _seen_dataset(card: dict[str, Any], member: Member, split: str) -> str:
    """Return it for one dataset."""
    positions, manifest = member.directory, member.manifest
    trained = datasets_of(card["data"])
    # what `convert` makes has the games of the former dataset in the splits of the former one
    mine = {file_hash(positions / MANIFEST), manifest.get("converted_from")} - {None}
    if mine & {dataset.get(name) for dataset in trained for name in ("manifest_sha256", "converted_from")}:
        return "yes" if split in ("train", LATEST) else "no"
    sources = {source.get("sha256") for dataset in trained for source in dataset.get("sources", [])}
    # Other settings of the same dump move games between the splits; another dump may hold the same games.
    return (
        "unknown"
        if sources & {source["sha256"] for source in manifest["sources"]} or not trained
        else "no, another dump"
    )


def _by_common_rule(table: "pl.DataFrame", rule: Rule, where: str) -> dict[str, Any]:
    """Return the headline figures of the counted rows that the usual rule of the literature counts.

    Where the report's own rule counts fewer rows, those words say so.
    """
    import polars as pl

    from pipeline.evaluation.details import baseline_rows
    from pipeline.evaluation.figures import headline, slices

    kept = table.filter((pl.col("ply") >= COMMON.min_ply) & (pl.col("clock") >= COMMON.min_clock))
    figures: dict[str, Any] = {"positions": 0, "baselines": []}
    if len(kept):
        figures = headline(kept, slices(kept)["calibration"]) | {"baselines": baseline_rows(kept)}
    both = Rule(
        min_ply=max(COMMON.min_ply, rule.min_ply), min_clock=max(COMMON.min_clock, rule.min_clock), limit=rule.limit
    )
    return {"rule": both.describe(where), **figures}


def _stream(where: _Where, rule: Rule, columns: Sequence[str]) -> tuple[Iterator[Batch], int]:
    """Return the rows to measure on, before the rule leaves any out but those beyond its limit, and their number."""
    batches = Batches([where.positions], where.split, batch_size=BATCH, columns=columns)
    rows = min(rule.limit, batches.rows) if rule.limit else batches.rows
    return batches.drawn(rows) if rows < batches.rows else batches.once(), rows


def _fitted(where: _Where, rule: Rule, progress: Progress) -> "Fitted":
    """Return the baselines that are fitted on train; raises ConfigError where there is none."""
    from pipeline.evaluation.fitted import Fitted

    if not where.fitted_on:
        raise ConfigError("baselines are fitted on the train split of a dataset: name one by --positions or --against")
    keys = [position_keys(batch["planes"], batch["castling"]) for batch in _stream(where, rule, KEYED_BY)[0]]
    return Fitted(where.fitted_on, np.concatenate(keys), progress)


def _told(
    network: "NetworkEvaluator", sample: BandSample, how: _How, progress: Progress
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what told ratings do: in words, as slices, and as details of the page."""
    from model.data.inputs import input_columns
    from model.network.conditioning import RATINGS
    from pipeline.evaluation.ratings import losses, matrix

    if not sample.rows:
        return {}, {}, {}
    read = input_columns(network.preset)
    if not set(RATINGS) <= set(read):
        return {"told_ratings": f"left out: {network.preset.name} reads no ratings"}, {}, {}
    if not how.players:
        return {"told_ratings": "left out: the players' ratings are hidden"}, {}, {}
    words, cut, more = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    if how.ratings.rating_rows:
        found = matrix.told_matrix(network, sample, how.ratings.rating_rows, progress)
        words["told_ratings"], more["ratings_told"] = matrix.matrix_sentence(found), found
        cut["told_ratings"] = matrix.matrix_table(found)
    if how.ratings.judged:
        assert how.judgements is not None
        more["losses_told"] = {"rows": []}
        if not is_installed(how.ratings.engine):
            words["told_losses"] = f"left out: {how.ratings.engine} is not installed"
        elif not sample.kept:
            words["told_losses"] = matrix.NOBODY
        else:
            found = losses.told_losses(network, sample, how.ratings, how.judgements, progress)
            words["told_losses"], more["losses_told"] = losses.losses_sentence(found, how.ratings), found
            cut["told_losses"] = losses.losses_table(found)
    return words, cut, more


def _measured(checkpoint: Path, where: _Where, how: _How, progress: Progress) -> Measured:
    """Measure one checkpoint."""
    from model.checkpoint import load, read_card
    from model.data.inputs import input_columns
    from model.inference.evaluator import NetworkEvaluator
    from model.network.conditioning import STEPS
    from pipeline.evaluation.details import baseline_table, details, with_strata
    from pipeline.evaluation.figures import TRAIN_BANDS, by_train, headline, slices
    from pipeline.evaluation.page.links import with_games
    from pipeline.evaluation.puzzles import solve

    card = read_card(checkpoint)
    network = NetworkEvaluator(load(checkpoint)[0])
    read = input_columns(network.preset)
    columns = tuple(dict.fromkeys((*COLUMNS, *read)))
    stream, rows = _stream(where, how.rule, columns)
    sample = BandSample(max(how.ratings.rating_rows, how.ratings.judged))
    table, boards = measured_rows(stream, network, how.rule, rows, how.players, how.baselines, sample, progress)
    table = with_strata(table)
    cut = slices(table)
    if where.train:
        cut["by_train"] = by_train(table, stand_in(table["key"].to_numpy(), where.train))
    top1 = {row["band"]: row["top1"] for row in cut.get("by_train", [])}
    both = {"top1_not_in_train": top1.get(TRAIN_BANDS[0]), "top1_in_train": top1.get(TRAIN_BANDS[1])}
    more = details(table) | {"boards": with_games(boards.rows(), where.positions, where.dumps)}
    told, told_cut, told_more = _told(network, sample, how, progress)
    more |= told_more
    cut |= told_cut | {"baselines": baseline_table(more["baselines"])}
    if how.puzzles is not None:
        more["puzzles"] = solve(how.puzzles, network)
    result = {
        **headline(table, cut["calibration"]),
        "common_rule": _by_common_rule(table, how.rule, where.words),
        **(both if where.train else {}),
        "rule": how.rule.describe(where.words),
        "reads": [name for name in read if name in STEPS] if how.players else [],
        **told,
        "seen_in_training": _seen(card, where.positions, where.split),
        "preset": card["preset"]["name"],
        "step": card["step"],
        "trained_on_positions": positions_of(card),
        "trained_on": list(dict.fromkeys(dataset["name"] for dataset in datasets_of(card["data"]))),
        "slices": cut,
        "details": more,
    }
    return Measured(result, table)
