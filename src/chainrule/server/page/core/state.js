/** The state of the page is in its address: #VIEW?name=value&… */

/** The view and the values of the address. */
export function readAddress() {
  clearTimeout(waiting); // of the view that was left
  const [view, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  return { view, values: Object.fromEntries(new URLSearchParams(query)) };
}

/** The address of a view with values; empty ones are left out. */
export function addressOf(view, values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return `#${view}${query ? `?${query}` : ""}`;
}

const PAUSE = 200; // milliseconds
const BURST = 20;
let waiting = 0;
let recent = []; // times of the last changes

/**
 * Put a view and its values into the address; `push` makes a new entry of the history. Browsers refuse many changes in
 * a short time, as a slider makes them: after a burst, the last change is written a moment later.
 */
export function writeAddress(view, values, push) {
  clearTimeout(waiting);
  const address = addressOf(view, values);
  const write = () => {
    recent = [...recent.filter((time) => performance.now() - time < BURST * PAUSE), performance.now()];
    if (address !== location.hash) history[push ? "pushState" : "replaceState"](null, "", address);
  };
  if (push || recent.length < BURST) write();
  else waiting = setTimeout(write, PAUSE);
}
