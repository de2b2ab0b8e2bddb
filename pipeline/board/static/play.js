// Play tab: the network's moves, rating, style, clocks, draws, resigning, taking back and saving.
import {
  $, ask, change, chosen, confirm, game, move, networks, newest, position, say, shown, store, timeControl, toPgn,
} from "./page.js";

const SETTINGS = ["style", "rating", "color", "clock", "own-rating"];
const opposite = (side) => (side === "w" ? "b" : "w");
const isAtEnd = () => game.at === game.moves.length;
const turnNow = () => ((game.moves.length - game.at) % 2 ? opposite(position.turn) : position.turn);
const isOver = () => Boolean(game.over || (isAtEnd() && position.ending));
const isRunning = () => !isOver() && game.moves.length > 1;
const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
export const isMyTurn = () => !isOver() && isAtEnd() && position.turn === game.color;
export const mayPremove = () => !isOver() && isAtEnd() && position.turn !== game.color;
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
  $("new").onclick = () => askAndStart("");
  $("take-back").onclick = takeBack;
  $("resign").onclick = resign;
  $("offer-draw").onclick = offerDraw;
  $("save").onclick = save;
  $("from-fen").onsubmit = (event) => event.preventDefault() ?? askAndStart($("fen").value.trim());
  setInterval(tick, 200);
}

function readSettings() {
  for (const name of SETTINGS) game[name] = $(name).value;
  showRating();
  store();
}

function showRating() {
  $("rating-shown").textContent = game.rating;
  $("rating-label").hidden = game.style === "strongest" || !chosen().reads_ratings;
}

async function askAndStart(start) {
  if (!isRunning() || (await confirm("A game is running. Abandon it and start a new one?"))) startGame(start);
}

function startGame(start) {
  const [seconds, more] = game.clock.split("+").map(Number);
  const clocks = seconds ? { w: seconds, b: seconds, more, control: game.clock } : null;
  change({ start, moves: [], at: 0, over: "", said: "", tags: null, clocks, flipped: game.color === "b" });
}

// Make a move for the side to move, the user or the network. A rejected move adds no increment.
export async function make(word) {
  const side = position.turn;
  if ((await move(word)) && game.clocks) game.clocks[side] += game.clocks.more;
}

// Called after each change of the position: show whose turn it is, and let the network move.
export function show() {
  showClocks();
  showRating();
  for (const name of ["resign", "offer-draw"]) $(name).disabled = !isRunning();
  if (isAtEnd() && isOver()) say(`Game over: ${position.ending}.`);
  else if (!isAtEnd()) say("This is an earlier position of the game: the arrow keys go through it.");
  else if (isMyTurn()) say(`${game.said || ""} Your move${position.check ? ": check" : ""}.`);
  else answer();
}

async function answer() {
  const [version, begun] = [newest(), performance.now()];
  say("The network is thinking…");
  const clock = game.clocks ? Math.floor(game.clocks[position.turn]) : null;
  const settings = { style: game.style, rating: Number(game.rating), clock };
  const found = await ask("/api/play", { ...shown(), ...settings });
  if (found?.seconds) await wait(found.seconds - (performance.now() - begun) / 1000);
  if (!found || version !== newest() || isOver()) return;
  game.said = found.said;
  make(found.move);
}

// Go back to the last position with the user to move.
function takeBack() {
  const at = game.moves.length - (turnNow() === game.color ? 2 : 1);
  if (at < 0) return say("There is no move to take back.");
  change({ moves: game.moves.slice(0, at), at, over: "", said: "" });
}

const end = (over) => change({ at: game.moves.length, over });
const resign = async () => (await confirm("Resign this game?")) && isRunning() && end(`${game.color} resigns`);

async function offerDraw() {
  if (!isMyTurn()) return say("Offer a draw when it is your move.");
  const version = newest();
  const found = await ask("/api/draw", shown());
  if (!found || version !== newest()) return;
  if (found.accepted) end("agreed");
  else say(`${found.said} Your move.`);
}

// Return the PGN tags of the game in Play.
export function describeGame() {
  const network = networks.find(({ name }) => name === game.network) ?? chosen();
  const style = $("style").selectedOptions[0].textContent;
  const [own, other] = game.color === "w" ? ["White", "Black"] : ["Black", "White"];
  const rated = game.style !== "strongest" && network.reads_ratings;
  const rating = rated ? game.rating : "";
  return {
    Event: "Game against a network, Fianchetto", Site: "this computer",
    Date: new Date().toISOString().slice(0, 10).replaceAll("-", "."),
    [own]: "You", [other]: network.label, [`${other}Type`]: "program", [`${own}Type`]: "human",
    [`${own}Elo`]: game["own-rating"] || rating, [`${other}Elo`]: rating,
    TimeControl: timeControl() || "-", Style: style,
  };
}

async function save() {
  const pgn = await toPgn(describeGame(), game.over);
  if (!pgn) return;
  const href = URL.createObjectURL(new Blob([pgn], { type: "application/x-chess-pgn" }));
  const download = `fianchetto-${new Date().toISOString().slice(0, 10)}.pgn`;
  Object.assign(document.createElement("a"), { href, download }).click();
}

// Count down the clock of the side to move, starting after the first move.
function tick() {
  const passed = (performance.now() - counted) / 1000;
  counted = performance.now();
  if (!game.clocks || game.mode !== "play" || isOver() || !game.moves.length) return;
  const side = turnNow();
  game.clocks[side] = Math.max(game.clocks[side] - passed, 0);
  // set first, so that no later tick repeats the request while the server is unreachable
  game.over = game.clocks[side] ? "" : `${side} time`;
  if (game.over) end(game.over);
  store();
  showClocks();
}

function showClocks() {
  for (const [id, side] of [["clock-top", game.flipped ? "w" : "b"], ["clock-bottom", game.flipped ? "b" : "w"]]) {
    const seconds = Math.ceil(game.clocks?.[side] ?? 0);
    $(id).hidden = !game.clocks || game.mode !== "play";
    $(id).textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    $(id).classList.toggle("running", turnNow() === side && !isOver());
  }
}
