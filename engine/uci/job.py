"""Answer one `go`: request a move from the player, and write `info` lines and `bestmove`."""

import threading
import traceback
from collections.abc import Callable
from dataclasses import replace

import chess

from engine.evaluation import handwritten
from engine.evaluation.evaluator import to_centipawns
from engine.player import Conditions, Play, Player, Request, Style
from engine.player.clock import MAX_SIMULATIONS, MoveControl
from engine.player.lines import win_draw_loss
from engine.uci.commands import Go, quote
from engine.uci.options import Options

FIRST_REPORT_SECONDS, MAX_REPORT_SECONDS = 0.25, 2.0
"""Seconds before the first report, and the maximum between later ones; each interval doubles."""
PROBE_SECONDS = 0.01
"""Interval of checks of the root if `go` has a depth or mate."""
NO_MOVE = "bestmove (none)"
"""Answer if there is no position or the game is over; Stockfish's is the same."""


class GoJob(MoveControl):
    """The task of answering one `go`; the reading thread calls only `stop` and `ponderhit`."""

    def __init__(
        self,
        go: Go,
        options: Options,
        board: chess.Board | None,
        base: float | None,
        start_time: float,
        write_line: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """Create the task of a `go` received at time `start_time`.

        `board` is a copy of the game, or None if the last position was rejected. `base` is the base
        time of the game's clock, in seconds, if known.
        """
        super().__init__(start_time)
        self.go, self.options, self.board, self.base = go, options, board, base
        self.pondering = go.ponder
        self.answered = False
        self.finished = threading.Event()
        """Set after `bestmove` was written; `answered` is set before that, for an early `go`."""
        self._write_line, self._clock = write_line, clock
        self._wake = threading.Event()
        self._depth = 0
        self._interval = FIRST_REPORT_SECONDS
        self._next_report, self._next_probe = start_time + FIRST_REPORT_SECONDS, 0.0

    @property
    def is_clock_paused(self) -> bool:
        """Whether the answer must wait for `stop` or `ponderhit`, even if it is ready."""
        return not self.stopped and (self.pondering or self.go.infinite)

    @property
    def is_bounded(self) -> bool:
        """Whether the search ends without a `stop`."""
        go = self.go
        limits = (go.nodes, go.depth, go.mate, go.movetime, go.wtime, go.btime)
        is_short = self.options.style != "search" or self.options.limit_strength
        is_short = is_short or self.options.simulations > 0 or self.board is None
        has_limit = any(limit is not None for limit in limits)
        return (is_short or has_limit) and not self.is_clock_paused

    def _note(self, text: str) -> None:
        self._write_line(f"info string {text}")

    def stop(self) -> None:
        """End the search and answer now."""
        self.stopped = True
        self._wake.set()

    def ponderhit(self, now: float) -> None:
        """Start the mover's clock: the opponent played the expected move."""
        self.start_time = now
        self.pondering = False
        self._wake.set()

    def answer(self, player: Player, debug: bool = False) -> None:
        """Choose a move, and write `bestmove` as soon as the protocol allows it."""
        board, answer = self.board, NO_MOVE
        if board is None:
            self._note("no position to play: the last one was rejected")
        elif not any(board.legal_moves):
            self._write_line(f"info depth 0 score {'mate 0' if board.is_check() else 'cp 0'}")
        else:
            answer = f"bestmove {' ponder '.join(self._choose(player, board, debug))}"
        while self.is_clock_paused:
            self._wake.wait()
            self._wake.clear()
        self.answered = True
        self._write_line(answer)

    def end_round(self, read_result: Callable[[], Play]) -> bool:
        """Write due `info` lines; return True at the wanted depth or mate, or with a full tree."""
        now = self._clock()
        if now >= self._next_report:
            self._report(read_result())
            self._interval = min(2 * self._interval, MAX_REPORT_SECONDS)
            self._next_report = now + self._interval
        go = self.go
        if (go.depth is None and go.mate is None) or self.is_clock_paused or now < self._next_probe:
            return False
        self._next_probe = now + PROBE_SECONDS
        play = read_result()
        best = play.moves[0]
        is_deep = go.depth is not None and len(best.variation) >= go.depth
        is_mate = go.mate is not None and (go.mate < 1 or 0 < best.mate <= 2 * go.mate - 1)
        return is_deep or is_mate or play.full >= 1.0  # a full tree grows no deeper

    def _choose(self, player: Player, board: chess.Board, debug: bool) -> list[str]:
        """Return the chosen move and the expected reply, if any.

        An error is reported, and a simpler move is played, so that the game is not lost.
        """
        simple_player = Player(handwritten.evaluate, clock=self._clock)
        player.style = self._choose_style(player)
        request = self._make_request(board)
        for candidate in (player, simple_player):
            try:
                play = candidate.play(request, self)
                self._report(play)
                return [move.uci() for move in play.moves[0].variation[:2]]
            except Exception as error:  # noqa: BLE001 - a game is worth more than a traceback
                candidate.reset()
                reason = f"{type(error).__name__}: {quote(str(error), 300)}"
                self._note(f"the search failed, playing a simpler move: {reason}")
                for line in traceback.format_exc().splitlines() if debug else ():
                    self._note(line)
        return [next(iter(board.legal_moves)).uci()]

    def _choose_style(self, player: Player) -> Style:
        """Return the style that the options select, as far as the evaluator supports it."""
        options, evaluator, aim = self.options, player.evaluator, self.options.human
        style = Style(
            temperature=options.temperature, seed=options.seed, overhead=options.overhead / 1000
        )
        if aim is None and options.style == "search":
            return replace(style, search=options.search_config())
        style = replace(style, book=getattr(evaluator, "book", {}))
        rating = options.played_rating
        if rating and "elo" not in getattr(evaluator, "columns", {}):
            self._note(f"Rating {rating} has no effect: the network has no rating input")
        if aim is None:
            return style
        correction = getattr(evaluator, "corrections", {}).get(aim)
        if correction is None:
            self._note(
                "playing by the policy alone: run `fianchetto calibrate` to fit human search to "
                "this network"
            )
        simulations = options.simulations
        return replace(style, temperature=1.0, correction=correction, simulations=simulations)

    def _make_request(self, board: chess.Board) -> Request:
        go, options, legal = self.go, self.options, list(board.legal_moves)
        search_moves = set()
        for word in go.searchmoves:
            try:
                search_moves.add(board.parse_uci(word.lower()))
            except ValueError:
                self._note(f"searchmoves: {quote(word)} is not a legal move in this position")
        allowed = [move for move in legal if move in search_moves]
        limits = go.limits(board.turn == chess.WHITE)
        base, increment = options.time_control or (self.base, limits.increment)
        rating = options.played_rating or None
        bounds = [MAX_SIMULATIONS, *([max(go.nodes, 1)] if go.nodes is not None else [])]
        bounds += [options.simulations] if options.simulations and not go.infinite else []
        bounds += [1] if go.mate is not None and go.mate < 1 else []  # no mate is that short
        return Request(
            board=board,
            conditions=Conditions(rating=rating, clock=limits.left, base=base, increment=increment),
            limits=limits,
            allowed=allowed if len(allowed) < len(legal) else (),
            simulations=min(bounds),
            leaves=1 if len(bounds) > 1 else 0,  # several leaves per batch weaken play
            lines=max(options.multipv, 1),
        )

    def _report(self, play: Play) -> None:
        """Write `info` lines with a depth that never decreases during a search."""
        self._depth = max(self._depth, len(play.moves[0].variation))
        options, seconds = self.options, self._clock() - self.start_time
        for line in format_play(play, self._depth, seconds, options.multipv, options.show_wdl):
            self._write_line(line)


def format_score(value: float, plies: int) -> str:
    """Format a score as `mate` in moves if `plies` to a proven mate is not 0, or else as `cp`.

    Negative plies mean that the mover is mated.
    """
    if plies:
        return f"mate {(plies + 1) // 2 if plies > 0 else -(-plies // 2)}"
    return f"cp {to_centipawns(value)}"


def format_wdl(value: float, draw: float) -> str:
    """Format win, draw and loss in permille, which sum to 1000; `value` is win minus loss."""
    win, drawn, _ = win_draw_loss(value, draw)
    wins = round(1000 * win)
    draws = min(round(1000 * drawn), 1000 - wins)
    return f"{wins} {draws} {1000 - wins - draws}"


def format_play(play: Play, depth: int, seconds: float, lines: int, show_wdl: bool) -> list[str]:
    """Format an `info` line for each of the best `lines` moves, all with the same `depth`.

    Some programs show several lines only if their depths are equal and never decrease. A tree has
    no single depth, so the caller passes the length of the longest principal variation so far.
    """
    nodes = max(play.simulations, 1)
    cost = f"nodes {nodes} nps {round(nodes / max(seconds, 1e-3))} time {round(seconds * 1000)}"
    full = f"hashfull {min(round(1000 * play.full), 1000)}"
    info = []
    for rank, line in enumerate(play.moves[:lines], 1):
        wdl = f" wdl {format_wdl(line.value, line.draw)}" if show_wdl else ""
        pv = " ".join(move.uci() for move in line.variation)
        info.append(
            f"info depth {depth} seldepth {max(play.seldepth, depth)} multipv {rank}"
            f" score {format_score(line.value, line.mate)}{wdl} {cost} {full} pv {pv}"
        )
    return info
