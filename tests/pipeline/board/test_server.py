"""The server's routes: positions, moves, reviews, networks, and refused requests."""

import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import chess
import chess.pgn
import numpy as np
import pytest
from starlette.testclient import TestClient

import model
from engine.errors import UserError
from model.inference.evaluator import NetworkEvaluator
from model.inference.player import Player
from model.network.network import build
from pipeline.board.ask import People, PlayRequest, answer, ask, draw_seconds, name_speed
from pipeline.board.game import GameSoFar
from pipeline.board.networks import Networks
from pipeline.board.review import ReviewRequest, review
from pipeline.board.server import MAX_BODY_BYTES, STATIC, make_app
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.model.synthetic import TINY
from tests.pipeline.board.games import SHORT, UNSCORED

MATE_IN_ONE = "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(make_app(Networks()), base_url="http://127.0.0.1:8000") as client:
        yield client


def post(client: TestClient, name: str, **body: Any) -> Any:
    answer = client.post(f"/api/{name}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(client: TestClient, name: str, **body: Any) -> str:
    answer = client.post(f"/api/{name}", json=body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"])


def test_the_description_of_a_position_agrees_with_python_chess(client: TestClient) -> None:
    found = post(client, "state", moves=["e4", "c7c5", "nf3"], at=2)
    board = chess.Board()
    for word in ("e2e4", "c7c5"):
        board.push_uci(word)
    assert found["legal"] == {move.uci(): board.san(move) for move in board.legal_moves}
    assert {chess.parse_square(square) for square in found["pieces"]} == set(board.piece_map())
    assert found["pieces"]["c5"] == "black pawn"
    assert found["moves"] == ["e2e4", "c7c5", "g1f3"]
    assert found["sans"] == ["1. e4", "c5", "2. Nf3"]
    assert (found["turn"], found["check"], found["ending"]) == ("w", "", "")


@pytest.mark.parametrize(
    ("start", "moves", "ending"),
    [
        ("", ["f3", "e5", "g4", "Qh4"], "Black wins by checkmate, 0-1"),
        ("7k/8/6Q1/8/8/8/8/K7 b - - 0 1", [], "Draw by stalemate, 1/2-1/2"),
        ("", ["Nf3", "Nf6", "Ng1", "Ng8"] * 2, "Draw by threefold repetition, 1/2-1/2"),
        ("7k/7p/8/8/8/8/R7/K7 w - - 99 80", ["Ra3"], "Draw by the fifty-move rule, 1/2-1/2"),
        ("8/8/4k3/8/8/4K3/8/8 w - - 0 1", [], "Draw by insufficient material, 1/2-1/2"),
    ],
)
def test_a_finished_game_has_a_result_and_no_moves(
    client: TestClient, start: str, moves: list[str], ending: str
) -> None:
    found = post(client, "state", start=start, moves=moves)
    assert (found["ending"], found["legal"]) == (ending, {})
    score = post(client, "value", network="embedded", start=start, moves=moves)["score"]
    assert score == (0.0 if ending.endswith("0-1") else 0.5)


BARE = "7k/8/8/8/8/8/R7/K7 w - - 0 1"


@pytest.mark.parametrize(
    ("start", "over", "ending"),
    [
        ("", "w time", "Black wins on time, 0-1"),
        ("", "b resigns", "White wins by resignation, 1-0"),
        ("", "agreed", "Draw by agreement, 1/2-1/2"),
        (BARE, "w time", "Draw on time, because Black cannot mate, 1/2-1/2"),
        (BARE, "b time", "White wins on time, 1-0"),
    ],
)
def test_players_can_end_a_game(client: TestClient, start: str, over: str, ending: str) -> None:
    assert post(client, "state", start=start, over=over)["ending"] == ending
    text = post(client, "save", start=start, over=over)["pgn"]
    assert f'[Result "{ending.rpartition(", ")[2]}"]' in text
    if not start:
        assert post(client, "state", moves=["e4"], at=0, over=over)["ending"] == ""


def test_castling_may_be_written_as_the_king_taking_its_rook(client: TestClient) -> None:
    start = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"
    assert post(client, "state", start=start, moves=["e1h1", "e8a8"])["moves"] == ["e1g1", "e8c8"]


def test_the_network_accepts_a_draw_only_if_it_is_not_better(client: TestClient) -> None:
    late = " w - - 0 40"
    offers = {
        "7k/8/8/8/8/8/5q2/K7" + late: False,  # the network is a queen up
        "7k/8/8/8/8/8/5Q2/K7" + late: True,
        "7k/8/8/8/8/8/5Q2/K7 w - - 0 2": False,  # too early
    }
    for start, accepted in offers.items():
        found = post(client, "draw", network="embedded", start=start)
        assert found["accepted"] == accepted
        assert accepted or "move 10" in found["said"]


def test_think_times_are_those_of_people_and_leave_time_on_the_clock(client: TestClient) -> None:
    game = {"network": "embedded", "moves": ["e4"], "time_control": "180+0"}
    for clock in (180, 20, 1, 0):
        times = [post(client, "play", clock=clock, **game)["seconds"] for _ in range(5)]
        assert all(0 <= seconds <= 0.2 * clock for seconds in times)
    random = np.random.default_rng(0)
    times = [draw_seconds(180, move, 150, random) for move in (5, 25) for _ in range(500)]
    assert 0.5 < np.median(times[:500]) < np.median(times[500:]) < 8
    assert "seconds" in post(client, "play", network="embedded", moves=["e4"])


@pytest.mark.parametrize("style", ["policy", "human", "strongest"])
def test_the_network_answers_with_a_legal_move(client: TestClient, style: str) -> None:
    found = post(client, "play", network="embedded", moves=["e4"], style=style, rating=1800)
    board = chess.Board()
    board.push_san("e4")
    assert chess.Move.from_uci(found["move"]) in board.legal_moves
    assert board.san(chess.Move.from_uci(found["move"])) in found["said"]


def test_the_strongest_style_mates_and_a_finished_game_has_no_answer(client: TestClient) -> None:
    game = {"network": "embedded", "start": MATE_IN_ONE}
    assert post(client, "play", style="strongest", **game)["move"] == "a1a8"
    assert "no legal move" in refusal(client, "play", moves=["Ra8"], **game)


def test_ask_returns_the_policys_probabilities_by_rating(client: TestClient) -> None:
    found = post(client, "ask", network="embedded", moves=["e4", "e5"])
    board = chess.Board()
    for word in ("e4", "e5"):
        board.push_san(word)
    moves, policies = model.load(EMBEDDED_CHECKPOINT, device="cpu").policies(board, [1500])
    at = found["ratings"].index(1500)
    for curve in found["curves"]:
        place = moves.index(chess.Move.from_uci(curve["uci"]))
        assert curve["share"][at] == pytest.approx(policies[0, place], abs=2e-4)
    assert 0.5 < np.sum([curve["share"][at] for curve in found["curves"]]) <= 1
    assert sum(line["visits"] for line in found["lines"]) <= 64
    names = [title for title, _ in found["planes"]]
    assert len(names) == len(set(names)) == 41
    drawn = dict(found["planes"])
    # White's king stands on e1: column 4 of the lowest row
    assert drawn["own kings"] == "M4 7h1v1h-1z"
    assert drawn["move -1 to"] == "M4 3h1v1h-1z"  # e5
    assert drawn["own pawns"].count("M") == 8


def test_play_and_review_give_the_time_control_to_a_network_that_reads_it() -> None:
    row = replace(TINY, condition="ratings_speed", condition_width=4)
    player = Player(NetworkEvaluator(build(row, seed=0), device="cpu"))
    with patch.object(player, "choose", wraps=player.choose) as asked:
        for text, speed in (("180+2", "blitz"), ("", "rapid")):
            found = answer(PlayRequest(time_control=text), player)
            assert found["said"].endswith(f"of players rated 1500 in Lichess {speed} would play.")
        list(review(ReviewRequest(pgn=f'[TimeControl "600+5"]\n{SHORT}'), player))
        given = [call.kwargs["time_control"] for call in asked.call_args_list]
        assert given == ["180+2", "rapid", *["600+5"] * 7]
        with pytest.raises(UserError, match="is not a time control"):
            answer(PlayRequest(time_control="soon"), player)
    blitz, rapid = (
        ask(GameSoFar(time_control=text), player)["curves"] for text in ("180+2", "600+0")
    )
    shares = {one["uci"]: one["share"] for one in blitz}
    _, policies = player.policies("startpos", [800], time_control="180+2")
    assert max(share[0] for share in shares.values()) == pytest.approx(policies.max(), abs=1e-4)
    assert blitz != rapid
    # the page says which scale it is
    options = re.findall(
        r'value="([0-9+]*)" data-speed="(\w+)"', (STATIC / "index.html").read_text()
    )
    assert len(options) == 5
    assert all(name_speed(clock) == speed for clock, speed in options)


def test_a_saved_game_is_read_again_by_python_chess(client: TestClient) -> None:
    tags = {"White": 'Y"ou]\n', "Black": "embedded", "Result": "1-0", "Evil": "x"}
    tags |= {"WhiteElo": "1500", "Style": "policy"}
    text = post(client, "save", moves=["f3", "e5", "g4", "Qh4"], tags=tags)["pgn"]
    game = chess.pgn.read_game(io.StringIO(text))
    assert game is not None
    assert not game.errors
    assert [move.uci() for move in game.mainline_moves()] == ["f2f3", "e7e5", "g2g4", "d8h4"]
    assert (game.headers["White"], game.headers["Result"]) == ("You]", "0-1")
    assert (game.headers["WhiteElo"], game.headers["Style"]) == ("1500", "policy")
    assert "Evil" not in game.headers


def test_a_review_is_a_stream_of_lines_and_names_stay_text(client: TestClient) -> None:
    answer = client.post("/api/review", json={"pgn": SHORT, "network": "embedded"})
    first, *rows, last = map(json.loads, answer.text.splitlines())
    assert first["header"]["title"].startswith("A <img src=x onerror=alert(1)> - <script>")
    assert first["header"]["source"] == "game"
    assert len(rows) == 7
    assert set(last["summary"]["moments"]) < set(range(7))


GAMES = {
    "": "no game",
    "[Event": "1 to 2000",
    "1. e4 e5 2. Ke3": "cannot be read",
    '[FEN "9/8/8/8/8/8/8/8 w - - 0 1"]\n\n1. e4': "cannot be read",
    '[Variant "Atomic"]\n\n1. e4': "standard chess",
    "1. e4 -- 2. d4": "null move",
    "\x00\x00\x00": "1 to 2000",
}


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        *(("review", {"network": "embedded", "pgn": pgn}, words) for pgn, words in GAMES.items()),
        ("state", {"moves": ["e5"]}, "'e5' is not a legal move"),
        ("state", {"moves": ["e4e4e4e4e4e4"]}, "at most 10 characters"),
        ("state", {"start": "8/8/8/8/8/8/8/8 w - - 0 1"}, "king"),
        ("state", {"moves": [], "more": 1}, "more"),
        ("play", {"network": "../../etc", "moves": []}, "no network"),
        ("play", {"network": "embedded", "rating": 10**9}, "rating"),
        (
            "review",
            {"network": "embedded", "pgn": UNSCORED, "source": "game"},
            "no evaluations",
        ),
    ],
)
def test_a_bad_request_is_refused_in_one_line(
    client: TestClient, name: str, body: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = refusal(client, name, **body)
    assert words in text
    assert "\n" not in text
    assert not [record for record in caplog.records if record.name.startswith("chess")]


def test_other_pages_are_refused(client: TestClient) -> None:
    """tests/pipeline/defs/test_guard.py has a table of headers."""
    kinds = {"Origin": "http://evil.test"}, {"Content-Type": "text/plain"}, {}
    statuses = [client.post("/api/state", content="{}", headers=one).status_code for one in kinds]
    assert statuses == [403, 415, 415]


def test_bodies_are_limited_with_and_without_a_content_length(client: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(2 * MAX_BODY_BYTES // 1024):
            yield b" " * 1024

    kind = {"Content-Type": "application/json"}
    for content in (b" " * (MAX_BODY_BYTES + 1), chunks()):
        assert client.post("/api/state", content=content, headers=kind).status_code == 413


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for path in STATIC.glob("*.[cj]s*"):
        text = client.get(f"/static/{path.name}").text
        assert "http" not in text.replace("http://www.w3.org/", "")
    assert client.get("/pieces/white%20knight.svg").headers["content-type"] == "image/svg+xml"
    for path in ("/pieces/x.svg", "/static/../server.py", "/static/%2e%2e/server.py"):
        assert client.get(path).status_code == 404


def write_card(folder: Path, seconds_ago: int = 0, **fields: Any) -> None:
    """Write a checkpoint's card, or a malformed one without fields."""
    folder.mkdir(parents=True)
    card = {"finished": True, "preset": {"condition": "ratings"}, "metrics": {}, "positions": 7}
    path = folder / "checkpoint.json"
    path.write_text(json.dumps(card | fields) if fields else "[")
    written = path.stat().st_mtime - seconds_ago
    os.utime(path, (written, written))


def test_networks_are_named_by_what_they_are_and_the_newest_is_first(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "datasets" / "checkpoints"
    person = {"names": ["me"], "rating": 1850, "games": 1200}
    write_card(folder / "me", 10, data={"player": person})
    write_card(folder / "unrated", 20, data={"player": person | {"rating": 0}})
    data = {"datasets": [{"name": "2013-01"}], "start": {"data": {}, "positions": 9}}
    for name, seconds in (("trained", 0), ("reported", 30), ("retrained", 40)):
        write_card(folder / name, seconds, data=data, metrics={"validation_top1": 0.493})
    write_card(folder / "running", finished=False, data={})
    write_card(folder / "broken")
    for name, seconds in (("reported", 0), ("retrained", 50)):
        path = tmp_path / "datasets" / "reports" / name / "2013-01" / "report.json"
        path.parent.mkdir(parents=True)
        rows = [{"name": "the embedded network", "top1": 0.6}, {"name": name, "top1": 0.512}]
        path.write_text(json.dumps({"reports": rows}))
        os.utime(path, (path.stat().st_mtime - seconds,) * 2)
    with TestClient(make_app(Networks()), base_url="http://127.0.0.1:8000") as client:
        listed = client.get("/api/networks").json()["networks"]
    found = {one["name"]: one for one in listed}
    assert list(found) == ["trained", "me", "unrated", "reported", "retrained", "embedded"]
    today = datetime.now(UTC).date().isoformat()
    assert found["embedded"]["label"].startswith("embedded, 51.8 % in validation, rapid 2014-2022")
    assert found["me"]["label"] == f"imitation of me, 1,850, {today}"
    assert found["trained"]["label"] == f"trained, 49.3 % in validation, 2013-01, {today}"
    assert found["reported"]["label"] == f"reported, 51.2 % in its report, 2013-01, {today}"
    assert "49.3 % in validation" in found["retrained"]["label"]  # its report is an older network's
    assert found["trained"]["training"].startswith("7 positions of 2013-01, and before on 9")
    assert found["me"]["training"] == "the moves of me in 1,200 games"
    assert [found[name]["rating"] for name in ("me", "unrated")] == [1850, 1500]
    assert [found[name]["scale"] for name in ("embedded", "me")] == ["Lichess rapid", ""]
    people = {name: (one["people"], one["is_one_person"]) for name, one in found.items()}
    assert people["me"] == ("me", True)
    assert people["embedded"] == ("players", False)
    assert people["trained"] == ("the players in its games", False)


def test_an_imitated_person_is_named_instead_of_players() -> None:
    player, person = (
        model.load(EMBEDDED_CHECKPOINT, device="cpu"),
        People("Ada", is_one_person=True),
    )
    said = answer(PlayRequest(moves=["e4"]), player, person)["said"]
    assert re.fullmatch(r"It played .*, which Ada would play with a probability of \d+%\.", said)
    header, *rows, last = review(ReviewRequest(pgn=SHORT), player, people=person)
    assert (header["header"]["people"], header["header"]["is_one_person"]) == ("Ada", True)
    assert all("that Ada would play" in row["row"]["text"] for row in rows)
    assert "Ada" in last["summary"]["table"][0]


def test_a_saved_game_is_reviewed_without_assumptions(client: TestClient) -> None:
    tags = {"WhiteElo": "1700", "WhiteType": "human", "BlackType": "program"}
    pgn = post(client, "save", moves=["e4", "e5"], over="b resigns", tags=tags)["pgn"]
    lines = client.post("/api/review", json={"pgn": pgn, "source": "search", "network": "embedded"})
    header = json.loads(lines.text.splitlines()[0])["header"]
    assert header["ratings"] == {"white": 1700, "black": 1700}
    assert "black is a program" in header["about"]
    assert "assumed" not in header["about"]
