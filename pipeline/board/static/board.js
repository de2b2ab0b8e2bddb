// The board: shows a position and reports moves made by mouse, touch or keyboard. The legal moves are passed in.
// While it is the other side's turn, a move of `own` pieces is kept as `premove`.
import { dom } from "./page.js";

const FILES = "abcdefgh";
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
const squareOf = (event) => event.target.closest("[data-square]")?.dataset.square;

export class Board {
  constructor(element, dialog, onMove) {
    Object.assign(this, { element, dialog, onMove, focused: "e2" });
    element.onkeydown = (event) => this.onKey(event);
    element.onclick = (event) => this.choose(squareOf(event), true);
    element.oncontextmenu = (event) => event.preventDefault() ?? this.cancelPremove();
    element.ondragstart = (event) => (this.picked = squareOf(event)); // do not render: it must stay in the page
    element.ondragover = (event) => event.preventDefault();
    element.ondrop = (event) => {
      event.preventDefault();
      this.dropped = squareOf(event);
      this.choose(this.dropped, true);
    };
  }

  // Show a position: pieces, legal moves, last move, the square of a king in check, whether Black is at the bottom,
  // and the color whose moves may be made before its turn.
  show({ pieces, legal, last = "", check, flipped, own = "" }) {
    const before = this.pieces ?? {};
    Object.assign(this, { pieces, legal, last, check, flipped, own, premove: "" });
    this.draw([]);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.slide(before);
    this.dropped = "";
  }

  // Let the pieces that moved slide from the squares they left.
  slide(before) {
    const changed = (all, squares) => Object.keys(all).filter((name) => all[name] !== squares[name]);
    const come = changed(this.pieces, before);
    if (come.length > 2) return; // more than a move: another game
    for (const name of come.filter((one) => one !== this.dropped)) {
      const left = changed(before, this.pieces).find((from) => before[from] === this.pieces[name]);
      if (!left) continue;
      const image = this.element.querySelector(`[data-square=${name}] img`);
      const [[x, y], [toX, toY]] = [this.middle(left), this.middle(name)];
      image.animate([{ transform: `translate(${x - toX}00%, ${y - toY}00%)` }, { transform: "none" }], 150);
    }
  }

  cancelPremove() {
    Object.assign(this, { premove: "", picked: null });
    this.render();
  }

  // Return the legal move that a premove names, if there is one; a pawn becomes a queen.
  resolve(premove) {
    const moves = this.movesFrom(premove.slice(0, 2)).filter((move) => this.leadsTo(move, premove.slice(2)));
    return moves.find((move) => move.length < 5 || move[4] === "q");
  }

  // Draw the position with arrows: [{uci, width (0 to 1), kind}].
  draw(arrows) {
    Object.assign(this, { arrows, picked: null });
    this.render();
  }

  render() {
    const focus = this.element.contains(document.activeElement);
    const [ranks, files] = [[8, 7, 6, 5, 4, 3, 2, 1], [...FILES]];
    if (this.flipped) [ranks, files].forEach((list) => list.reverse());
    const rows = ranks.map((rank) => dom("div", { role: "row" }, ...files.map((file) => this.makeSquare(file + rank))));
    const arrows = this.arrows.map((arrow) => this.makeArrow(arrow));
    this.element.replaceChildren(...rows, dom("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, ...arrows));
    if (focus) this.element.querySelector("[tabindex='0']").focus();
  }

  makeSquare(name) {
    const piece = this.pieces[name];
    const marks = {
      dark: (FILES.indexOf(name[0]) + Number(name[1])) % 2, last: this.last.slice(0, 4).match(/../g)?.includes(name),
      check: name === this.check, picked: name === this.picked, premove: this.premove.match(/../g)?.includes(name),
      target: this.movesFrom(this.picked).some((move) => this.leadsTo(move, name)),
    };
    const on = Object.keys(marks).filter((mark) => marks[mark]);
    const label = [name, piece ?? "empty", ...on.filter((mark) => mark !== "dark")];
    const attributes = { role: "gridcell", "data-square": name, class: on.join(" "), "aria-label": label.join(", ") };
    const square = dom("div", attributes);
    square.tabIndex = name === this.focused ? 0 : -1;
    Object.assign(square.dataset, { file: name[0], rank: name[1] });
    if (piece) square.append(dom("img", { src: `/pieces/${piece}.svg`, alt: "", draggable: this.canPick(name) }));
    return square;
  }

  makeArrow({ uci, width, kind }) {
    const [[x, y], [toX, toY]] = [uci.slice(0, 2), uci.slice(2, 4)].map((name) => this.middle(name));
    const [half, length] = [0.04 + 0.14 * width, Math.hypot(toX - x, toY - y) - 0.1];
    const turned = (Math.atan2(toY - y, toX - x) * 180) / Math.PI;
    const d = `M.2 ${-half}H${length - 0.35}v-.16L${length} 0L${length - 0.35} ${half + 0.16}v-.16H.2Z`;
    return dom("path", { d, transform: `translate(${x} ${y}) rotate(${turned})`, class: kind });
  }

  movesFrom(square) {
    return square ? Object.keys(this.legal).filter((move) => move.startsWith(square)) : [];
  }

  // Return the middle of a square on the screen, in squares from the upper left corner.
  middle([file, rank]) {
    const [column, row] = [FILES.indexOf(file) + 0.5, 8.5 - rank];
    return this.flipped ? [8 - column, 8 - row] : [column, row];
  }

  // Return whether a move ends on a square. Castling may also be made by moving the king onto the rook.
  leadsTo(move, name) {
    const isWide = Math.abs(move.charCodeAt(0) - move.charCodeAt(2)) > 1;
    const castles = isWide && this.pieces[move.slice(0, 2)]?.endsWith("king");
    return name === move.slice(2, 4) || (castles && name === (move[2] === "g" ? "h" : "a") + move[3]);
  }

  canPick(name) {
    return this.movesFrom(name).length > 0 || Boolean(this.own && this.pieces[name]?.startsWith(this.own));
  }

  // Pick up a piece, or drop the one that is picked up.
  async choose(name, byMouse) {
    const moves = this.movesFrom(this.picked).filter((move) => this.leadsTo(move, name));
    this.element.classList.toggle("mouse", byMouse);
    this.focused = name;
    this.premove = this.own && this.picked && name !== this.picked ? this.picked + name : "";
    const picks = !moves.length && !this.premove && name !== this.picked && this.canPick(name);
    this.picked = picks ? name : null;
    this.render();
    const move = moves.length > 1 ? await this.askPromotion(moves) : moves[0];
    if (move) this.onMove(move);
  }

  askPromotion(moves) {
    const chosen = () => moves.find((move) => move[4] === this.dialog.returnValue);
    this.dialog.returnValue = "";
    this.dialog.showModal();
    return new Promise((resolve) => (this.dialog.onclose = () => resolve(chosen())));
  }

  // Move the focus, or choose its square. After a click, the arrow keys go through the game instead (main.js).
  onKey(event) {
    if (event.key === "Escape") this.cancelPremove();
    else if (event.key in STEPS && this.element.classList.contains("mouse")) return;
    else if (event.key in STEPS) {
      const [right, up] = STEPS[event.key].map((by) => (this.flipped ? -by : by));
      const [file, rank] = [FILES.indexOf(this.focused[0]) + right, Number(this.focused[1]) + up];
      if (FILES[file] && rank >= 1 && rank <= 8) this.focused = FILES[file] + rank;
      this.render();
    } else if (event.key === "Enter" || event.key === " ") this.choose(this.focused, false);
    else return;
    event.preventDefault();
  }
}
