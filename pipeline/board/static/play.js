// Play tab: the network's moves, rating, style, clocks, taking back and saving.
import { $, ask, change, game, move, newest, position, say, shown, store, toPgn } from "./page.js";

const SETTINGS = ["style", "rating", "color", "clock"];
const isOver = () => Boolean(position.ending || game.flag);
export const isMyTurn = () => !isOver() && position.turn === game.color;
let counted = performance.now(); // when the clocks were last counted down
export function begin() {
  for (const name of SETTINGS) {
    $(name).value = game[name] ?? $(name).value;
    $(name).oninput = () => {
      readSettings();
      if (name === "color") change({ flipped: game.color === "b" });
      if (name === "clock" && !game.moves.length) startGame(game.start);
    };
  }
  readSettings();
  $("new").onclick = () => startGame("");
  $("take-back").onclick = takeBack;
  $("save").onclick = save;
  $("from-fen").onsubmit = (event) => event.preventDefault() ?? startGame($("fen").value.trim());
  setInterval(tick, 200);
}

function readSettings() {
  for (const name of SETTINGS) game[name] = $(name).value;
  $("rating-shown").textContent = game.rating;
  $("rating-label").hidden = game.style === "strongest";
  store();
}

function startGame(start) {
  const [seconds, more] = game.clock.split("+").map(Number);
  const clocks = seconds ? { w: seconds, b: seconds, more, control: game.clock } : null;
  change({ start, moves: [], at: 0, flag: "", said: "", clocks, flipped: game.color === "b" });
}

// Make a move for the side to move, the user or the network. A rejected move adds no increment.
export async function make(word) {
  const side = position.turn;
  if ((await move(word)) && game.clocks) game.clocks[side] += game.clocks.more;
}

// Called after each change of the position: show whose turn it is, and let the network move.
export function show() {
  showClocks();
  if (position.ending) say(`Game over: ${position.ending}.`);
  else if (game.flag) say(`Game over: ${game.flag === game.color ? "you" : "the network"} ran out of time.`);
  else if (isMyTurn()) say(`${(game.at === game.moves.length && game.said) || ""} Your move${position.check ? ": check" : ""}.`);
  else if (game.at < game.moves.length) say("This is an earlier position of the game.");
  else answer();
}

async function answer() {
  const mine = newest();
  say("The network is thinking…");
  const clock = game.clocks ? Math.round(game.clocks[position.turn]) : null;
  const time_control = game.clocks?.control ?? "";
  const found = await ask("/api/play", { ...shown(), style: game.style, rating: Number(game.rating), clock, time_control });
  if (!found || mine !== newest() || game.flag) return;
  game.said = found.said;
  make(found.move);
}

// Go back to the last position with the user to move.
function takeBack() {
  const at = game.at - (position.turn === game.color ? 2 : 1);
  if (at < 0) return say("There is no move to take back.");
  change({ moves: game.moves.slice(0, at), at, flag: "", said: "" });
}

async function save() {
  const [White, Black] = game.color === "w" ? ["You", $("network").value] : [$("network").value, "You"];
  const tags = { White, Black, Result: { w: "0-1", b: "1-0" }[game.flag] ?? "" };
  const pgn = await toPgn(tags);
  if (!pgn) return;
  const href = URL.createObjectURL(new Blob([pgn], { type: "application/x-chess-pgn" }));
  Object.assign(document.createElement("a"), { href, download: "game.pgn" }).click();
}

// Count down the clock of the side to move, starting after the first move.
function tick() {
  const passed = (performance.now() - counted) / 1000;
  counted = performance.now();
  if (!game.clocks || game.mode !== "play" || isOver() || !game.at) return;
  game.clocks[position.turn] = Math.max(game.clocks[position.turn] - passed, 0);
  game.flag = game.clocks[position.turn] ? "" : position.turn; // set first, so that no later tick repeats the request while the server is unreachable
  if (game.flag) change({});
  store();
  showClocks();
}

function showClocks() {
  for (const [id, side] of [["clock-top", game.flipped ? "w" : "b"], ["clock-bottom", game.flipped ? "b" : "w"]]) {
    const seconds = Math.ceil(game.clocks?.[side] ?? 0);
    $(id).hidden = !game.clocks || game.mode !== "play";
    $(id).textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    $(id).classList.toggle("running", position.turn === side && !isOver());
  }
}
