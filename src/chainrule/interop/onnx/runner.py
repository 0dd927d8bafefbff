"""Continues a text, or translates lines, with the ONNX graphs in this folder. It needs numpy and onnxruntime, and for
texts instead of token ids the tokenizers library.

    python generate.py "the cat"                    continue a text, greedily
    python generate.py "the cat" --temperature 0.8  or sampled
    python generate.py --ids "17 4 92"              token ids in and out

If the folder has an encoder, each argument is a line to translate.
"""

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

HERE = Path(__file__).parent


@cache
def about() -> dict[str, Any]:
    """The description of the graphs."""
    found: dict[str, Any] = json.loads((HERE / "model.json").read_text(encoding="utf-8"))
    return found


def begin(ids: list[int]) -> tuple[dict[str, np.ndarray], list[int]]:
    """What the first step reads beside its token, and the tokens to read before generating."""
    if about()["translates"]:
        tokens = np.array([[*ids, about()["source_eos"]]], np.int64)
        mask = np.ones_like(tokens, bool)
        outputs = onnxruntime.InferenceSession(HERE / "encoder.onnx").run(None, {"tokens": tokens, "mask": mask})
        feeds = dict(zip([*about()["memory"], *(part["name"] for part in about()["state"])], outputs, strict=True))
        return ({**feeds, "mask": mask} if about()["memory"] else feeds), [about()["eos"]]
    feeds = {part["name"]: np.zeros((1, *part["shape"]), np.float32) for part in about()["state"]}
    return feeds, [about()["eos"], *ids]


def generate(ids: list[int], most: int, temperature: float, seed: int) -> list[int]:
    """The tokens that follow, at most `most`; the end of the line ends a translation."""
    step, random = onnxruntime.InferenceSession(HERE / "step.onnx"), np.random.default_rng(seed)
    (feeds, prompt), found = begin(ids), list[int]()
    most = most if about()["window"] is None else min(most, about()["window"] - len(prompt))
    for token in prompt[:-1]:
        feeds |= advance(step, feeds, token)[1]
    token = prompt[-1]
    while len(found) < most:
        log_probs, state = advance(step, feeds, token)
        feeds |= state
        token = choose(log_probs, temperature, random)
        if token == about()["eos"] and about()["translates"]:
            break
        found.append(token)
    return found


def advance(
    step: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray], token: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """log p of the next token, and the state after this one."""
    log_probs, *state = step.run(None, {"token": np.array([token], np.int64), **feeds})
    return log_probs[0], dict(zip((part["name"] for part in about()["state"]), state, strict=True))


def choose(log_probs: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    """The most probable token, or one drawn at a temperature."""
    if not temperature:
        return int(log_probs.argmax())
    weights = np.exp((log_probs - log_probs.max()) / temperature)
    return int(random.choice(len(weights), p=weights / weights.sum()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--ids", help="token ids instead of a text")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.ids is not None:
        ids = [int(one) for one in given.ids.split()]
        print(*generate(ids, given.max_new_tokens, given.temperature, given.seed))
        return
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    ids = tokenizer.encode(given.text, add_special_tokens=False).ids
    found = generate(ids, given.max_new_tokens, given.temperature, given.seed)
    print(tokenizer.decode(found if about()["translates"] else [*ids, *found], skip_special_tokens=False))


if __name__ == "__main__":
    main()
