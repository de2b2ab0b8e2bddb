"""From a SideConfig (pipeline/matches/config.py lists the words) to a player."""

import shlex
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from engine.evaluation.evaluator import Evaluator, uniform
from engine.evaluation.handwritten import evaluate
from engine.match.config import Limit, PlayerError
from engine.match.players import TIMED_NODES, Player
from engine.match.uci_player import probe
from engine.search import SearchConfig
from pipeline.executors.local import available_cores
from pipeline.matches.config import SideConfig
from pipeline.storage.preflight import installed


def player_of(side: SideConfig, seed: int) -> tuple[Player, dict[str, Any]]:
    """Return a player and the identity by which its match is continued; raises PlayerError, CheckpointError, OnnxError."""
    if side.who.startswith("uci:"):
        return _engine(side)
    greedy = side.who.startswith("policy:")
    limit = replace(side.limit, nodes=None)
    threads = 1 if limit.timed else available_cores()  # on a clock each game has a core of its own
    evaluator, name, identity = _evaluator(side.who.removeprefix("policy:"), threads)
    if greedy:
        if side.options:
            raise PlayerError(f"{side.who} does not search, so it has no options")
        player = Player(name=f"{name} policy", limit=limit, evaluator=evaluator)
        return player, {**identity, "search": None, "limit": asdict(limit)}
    search = search_of(side, limit)
    pace = f"{side.movetime} ms" if side.movetime else side.tc or str(search.simulations)
    player = Player(name=f"{name} {pace}", limit=limit, evaluator=evaluator, search=search, seed=seed)
    return player, {**identity, "search": asdict(search), "limit": asdict(limit)}


def _evaluator(who: str, threads: int) -> tuple[Evaluator, str, dict[str, Any]]:
    """Return an evaluator, its name and its identity; an exported network runs on so many threads."""
    if who in ("hand-written", "uniform"):
        return (evaluate if who == "hand-written" else uniform), who, {"evaluator": who}
    directory = Path(who.removeprefix("onnx:"))
    if not directory.is_dir() or who == "onnx:":
        raise PlayerError(
            f"{who!r} is no player: give a checkpoint's directory, onnx:DIR, hand-written, uniform, policy:X or uci:COMMAND"
        )
    from model.checkpoint import read_card
    from model.inference.evaluator import evaluator
    from model.inference.onnx_evaluator import open_export

    name, weights = directory.resolve().name, read_card(directory)["files"]["weights"]["sha256"]
    if who.startswith("onnx:"):
        graph = open_export(directory, threads=threads)
        return graph, f"{name} onnx", {"evaluator": "onnx", "weights": weights, "onnx": graph.sha256}
    return evaluator(directory), name, {"evaluator": "checkpoint", "weights": weights}


def _engine(side: SideConfig) -> tuple[Player, dict[str, Any]]:
    """Return a UCI engine, which is started once, and its identity."""
    command = tuple(shlex.split(side.who.removeprefix("uci:")))
    if not command:
        raise PlayerError("uci: is followed by the command that starts an engine, as in uci:stockfish")
    limit = side.limit
    if not limit.timed and limit.nodes is None:
        raise PlayerError(f"{side.who} needs a limit: nodes, a time a move, or a clock")
    options = dict(_pair(side.who, option) for option in side.options)
    started = installed(command)
    name = probe(Player(name="", limit=limit, command=started, options=options))
    pace = f"{side.movetime} ms" if side.movetime else side.tc or f"{limit.nodes} nodes"
    level = f" {options['UCI_Elo']} Elo" if "UCI_Elo" in options else ""
    player = Player(name=f"{name}{level} {pace}", limit=limit, command=started, options=options)
    return player, {"command": list(command), "engine": name, "options": options, "limit": asdict(limit)}


def search_of(side: SideConfig, limit: Limit) -> SearchConfig:
    """Return the configuration of a search from its options; PlayerError for an unknown or invalid one.

    Gumbel noise is off unless an option asks for it, as in mctx's evaluation.
    """
    known = {field.name: type(getattr(SearchConfig(), field.name)) for field in fields(SearchConfig)}
    values: dict[str, Any] = {"simulations": side.simulations}
    if limit.timed:
        values["nodes"] = TIMED_NODES
    for option in side.options:
        name, text = _pair(side.who, option)
        name = name.replace("-", "_")
        if name not in known or name == "simulations":
            raise PlayerError(
                f"{side.who} has no option {name}: it has {', '.join(sorted(set(known) - {'simulations'}))}"
            )
        values[name] = _value(name, text, known[name])
    if limit.timed and values.get("algorithm") == "gumbel":
        raise PlayerError(f"{side.who}: gumbel plans its simulations, so it cannot play by time")
    if values.get("algorithm") == "gumbel":
        values.setdefault("gumbel_scale", 0.0)
    return SearchConfig(**values)


def _pair(who: str, option: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, equals, value = option.partition("=")
    if not equals or not name:
        raise PlayerError(f"{who}: an option is NAME=VALUE, not {option!r}")
    return name.strip(), value.strip()


def _value(name: str, text: str, kind: type) -> Any:
    """Return an option's value as `kind`."""
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise PlayerError(f"{name} is true or false, not {text!r}")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError as error:
        raise PlayerError(f"{name} is a number, not {text!r}") from error
