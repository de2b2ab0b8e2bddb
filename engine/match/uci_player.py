"""Play the moves of a UCI engine in a match, with one process per slot.

An engine that crashes, hangs or plays an illegal move loses that game only. Its process is killed,
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

START_TIMEOUT = 60.0
"""Seconds that an engine has to get ready after its start or for a new game."""
EXIT_TIMEOUT = 5.0
"""Seconds that a killed process has to exit."""


def start_engine(player: Contestant) -> chess.engine.SimpleEngine:
    """Start an engine and set its options, or raise PlayerError."""
    command = " ".join(player.command)
    try:
        engine = chess.engine.SimpleEngine.popen_uci(
            list(player.command), timeout=START_TIMEOUT, setpgrp=True, stderr=subprocess.DEVNULL
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


def probe_engine(player: Contestant) -> str:
    """Start and stop an engine; return its name, or raise PlayerError if it does not work."""
    engine = start_engine(player)
    try:
        return str(engine.id.get("name") or player.command[0])
    finally:
        _kill(engine)


def _kill(engine: chess.engine.SimpleEngine) -> None:
    with suppress(ProcessLookupError):
        engine.transport.kill()
    with suppress(TimeoutError):
        engine.returncode.result(EXIT_TIMEOUT)
    engine.close()


async def _new_game(engine: chess.engine.SimpleEngine, game: int) -> None:
    """Send `ucinewgame` and wait until the engine is ready.

    chess.engine would send it with the first move, when the engine's clock is running.
    """
    protocol = engine.protocol
    assert isinstance(protocol, chess.engine.UciProtocol), "`start_engine` starts UCI engines"
    protocol.send_line("ucinewgame")
    protocol.first_game, protocol.game = False, game
    await protocol.ping()


class UciSide:
    """Side of a UCI engine in `width` games, with one process per game."""

    def __init__(self, player: Contestant, width: int, extra_seconds: float) -> None:
        """Create the side; an engine without an answer is killed `extra_seconds` after its time."""
        self.player, self.extra_seconds = player, extra_seconds
        self.engines: list[chess.engine.SimpleEngine | None] = [None] * width
        """Engine of each slot; it is started at the first move."""
        self.games: dict[int, int] = {}
        """Game number of each slot."""
        self.ready: list[int | None] = [None] * width
        """Number of the game for which the engine of each slot is ready."""
        self.pool = ThreadPoolExecutor(min(count_cores(), width), thread_name_prefix="engine")

    def play(self, requests: Sequence[MoveRequest]) -> list[PlayResult]:
        """Get a move for each request; at most one engine per core thinks at a time."""
        return list(self.pool.map(self._play, requests))

    def close(self) -> None:
        """End every process."""
        self.pool.shutdown()
        for engine in self.engines:
            if engine is not None:
                _kill(engine)

    def _play(self, request: MoveRequest) -> PlayResult:
        """Get one move; if the engine fails, kill it and return a result with the fault."""
        slot = request.slot
        try:
            engine = self._prepare_engine(slot)
        except (PlayerError, chess.engine.EngineError) as error:
            return self._fail(slot, 0.0, "crash", str(error))
        except TimeoutError:
            return self._fail(slot, 0.0, "timeout", "not ready for a new game")
        start_time = time.perf_counter()
        question = engine.protocol.play(
            request.board,
            _convert_limit(self.player.limit, request),
            game=self.games[slot],
            info=chess.engine.INFO_SCORE,
        )
        future = asyncio.run_coroutine_threadsafe(question, engine.protocol.loop)
        try:
            played = future.result(self._timeout(request))
        except TimeoutError:
            fault, detail = "timeout", f"no move after {time.perf_counter() - start_time:.2f} s"
        except chess.engine.EngineTerminatedError as error:
            fault, detail = "crash", str(error)
        except chess.engine.EngineError as error:
            fault, detail = "illegal move", str(error)
        else:
            seconds = time.perf_counter() - start_time
            if played.move and request.board.is_legal(played.move):
                score = played.info.get("score")
                mover_score = score.pov(request.board.turn) if score else None
                return PlayResult(played.move, mover_score, seconds)
            fault, detail = "illegal move", "no move in its answer"
        future.cancel()
        return self._fail(slot, time.perf_counter() - start_time, fault, detail)

    def _prepare_engine(self, slot: int) -> chess.engine.SimpleEngine:
        """Return the engine of a slot, ready for its game, before its clock is started."""
        engine = self.engines[slot]
        if engine is None:
            engine = self.engines[slot] = start_engine(self.player)
            self.ready[slot] = None
        if self.ready[slot] != self.games[slot]:
            answer = asyncio.run_coroutine_threadsafe(
                _new_game(engine, self.games[slot]), engine.protocol.loop
            )
            answer.result(START_TIMEOUT)
            self.ready[slot] = self.games[slot]
        return engine

    def _fail(self, slot: int, seconds: float, fault: str, detail: str) -> PlayResult:
        """Kill the slot's engine; return a result with the fault."""
        engine, self.engines[slot] = self.engines[slot], None
        if engine is not None:
            _kill(engine)
        return PlayResult(None, None, seconds, fault, detail)

    def _timeout(self, request: MoveRequest) -> float:
        """Return the seconds to wait for a move before the process is killed."""
        limit = self.player.limit
        if limit.movetime is not None:
            return limit.movetime + self.extra_seconds
        if limit.base is not None and request.left is not None:
            return max(0.0, request.left) + self.extra_seconds
        return self.extra_seconds


def _convert_limit(limit: Limit, request: MoveRequest) -> chess.engine.Limit:
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
