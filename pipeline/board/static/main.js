// The page: tabs, board, move list, typed moves. Each of the tabs has its own module.
import { Board } from "./board.js";
import {
  $, ask, button, change, chosen, dom, game, move, networks, newest, onPosition, position, say, shown, store,
  timeControl,
} from "./page.js";
import * as asking from "./ask.js";
import * as playing from "./play.js";
import * as reviewing from "./review.js";

const modes = { play: playing, ask: asking, review: reviewing };
const COLORS = { w: "white", b: "black" };
const make = (word) => (game.mode === "play" ? playing.make(word) : move(word));
const board = new Board($("board"), $("promotion"), make);
let counted = game.moves.length; // half-moves when the last sound was made
let audio = null;
const TONES = { move: [330, 0.08], capture: [220, 0.12], check: [660, 0.16], end: [165, 0.5] }; // hertz, seconds

onPosition(() => {
  const [playable, premove] = [game.mode !== "play" || playing.isMyTurn(), board.premove];
  const own = game.mode === "play" && playing.mayPremove() ? COLORS[game.color] : "";
  const legal = playable ? position.legal : {};
  board.show({ ...position, legal, own, last: game.moves[game.at - 1], flipped: Boolean(game.flipped) });
  const moves = position.sans.map((san, index) => button(san, () => change({ at: index + 1 })));
  $("moves").replaceChildren(...moves);
  moves[game.at - 1]?.setAttribute("aria-current", "true");
  $("moves").scrollTop = (moves[game.at - 1]?.offsetTop ?? 0) - $("moves").offsetTop - 60;
  makeSound();
  showPeople();
  showScore();
  modes[game.mode].show(board);
  const planned = premove && playable && board.resolve(premove);
  if (planned && game.mode === "play") make(planned);
});

// Say whose moves the network predicts, and which ratings it reads: each speed has a scale of its own.
function showPeople() {
  const { reads_speed: readsSpeed, scale, training, people, is_one_person: isOnePerson } = chosen();
  $("training").textContent = training && `Trained on ${training}.`;
  const shares = isOnePerson ? `Probability that ${people} plays each move` : `Share of ${people} who play each move`;
  $("whose-shares").textContent = shares;
  const like = `Like ${isOnePerson ? people : "a human"}`;
  for (const option of document.querySelectorAll("[data-like]")) option.textContent = like + option.dataset.like;
  const { speed } = $("clock").querySelector(`[value="${timeControl()}"]`).dataset;
  const text = readsSpeed ? `Lichess ${speed}` : scale;
  for (const one of document.querySelectorAll(".scale")) one.textContent = text && ` (${text})`;
}

function makeSound() {
  const [san, isNew] = [position.sans.at(-1) ?? "", game.moves.length === counted + 1];
  const kind = san.includes("x") ? "capture" : "move";
  if (isNew && game.sounds) playTone(...TONES[position.ending ? "end" : position.check ? "check" : kind]);
  counted = game.moves.length;
}

function playTone(pitch, seconds) {
  audio ??= new AudioContext();
  const [tone, volume, now] = [audio.createOscillator(), audio.createGain(), audio.currentTime];
  Object.assign(tone, { type: "triangle" }).frequency.value = pitch;
  volume.gain.setValueAtTime(0.2, now);
  volume.gain.exponentialRampToValueAtTime(0.001, now + seconds);
  tone.connect(volume).connect(audio.destination);
  tone.start();
  tone.stop(now + seconds);
}

// Show White's expected score beside the board: the review's, or that of a search.
async function showScore() {
  $("score-bar").hidden = !game.bar;
  if (!game.bar) return;
  const version = newest();
  const score = modes[game.mode].score?.() ?? (await ask("/api/value", shown()))?.score;
  if (score === undefined || version !== newest()) return;
  const text = `White's expected score: ${score.toFixed(2)}`;
  for (const [name, value] of Object.entries({ "aria-valuenow": score, "aria-valuetext": text, title: text })) {
    $("score-bar").setAttribute(name, value);
  }
  $("score-bar").classList.toggle("flipped", Boolean(game.flipped));
  $("score-bar").firstElementChild.style.height = `${100 * score}%`;
}

// In Play, moves on the board belong to the game; in the other tabs, they explore variations.
function select(mode) {
  if (game.mode === "play") game.played = { start: game.start, moves: game.moves, at: game.at, tags: null };
  for (const name in modes) {
    $(`tab-${name}`).setAttribute("aria-selected", String(name === mode));
    $(name).hidden = name !== mode;
  }
  document.body.dataset.mode = mode;
  showNetwork(mode);
  change({ mode, ...(mode === "play" && game.played) });
}

const goTo = (at) => change({ at: Math.min(Math.max(at, 0), game.moves.length) });
const KEYS = { ArrowLeft: () => game.at - 1, ArrowRight: () => game.at + 1 };
Object.assign(KEYS, { ArrowUp: () => 0, Home: () => 0, ArrowDown: () => Infinity, End: () => Infinity });
document.onkeydown = (event) => {
  if (event.key === "Tab") $("board").classList.remove("mouse"); // the arrow keys then move the focus on the board
  const typing = event.target.closest("input, select, textarea, dialog");
  const taken = typing || event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey;
  if (taken || !(event.key in KEYS)) return;
  event.preventDefault();
  goTo(KEYS[event.key]());
};
$("typed").onsubmit = (event) => {
  event.preventDefault();
  if (game.mode === "play" && !playing.isMyTurn()) return say("It is not your move here.", true);
  make($("typed-move").value.trim());
  $("typed-move").value = ""; // a reset of the form would clear its switches too
};
$("go-back").onclick = () => goTo(game.at - 1);
$("go-on").onclick = () => goTo(game.at + 1);
$("flip").onclick = () => change({ flipped: !game.flipped });
for (const name of ["bar", "sounds"]) {
  $(name).checked = Boolean(game[name]);
  $(name).onchange = () => {
    game[name] = $(name).checked;
    store();
    if (name === "bar") showScore();
  };
}

// Reviews keep a network of their own. It is the embedded one at first, for which the risk of a blunder is calibrated;
// Play and Ask begin with the user's newest.
const keyOfNetwork = (mode) => (mode === "review" ? "reviewNetwork" : "network");
function showNetwork(mode) {
  const kept = networks.find(({ name }) => name === game[keyOfNetwork(mode)]);
  const first = mode === "review" ? networks.find(({ embedded }) => embedded) : null;
  $("network").value = (kept ?? first ?? networks[0]).name;
}

// Set the ratings to that of the network: an imitation's is the imitated player's.
const resetRatings = () => {
  for (const name of ["rating", "asked"]) Object.assign($(name), { value: chosen().rating }).oninput();
};
const offered = await ask("/api/networks");
networks.push(...offered.networks);
$("network").replaceChildren(...networks.map(({ name, label }) => dom("option", { value: name }, label)));
$("network").onchange = () => {
  if (game.mode !== "review") resetRatings();
  change({ [keyOfNetwork(game.mode)]: chosen().name });
};
$("with-stockfish").disabled = !offered.stockfish;
for (const name in modes) {
  $(`tab-${name}`).onclick = () => select(name);
  modes[name].begin();
}
showNetwork("play");
if (game.network !== chosen().name) resetRatings();
game.network = chosen().name;
select(game.mode);
