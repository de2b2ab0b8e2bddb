"""Create a player from a SideConfig (pipeline/matches/config.py lists the kinds of players)."""

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

from engine.cores import count_cores
from engine.evaluation.evaluator import Evaluator, uniform
from engine.evaluation.handwritten import evaluate
from engine.json_files import first_error
from engine.match import Limit, PlayerError
from engine.match.players import MAX_TIMED_NODES, Contestant
from engine.match.uci_player import probe_engine
from engine.search import SearchConfig
from engine.search.human import human_config
from pipeline.matches.config import SideConfig
from pipeline.storage.preflight import find_engine

MAX_RATING = 4000
"""Maximum value of the option `rating`."""


def make_player(side: SideConfig, seed: int) -> tuple[Contestant, dict[str, Any]]:
    """Create a player; return it and its identity, which a resumed match compares.

    Raises PlayerError, CheckpointError and OnnxError.
    """
    if side.who.startswith("uci:"):
        return _make_engine_player(side)
    limit = replace(side.limit, nodes=None)
    threads = 1 if limit.is_timed else count_cores()  # timed games use one core each
    evaluator, name, identity = _open_evaluator(side.who.removeprefix("policy:"), threads)
    if side.who.startswith("policy:"):
        if side.options:
            raise PlayerError(f"{side.who} does not search and takes no options: remove them")
        player = Contestant(name=f"{name} policy", limit=limit, evaluator=evaluator)
        return player, {**identity, "search": None, "limit": asdict(limit)}
    if any(option.startswith("rating=") for option in side.options):
        return _make_human_player(side, seed, evaluator, name, identity)
    search = _make_search_config(side, limit)
    pace = f"{side.movetime} ms" if side.movetime else side.tc or str(search.simulations)
    name = " ".join([name, pace, *side.options])
    player = Contestant(name=name, limit=limit, evaluator=evaluator, search=search, seed=seed)
    return player, {**identity, "search": asdict(search), "limit": asdict(limit)}


def _make_human_player(
    side: SideConfig, seed: int, evaluator: Evaluator, name: str, identity: dict[str, Any]
) -> tuple[Contestant, dict[str, Any]]:
    """Create a player that imitates humans of a rating; return it and its identity."""
    options = _parse_options(side)
    aim, rating = options.pop("aim", "likelihood"), options.pop("rating")
    if options or side.limit.is_timed:
        raise PlayerError(
            f"{side.who}: a player with a rating takes only simulations, rating and aim: remove "
            "the other options"
        )
    corrections = getattr(evaluator, "corrections", {})
    if not corrections:
        raise PlayerError(
            f"{side.who} cannot play at a rating: only checkpoints fitted by `fianchetto "
            "calibrate` can"
        )
    if aim not in corrections or not rating.isdecimal() or not 1 <= int(rating) <= MAX_RATING:
        raise PlayerError(
            f"{side.who}: rating must be 1 to {MAX_RATING}, and aim must be likelihood or strength"
        )
    correction, search = corrections[aim], human_config(side.simulations)
    player = Contestant(
        name=f"{name} rated {rating} {aim}",
        evaluator=evaluator,
        search=search,
        seed=seed,
        rating=int(rating),
        correction=correction,
    )
    identity |= {"rating": int(rating), "correction": asdict(correction), "search": asdict(search)}
    return player, identity


def _open_evaluator(who: str, threads: int) -> tuple[Evaluator, str, dict[str, Any]]:
    """Return an evaluator, its name and its identity; an export runs on `threads` threads."""
    if who in ("hand-written", "uniform"):
        return (evaluate if who == "hand-written" else uniform), who, {"evaluator": who}
    directory = Path(who.removeprefix("onnx:"))
    if not directory.is_dir() or who == "onnx:":
        kinds = "a checkpoint's directory, onnx:DIR, hand-written, uniform, policy:X or uci:COMMAND"
        raise PlayerError(f"{who!r} is not a player: give {kinds}")
    from model.checkpoint import read_card
    from model.inference.evaluator import evaluator
    from model.inference.onnx_evaluator import open_export

    name, weights = directory.resolve().name, read_card(directory)["files"]["weights"]["sha256"]
    if who.startswith("onnx:"):
        graph = open_export(directory, threads=threads)
        identity = {"evaluator": "onnx", "weights": weights, "onnx": graph.sha256}
        return graph, f"{name} onnx", identity
    return evaluator(directory), name, {"evaluator": "checkpoint", "weights": weights}


def _make_engine_player(side: SideConfig) -> tuple[Contestant, dict[str, Any]]:
    """Return a UCI engine as a player, and its identity; start it once to read its name."""
    command = tuple(shlex.split(side.who.removeprefix("uci:")))
    if not command:
        raise PlayerError("uci: needs the command that starts the engine, as in uci:stockfish")
    limit = side.limit
    if not limit.is_timed and limit.nodes is None:
        raise PlayerError(f"{side.who} needs a limit: nodes, a time per move, or a clock")
    options = _parse_options(side)
    player = Contestant(name="", limit=limit, command=find_engine(command), options=options)
    engine = probe_engine(player)
    pace = f"{side.movetime} ms" if side.movetime else side.tc or f"{limit.nodes} nodes"
    level = f" {options['UCI_Elo']} Elo" if "UCI_Elo" in options else ""
    identity = {
        "command": list(command),
        "engine": engine,
        "options": options,
        "limit": asdict(limit),
    }
    return replace(player, name=f"{engine}{level} {pace}"), identity


def _make_search_config(side: SideConfig, limit: Limit) -> SearchConfig:
    """Return the search settings from a player's options; raises PlayerError for invalid ones.

    As in mctx's evaluation, Gumbel noise is off unless an option turns it on.
    """
    from pydantic import TypeAdapter, ValidationError

    types = get_type_hints(SearchConfig)
    types.pop("simulations")  # a limit, not an option
    values: dict[str, Any] = {"simulations": side.simulations}
    if limit.is_timed:
        values["nodes"] = MAX_TIMED_NODES
    for name, text in _parse_options(side).items():
        if name not in types:
            raise PlayerError(
                f"{side.who} has no option {name}: choose from {', '.join(sorted(types))}"
            )
        try:
            values[name] = TypeAdapter(types[name]).validate_python(text)
        except ValidationError as error:
            raise PlayerError(f"{side.who}: {name}: {first_error(error)}") from error
    if values.get("algorithm") == "gumbel":
        if limit.is_timed:
            raise PlayerError(
                f"{side.who}: gumbel cannot play by time, since it needs a fixed number of "
                "simulations: choose puct"
            )
        values.setdefault("gumbel_scale", 0.0)
    return SearchConfig(**values)


def _parse_options(side: SideConfig) -> dict[str, str]:
    """Parse a player's options; raises PlayerError for an option that is not NAME=VALUE."""
    pairs = [option.partition("=") for option in side.options]
    for name, equals, value in pairs:
        if not equals or not name:
            raise PlayerError(
                f"{side.who}: options must be NAME=VALUE, got {name + equals + value!r}"
            )
    return {name.strip(): value.strip() for name, _, value in pairs}
