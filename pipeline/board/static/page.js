// Shared by all modules: elements, requests, and the game on the board.
export const $ = (id) => document.getElementById(id);
const DRAWN = ["svg", "path", "circle", "text"];
// Create an element. Text is added only as text nodes, so that names in a PGN cannot become HTML.
export function dom(tag, attributes = {}, ...children) {
  const space = DRAWN.includes(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const button = (text, onclick) => dom("button", { onclick }, text);
export const percent = (share) => (share > 0 && share < 0.005 ? "<1 %" : `${Math.round(100 * share)} %`);

// Make a table that scrolls sideways in a narrow page; of class `left` for one whose words are read, not compared.
export function table(heads, rows, kind = "") {
  const line = (cells, tag) => dom("tr", {}, ...cells.map((cell) => dom(tag, {}, ...[cell].flat())));
  const body = dom("tbody", {}, ...rows.map((cells) => line(cells, "td")));
  return dom("div", { class: `wide ${kind}` }, dom("table", {}, dom("thead", {}, line(heads, "th")), body));
}

// Draw curves [{values, kind, name}] on a y-axis from 0 to `top`, with `names` on the x-axis and dots
// [[index, share, kind]].
export function chart(title, curves, top, names, dots = []) {
  const count = curves[0].values.length;
  const x = (index) => 40 + (index / (count - 1)) * 470;
  const y = (share) => 10 + (1 - share / top) * 165;
  const write = (x, y, anchor, text) => dom("text", { x, y, "text-anchor": anchor }, text);
  const grid = [0, top / 2, top].flatMap((share) => [
    dom("path", { d: `M40 ${y(share)}H510`, class: "axis" }), write(36, y(share) + 4, "end", percent(share)),
  ]);
  const lines = curves.flatMap(({ values, kind, name = "" }, place) => {
    const points = values.map((share, index) => `${x(index)} ${y(share)}`);
    const end = y(values.at(-1));
    const hidden = curves.slice(0, place).some((other) => Math.abs(y(other.values.at(-1)) - end) < 11);
    const line = dom("path", { d: `M${points.join("L")}`, class: `curve ${kind}` });
    return [line, write(514, end + 4, "start", hidden ? "" : name)];
  });
  const below = names.map((name, index) => write(x(index), 196, "middle", name));
  const mark = ([index, share, kind]) => dom("circle", { cx: x(index), cy: y(share), r: 4.5, class: kind });
  const attributes = { viewBox: "0 0 560 200", role: "img", "aria-label": title };
  return dom("svg", attributes, ...grid, ...lines, ...below, ...dots.map(mark));
}

// Send a request; retry every second while the server is unreachable. Throws the server's error text.
export async function request(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify(body), signal };
  for (;;) {
    const response = await fetch(path, body && options).catch(() => null);
    if (signal?.aborted) return null;
    $("offline").hidden = Boolean(response);
    if (response?.ok) return response;
    if (response) throw new Error((await response.json()).error);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

// Read a stream of JSON objects, one per line, until it ends or `signal` stops it. Throws the server's error text.
export async function stream(path, body, signal, take) {
  const response = await request(path, body, signal);
  const reader = response?.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (let part = await reader?.read(); part && !part.done && !signal.aborted; part = await reader.read()) {
      const lines = (text + part.value).split("\n");
      text = lines.pop();
      for (const line of lines) {
        const found = JSON.parse(line);
        if (found.error) throw new Error(found.error);
        take(found);
      }
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

// Return the response, or show the server's error and return null.
export async function ask(path, body) {
  try {
    return await (await request(path, body)).json();
  } catch (error) {
    return say(error.message, true);
  }
}

// Ask a question; return whether the answer is yes.
export function confirm(question) {
  const dialog = $("sure");
  $("question").textContent = question;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => (dialog.onclose = () => resolve(dialog.returnValue === "yes")));
}

export function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", wrong);
  return null;
}

// The game: start position ("" for the standard one), all moves, the number of moves on the board, and how the players
// ended it. Each browser tab has its own.
const saved = JSON.parse(sessionStorage.getItem("game") ?? "{}");
export const game = { start: "", moves: [], at: 0, over: "", mode: "play", ...saved };
export const store = () => sessionStorage.setItem("game", JSON.stringify(game));
export const networks = []; // the server's description of each
export const chosen = () => networks.find(({ name }) => name === $("network").value) ?? {};
export const timeControl = () => game.clocks?.control ?? ""; // of the game in Play
export const shown = () => ({
  start: game.start, moves: game.moves, at: game.at, network: $("network").value, time_control: timeControl(),
});
export const toPgn = async (tags, over) =>
  (await ask("/api/save", { start: game.start, moves: game.moves, tags, over }))?.pgn;
export const position = {}; // the server's description of the position on the board
const state = { version: 0 };
export const newest = () => state.version; // responses for an older version are dropped
export const onPosition = (listener) => (state.listener = listener);

// Change the game, show the position and return true. If the server rejects the change, do nothing.
export async function change(changes) {
  const version = ++state.version;
  const { start, moves, at, over, mode } = { ...game, ...changes };
  const found = await ask("/api/state", { start, moves, at, over: mode === "play" ? over : "" });
  if (!found || version !== state.version) return;
  Object.assign(position, found);
  Object.assign(game, changes, { moves: found.moves });
  store();
  state.listener();
  return true;
}
export const move = (word) => change({ moves: [...game.moves.slice(0, game.at), word], at: game.at + 1 });
