"""A loopback server that speaks as much of Lichess's bot API as one game needs; python-chess keeps
the rules.

It challenges the bot that listens, plays random moves (captures and checks first) against it, and
keeps both clocks.
"""

import json
import queue
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import chess
import chess.pgn

BOT, OPPONENT, GAME, TOKEN = "FianchettoBot", "Loopback", "loopback", "loopback-token"
VARIANT = {"key": "standard", "name": "Standard", "short": "Std"}


class Lichess:
    """One game: what has been played, who has how much time, and what the bot has asked for."""

    def __init__(self, base: int, increment: int, seed: int, most_moves: int) -> None:
        self.most_moves = most_moves
        self.base, self.increment, self.random = 1000 * base, 1000 * increment, random.Random(seed)
        self.board, self.clocks = (
            chess.Board(),
            {chess.WHITE: 1000 * base, chess.BLACK: 1000 * base},
        )
        self.status, self.winner, self.refused = "started", "", 0
        self.accepted, self.over = threading.Event(), threading.Event()
        self.states: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.lock, self.turned = threading.Lock(), time.monotonic()
        self.chat: list[str] = []

    def state(self) -> dict[str, Any]:
        """Give the game's state as Lichess writes it."""
        clocks = {
            f"{side}time": int(self.clocks[color])
            for side, color in (("w", chess.WHITE), ("b", chess.BLACK))
        }
        moves = " ".join(move.uci() for move in self.board.move_stack)
        told = {
            "type": "gameState",
            "moves": moves,
            "winc": self.increment,
            "binc": self.increment,
            **clocks,
        }
        return told | {"status": self.status} | ({"winner": self.winner} if self.winner else {})

    def full(self) -> dict[str, Any]:
        """Give the first line of a game's stream: the bot has White."""
        clock = {"initial": self.base, "increment": self.increment}
        said = {
            "type": "gameFull",
            "id": GAME,
            "rated": False,
            "variant": VARIANT,
            "speed": "blitz",
            "clock": clock,
        }
        said |= {
            "perf": {"name": "Blitz"},
            "createdAt": 1_700_000_000_000,
            "initialFen": "startpos",
        }
        white = {"id": BOT.lower(), "name": BOT, "title": "BOT", "rating": 1500}
        black = {"id": OPPONENT.lower(), "name": OPPONENT, "title": None, "rating": 1200}
        return said | {"white": white, "black": black, "state": self.state()}

    def challenge(self) -> dict[str, Any]:
        """Give the event that begins it all."""
        clock = {
            "type": "clock",
            "limit": self.base // 1000,
            "increment": self.increment // 1000,
            "show": "3+2",
        }
        said = {
            "id": GAME,
            "rated": False,
            "variant": VARIANT,
            "speed": "blitz",
            "perf": {"name": "Blitz"},
        }
        said |= {"color": "black", "finalColor": "black", "timeControl": clock, "status": "created"}
        challenger = {"id": OPPONENT.lower(), "name": OPPONENT, "title": None, "rating": 1200}
        return {
            "type": "challenge",
            "challenge": said | {"challenger": challenger, "destUser": {"name": BOT}},
        }

    def move(self, uci: str) -> bool:
        """Play the bot's move and the answer to it; return whether the bot's was legal and in
        time."""
        with self.lock:
            if self.status != "started" or self.board.turn != chess.WHITE:
                return False
            if chess.Move.from_uci(uci) not in self.board.legal_moves:
                self.refused += 1
                return False
            self._push(chess.Move.from_uci(uci), 1000 * (time.monotonic() - self.turned))
            if self.status == "started":
                moves = sorted(self.board.legal_moves, key=chess.Move.uci)
                lively = [
                    move
                    for move in moves
                    if self.board.is_capture(move) or self.board.gives_check(move)
                ]
                self._push(self.random.choice(lively or moves), 10)
            self.turned = time.monotonic()
            return True

    def end(self, status: str, winner: str = "") -> None:
        """End the game."""
        self.status, self.winner = status, winner
        self.states.put(self.state())
        self.states.put(None)
        self.over.set()

    def _push(self, move: chess.Move, used: float) -> None:
        side = self.board.turn
        self.clocks[side] += (self.increment if self.board.fullmove_number > 1 else 0) - used
        if self.clocks[side] <= 0:
            return self.end("outoftime", "black" if side else "white")
        self.board.push(move)
        if self.board.fullmove_number > self.most_moves:
            return self.end("resign", "white")
        if (outcome := self.board.outcome(claim_draw=True)) is None:
            return self.states.put(self.state())
        if outcome.winner is None:
            return self.end(
                "draw" if outcome.termination is not chess.Termination.STALEMATE else "stalemate"
            )
        return self.end("mate", "white" if outcome.winner else "black")


