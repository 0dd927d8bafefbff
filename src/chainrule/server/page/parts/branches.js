/** A tree of continuations: every node is one token after its parent; the root is the prompt. */

/** The tree of an address, or the root alone. */
export function readTree(text) {
  const root = { parent: null, id: null, text: "" };
  try {
    const { nodes, at } = JSON.parse(text);
    const known = nodes.map(([parent, id, piece]) => ({ parent, id, text: String(piece) }));
    const sound = known.every((one, place) => Number.isInteger(one.id) && one.parent >= 0 && one.parent <= place);
    if (sound && at >= 0 && at <= known.length) return { nodes: [root, ...known], at };
  } catch {
    // not a tree: begin with the root
  }
  return { nodes: [root], at: 0 };
}

/** The tree as a text for the address. */
export function writeTree({ nodes, at }) {
  if (nodes.length === 1) return "";
  return JSON.stringify({ nodes: nodes.slice(1).map(({ parent, id, text }) => [parent, id, text]), at });
}

/** The nodes from the first token to a node. */
export function pathTo({ nodes }, at) {
  const path = [];
  for (let place = at; place > 0; place = nodes[place].parent) path.unshift(place);
  return path;
}

/** Append a token to the current node, or go to it if it is there already. */
export function grow(tree, id, text) {
  const known = tree.nodes.findIndex((one) => one.parent === tree.at && one.id === id);
  if (known > 0) tree.at = known;
  else tree.at = tree.nodes.push({ parent: tree.at, id, text }) - 1;
}

/** The branches as runs of tokens without a fork: {places, children}. */
export function runsOf({ nodes }) {
  const children = nodes.map(() => []);
  nodes.forEach((one, place) => {
    if (one.parent !== null) children[one.parent].push(place);
  });
  const follow = (first) => {
    const places = [first];
    while (children[places.at(-1)].length === 1) places.push(children[places.at(-1)][0]);
    return { places, children: children[places.at(-1)].map(follow) };
  };
  return children[0].map(follow);
}
