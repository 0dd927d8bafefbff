/** Numbers as text. */

/** Bits with two decimals; none: the model excludes the token. */
export function bitsText(bits) {
  return bits === null ? "∞" : bits.toFixed(2);
}

/** A probability, short and never rounded to zero. */
export function probabilityText(p) {
  if (p >= 0.9995) return p.toFixed(4);
  if (p >= 0.001) return p.toFixed(3);
  return p === 0 ? "0" : p.toExponential(1);
}

/** A whole number with separators. */
export function countText(count, language) {
  return count.toLocaleString(language === "zh" ? "zh-CN" : "en");
}

/** A token as it is shown: white space, and the sign that stands for it in subword vocabularies, is visible. */
export function visible(piece) {
  return piece.replaceAll("▁", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ +$/, (spaces) => "␣".repeat(spaces.length)) || "∅";
}

/** A piece as text: the marks of subword tokenisers become white space. */
export function pieceText(piece) {
  return piece.replaceAll("▁", " ").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

/** A number of parameters, tokens or bytes in three digits: 12.3k, 4.56M. */
export function shortText(value) {
  for (const [size, sign] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${sign}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** Seconds as 5.2 s, 3:05 or 1:02:09. */
export function timeText(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  const whole = Math.round(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const [, minutes, rest] = parts.map((one) => String(one).padStart(2, "0"));
  return parts[0] ? `${parts[0]}:${minutes}:${rest}` : `${parts[1]}:${rest}`;
}
