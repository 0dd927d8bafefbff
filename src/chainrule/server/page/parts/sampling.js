/** What sampling draws from: temperature, then top-k, then top-p, as `chainrule generate` applies them. */

/** The float32 values of a base64 text. */
export function decodeFloats(text) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/**
 * The probabilities after the filters, which sum to one. Tokens that tie with the last one kept are kept too.
 * @param {Float32Array} logProbs
 * @param {{temperature: number, topK: number|null, topP: number}} options
 */
export function filtered(logProbs, { temperature, topK, topP }) {
  if (temperature < 1e-9) return onlyBest(logProbs);
  let scores = Float64Array.from(logProbs, (one) => one / temperature);
  if (topK !== null && topK < scores.length) scores = keepAbove(scores, scores.slice().sort().at(-topK));
  if (topP < 1) scores = keepAbove(scores, leastKept(softmax(scores), scores, topP));
  return softmax(scores);
}

function onlyBest(logProbs) {
  const probs = new Float64Array(logProbs.length);
  probs[logProbs.indexOf(logProbs.reduce((best, one) => Math.max(best, one), -Infinity))] = 1;
  return probs;
}

function softmax(scores) {
  const top = scores.reduce((best, one) => Math.max(best, one), -Infinity);
  const weights = scores.map((one) => Math.exp(one - top));
  const total = weights.reduce((sum, one) => sum + one, 0);
  return weights.map((one) => one / total);
}

function keepAbove(scores, least) {
  return scores.map((one) => (one < least ? -Infinity : one));
}

/** The score of the last of the fewest most probable tokens whose mass reaches p. */
function leastKept(probs, scores, p) {
  const order = [...probs.keys()].sort((one, other) => probs[other] - probs[one]);
  let mass = 0;
  let last = order[0];
  for (const index of order) {
    if (mass >= p) break;
    last = index;
    mass += probs[index];
  }
  return scores[last];
}
