// Short tones for moves, captures, checks and the end of a game; made here, so that no file is loaded.
const TONES = { move: [330, 0.08], capture: [220, 0.12], check: [660, 0.16], end: [165, 0.5] };
let context = null;

export function sound(kind) {
  context ??= new AudioContext();
  const [pitch, seconds] = TONES[kind];
  const [tone, volume, now] = [context.createOscillator(), context.createGain(), context.currentTime];
  Object.assign(tone, { type: "triangle" }).frequency.value = pitch;
  volume.gain.setValueAtTime(0.2, now);
  volume.gain.exponentialRampToValueAtTime(0.001, now + seconds);
  tone.connect(volume).connect(context.destination);
  tone.start();
  tone.stop(now + seconds);
}