class Handler(BaseHTTPRequestHandler):
    """The endpoints that lichess-bot uses."""

    protocol_version = "HTTP/1.1"
    game: Lichess

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer with what is asked, or with a stream of lines."""
        name = self.path.partition("?")[0]
        if name == "/api/stream/event":
            self._stream(self._events())
        elif name == f"/api/bot/game/stream/{GAME}":
            self._stream(self._states())
        elif name == f"/game/export/{GAME}":
            self._send(
                str(chess.pgn.Game.from_board(self.game.board)).encode(), "application/x-chess-pgn"
            )
        elif name == "/api/account/playing":
            going = self.game.accepted.is_set() and not self.game.over.is_set()
            row = {"gameId": GAME, "speed": "blitz", "opponent": {"username": OPPONENT}}
            self._json({"nowPlaying": [row] if going else []})
        elif name == "/api/users/status":
            self._json([{"id": BOT.lower(), "online": True}])
        elif name.startswith(("/api/account", "/api/user/")):
            self._json({"id": BOT.lower(), "username": BOT, "title": "BOT", "perfs": {}})
        else:
            self._json({"error": "not here"}, 404)

    def do_POST(self) -> None:
        """Take a move, an acceptance, a message."""
        said = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        name, game = self.path.partition("?")[0], self.game
        if name == "/api/token/test":
            self._json({TOKEN: {"userId": BOT.lower(), "scopes": "bot:play", "expires": None}})
        elif name == f"/api/challenge/{GAME}/accept":
            game.accepted.set()
            self._json({"ok": True})
        elif name.startswith(f"/api/bot/game/{GAME}/move/"):
            self._json({"ok": True}) if game.move(name.rpartition("/")[2]) else self._json(
                {"error": "illegal"}, 400
            )
        elif name.endswith(("/resign", "/abort")):
            game.end("resign", "black")
            self._json({"ok": True})
        else:
            game.chat.append(said)
            self._json({"ok": True})

    def _events(self) -> Iterator[dict[str, Any]]:
        """Give the challenge, and when it is accepted and over, the game's start and end."""
        short = {
            "id": GAME,
            "gameId": GAME,
            "opponent": {"username": OPPONENT},
            "isMyTurn": True,
            "speed": "blitz",
        }
        yield self.game.challenge()
        while not self.game.accepted.wait(1):
            yield {}
        yield {"type": "gameStart", "game": short}
        while not self.game.over.wait(1):
            yield {}
        yield {"type": "gameFinish", "game": short}
        while True:
            time.sleep(1)
            yield {}

    def _states(self) -> Iterator[dict[str, Any]]:
        """Give the game from its beginning, then each change."""
        self.game.turned = time.monotonic()
        yield self.game.full()
        while True:
            try:
                state = self.game.states.get(timeout=1)
            except queue.Empty:
                state = {}
            if state is None:
                return
            yield state

    def _stream(self, lines: Iterator[dict[str, Any]]) -> None:
        """Send objects as lines, and an empty line where there is nothing new."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in lines:
                data = (json.dumps(line) if line else "").encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _json(self, value: object, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def lichess(
    base: int = 60, increment: int = 1, seed: int = 0, most_moves: int = 1000
) -> Iterator[tuple[str, Lichess]]:
    """Serve one game, in which the opponent resigns after `most_moves`, and give the server's
    address and the game."""
    game = Lichess(base, increment, seed, most_moves)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"game": game}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", game
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
