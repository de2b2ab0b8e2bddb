"""UCI engines as a side of a match, one process per slot. A hang or crash forfeits that game only.

An engine that crashes, times out or plays an illegal move loses that game. Its process is killed,
and a new one is started for the slot's next game.
"""

import asyncio
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import chess
import chess.engine

from engine.cores import count_cores
from engine.match import Limit, PlayerError
from engine.match.players import Contestant, MoveRequest, PlayResult

STARTING_SECONDS = 60.0
"""Timeout for starting an engine."""
ENDING_SECONDS = 5.0
"""Timeout for a killed process to exit."""


def start(player: Contestant) -> chess.engine.SimpleEngine:
    """Start an engine and set its options, or raise PlayerError."""
    command = " ".join(player.command)
    try:
        engine = chess.engine.SimpleEngine.popen_uci(
            list(player.command), timeout=STARTING_SECONDS, setpgrp=True, stderr=subprocess.DEVNULL
        )
    except (OSError, chess.engine.EngineError, TimeoutError) as error:
        raise PlayerError(
            f"{command} cannot be started as a UCI engine: {error or 'no answer'}"
        ) from error
    try:
        engine.configure(dict(player.options))
    except (chess.engine.EngineError, TimeoutError) as error:
        _kill(engine)
        raise PlayerError(f"{command} rejected its options: {error or 'no answer'}") from error
    return engine


def probe(player: Contestant) -> str:
    """Start and stop an engine; return its name or raise PlayerError if it does not work."""
    engine = start(player)
    try:
        return str(engine.id.get("name") or player.command[0])
    finally:
        _kill(engine)


def _kill(engine: chess.engine.SimpleEngine) -> None:
    """Kill an engine's process and wait until it exits."""
    with suppress(ProcessLookupError):
        engine.transport.kill()
    with suppress(TimeoutError):
        engine.returncode.result(ENDING_SECONDS)
    engine.close()


async def _new_game(engine: chess.engine.SimpleEngine, game: int) -> None:
    """Send `ucinewgame` and wait until the engine is ready.

    chess.engine would do so during the first move, on the engine's clock.
    """
    protocol = engine.protocol
    assert isinstance(protocol, chess.engine.UciProtocol), "engines are started as UCI engines"
    protocol.send_line("ucinewgame")
    protocol.first_game, protocol.game = False, game
    await protocol.ping()


class UciSide:
    """A UCI engine in `width` games, one process per game."""

    def __init__(self, player: Contestant, width: int, patience: float) -> None:
        self.player, self.patience = player, patience
        self.engines: list[chess.engine.SimpleEngine | None] = [None] * width
        self.games: dict[int, int] = {}
        """Game numbers by slot; a slot's process is started at its first move."""
        self.ready: list[int | None] = [None] * width
        """Number of the game that each slot's process is ready for."""
        self.pool = ThreadPoolExecutor(min(count_cores(), width), thread_name_prefix="engine")

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Return a move for each request; as many engines as cores think at a time."""
        return list(self.pool.map(self._play, requests))

    def close(self) -> None:
        """End every process."""
        self.pool.shutdown()
        for engine in self.engines:
            if engine is not None:
                _kill(engine)

    def _play(self, request: MoveRequest) -> PlayResult:
        """Request one move; return errors as a result with a fault."""
        slot = request.slot
        try:
            engine = self._engine_of(slot)
        except (PlayerError, chess.engine.EngineError) as error:
            return self._failed(slot, 0.0, "crash", str(error))
        except TimeoutError:
            return self._failed(slot, 0.0, "timeout", "not ready for a new game")
        begun = time.perf_counter()
        question = engine.protocol.play(
            request.board,
            _engine_limit(self.player.limit, request),
            game=self.games[slot],
            info=chess.engine.INFO_SCORE,
        )
        future = asyncio.run_coroutine_threadsafe(question, engine.protocol.loop)
        try:
            played = future.result(self._seconds(request))
        except TimeoutError:
            fault, detail = "timeout", f"no move after {time.perf_counter() - begun:.2f} s"
        except chess.engine.EngineTerminatedError as error:
            fault, detail = "crash", str(error)
        except chess.engine.EngineError as error:
            fault, detail = "illegal move", str(error)
        else:
            seconds = time.perf_counter() - begun
            if played.move and request.board.is_legal(played.move):
                score = played.info.get("score")
                mine = score.pov(request.board.turn) if score else None
                return PlayResult(played.move, mine, seconds)
            fault, detail = "illegal move", "no move in its answer"
        future.cancel()
        return self._failed(slot, time.perf_counter() - begun, fault, detail)

    def _engine_of(self, slot: int) -> chess.engine.SimpleEngine:
        """Return the slot's engine, ready for its game; this time is not on its clock."""
        engine = self.engines[slot]
        if engine is None:
            engine = self.engines[slot] = start(self.player)
            self.ready[slot] = None
        if self.ready[slot] != self.games[slot]:
            asked = asyncio.run_coroutine_threadsafe(
                _new_game(engine, self.games[slot]), engine.protocol.loop
            )
            asked.result(STARTING_SECONDS)
            self.ready[slot] = self.games[slot]
        return engine

    def _failed(self, slot: int, seconds: float, fault: str, detail: str) -> PlayResult:
        """Kill the slot's engine; return a result with the fault."""
        engine, self.engines[slot] = self.engines[slot], None
        if engine is not None:
            _kill(engine)
        return PlayResult(None, None, seconds, fault, detail)

    def _seconds(self, request: MoveRequest) -> float:
        """Return how long to wait for a move before the process is killed."""
        limit = self.player.limit
        if limit.movetime is not None:
            return limit.movetime + self.patience
        if limit.base is not None and request.left is not None:
            return max(0.0, request.left) + self.patience
        return self.patience


def _engine_limit(limit: Limit, request: MoveRequest) -> chess.engine.Limit:
    """Return the limit of a move as chess.engine's."""
    if limit.base is None or request.clocks is None:
        return chess.engine.Limit(time=limit.movetime, nodes=limit.nodes)
    (white, black), (white_increment, black_increment) = request.clocks, request.increments
    return chess.engine.Limit(
        white_clock=white,
        black_clock=black,
        white_inc=white_increment,
        black_inc=black_increment,
        remaining_moves=request.moves_to_go,
    )
