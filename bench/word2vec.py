"""word2vec against gensim: words/s, memory and, with --quality, the quality of the vectors.

Both train on the same text with the same settings: 100 dimensions, window 5, words with at least 5 occurrences, 5
negative words, subsampling above a frequency of 0.001. Every measurement is a separate process with one or --threads
threads. The time is that of training alone: the vocabulary and the tokens exist, the loops are compiled. gensim uses
its fastest input, `corpus_file`. All words of the text count, including unknown ones, but no line ends.

Memory is the peak of private memory (RssAnon) from the text file to the vectors, minus the value after training on the
first lines. Resident memory is reported as well: it includes imports, compiled code and cached pages of mapped files,
for example of the tokens.

--quality trains for --epochs with seeds 1 to 3 and compares Spearman's correlation with human similarity judgements and
the share of solved analogies, for the words that both know. The default files are gensim's copies of WordSim353 and
questions-words.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Figure

QUICK_BYTES = 300_000
SETTINGS = {"vector_size": 100, "window": 5, "min_count": 5, "negative": 5, "sample": 1e-3}
CONTESTANT = "--contestant"
WARMING_LINES = 3000
NAMES = {0: "CBOW", 1: "skip-gram"}


# Imports inside functions keep modules that a contestant does not need out of its memory.


def main() -> None:
    from harness import arguments, begin, report

    parser = arguments(__doc__, repeats=5)
    parser.add_argument("text", type=Path, help="text, one sentence per line")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of training (default: %(default)s)")
    parser.add_argument("--quality", action="store_true", help="compare the quality of the vectors, not the speed")
    parser.add_argument("--similarity", type=Path, help="file with word, word, score per line")
    parser.add_argument("--analogies", type=Path, help="file with four words per line; sections begin with a colon")
    options = begin(parser)
    with tempfile.TemporaryDirectory() as place:
        text = shortened(options.text, Path(place)) if options.quick else options.text
        figures = compare_quality(options, text) if options.quality else compare_speed(options, text)
    report(figures, options)


def shortened(text: Path, place: Path) -> Path:
    with text.open("rb") as file:
        (place / "short.txt").write_bytes(file.read(QUICK_BYTES))
    return place / "short.txt"


# Measuring


def compare_speed(options: Any, text: Path) -> list[Figure]:
    figures = []
    for sg in (1, 0):
        for threads in dict.fromkeys((1, options.threads)):
            results_of: dict[str, list[dict[str, float]]] = {"chainrule": [], "gensim": []}
            for number in range(options.repeats + 1):
                for name, results in results_of.items():
                    result = run_contestant(name, text, sg, threads, options.epochs)
                    if number:  # the first round fills the caches of compiled loops and files
                        results.append(result)
            figures += figures_of(f"{NAMES[sg]}, {threads} thread(s)", results_of)
    return figures


def figures_of(name: str, results_of: dict[str, list[dict[str, float]]]) -> list[Figure]:
    from harness import Figure

    ours, theirs = results_of["chainrule"], results_of["gensim"]
    speed, peer = (median(result["speed"] for result in results) for results in (ours, theirs))
    ratio = median(one["speed"] / other["speed"] for one, other in zip(ours, theirs, strict=True))
    held, peers = (max(result["memory"] for result in results) / 2**20 for results in (ours, theirs))
    whole, whole_peer = (max(result["resident"] for result in results) / 2**20 for results in (ours, theirs))
    note = f"resident: {whole:.0f}, peer {whole_peer:.0f}"
    return [
        Figure(name, speed, "words/s", peer, ratio, at_least=1.5),
        Figure(f"{name}, memory", held, "MiB", peers, held / peers, at_most=1.1, note=note),
    ]


def compare_quality(options: Any, text: Path) -> list[Figure]:
    from harness import Figure

    files = {name: str(path) for name in ("similarity", "analogies") if (path := getattr(options, name))}
    figures = []
    for sg in (1, 0):
        scores: dict[str, list[dict[str, float]]] = {"chainrule": [], "gensim": []}
        for seed in (1, 2, 3):
            for name, results in scores.items():
                results.append(
                    run_contestant(name, text, sg, options.threads, options.epochs, seed=seed, quality=True, **files)
                )
        for measure in ("similarity", "analogies"):
            (ours, low, high), (theirs, least, most) = (
                spread([result[measure] for result in scores[name]]) for name in ("chainrule", "gensim")
            )
            note = f"{low:.4f} to {high:.4f}, peer {least:.4f} to {most:.4f}"
            figures.append(
                Figure(f"{NAMES[sg]}, {measure}", ours, "", theirs, ours / theirs if theirs else None, note=note)
            )
    return figures


def spread(values: list[float]) -> tuple[float, float, float]:
    return mean(values), min(values), max(values)


def run_contestant(name: str, text: Path, sg: int, threads: int, epochs: int, **more: Any) -> dict[str, Any]:
    job = {"name": name, "text": str(text), "sg": sg, "threads": threads, "epochs": epochs, "seed": 1, **more}
    command = [sys.executable, __file__, CONTESTANT, json.dumps(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# The contestants, each in its own process


def contest(job: dict[str, Any]) -> dict[str, float]:
    """Train on the first lines, then on the text -> speed and memory, or quality."""
    train = {"chainrule": train_with_chainrule, "gensim": train_with_gensim}[job["name"]]
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINRULE_CACHE"] = f"{place}/cache"
        few = Path(place, "few.txt")
        with open(job["text"], "rb") as file:
            few.write_bytes(b"".join(islice(file, WARMING_LINES)))
        train({**job, "text": str(few), "epochs": 1}, f"{place}/few")
        watch = Watch()
        speed = train(job, f"{place}/all")
        memory = watch.end()
        return quality(f"{place}/all.bin", job) if job.get("quality") else {"speed": speed, **memory}


def train_with_chainrule(job: dict[str, Any], out: str) -> float:
    import chainrule as cr

    valid = Path(f"{out}-valid.txt")
    valid.write_text("not measured\n")
    run = cr.train(
        job["text"], valid=valid, model="word2vec", sg=job["sg"], workers=job["threads"], epochs=job["epochs"],
        seed=job["seed"], out=out, **SETTINGS,
    )  # fmt: skip
    if job.get("quality"):
        from chainrule.interop.word2vec import export_vectors

        export_vectors(out, f"{out}.bin")
    speed: float = run.result["tokens_per_second"]
    return speed


def train_with_gensim(job: dict[str, Any], out: str) -> float:
    from gensim.models import word2vec

    assert word2vec.FAST_VERSION > -1, "gensim's compiled loops are missing"
    model = word2vec.Word2Vec(sg=job["sg"], workers=job["threads"], seed=job["seed"], **SETTINGS)
    model.build_vocab(corpus_file=job["text"])
    began = time.perf_counter()
    model.train(corpus_file=job["text"], total_words=model.corpus_total_words, epochs=job["epochs"])
    speed = model.corpus_total_words * job["epochs"] / (time.perf_counter() - began)
    model.wv.save_word2vec_format(f"{out}.bin", binary=True)
    return speed


def quality(vectors: str, job: dict[str, Any]) -> dict[str, float]:
    """Evaluate vectors with gensim's functions."""
    from gensim.models import KeyedVectors
    from gensim.test.utils import datapath

    found = KeyedVectors.load_word2vec_format(vectors, binary=True)
    pairs = job.get("similarity") or datapath("wordsim353.tsv")
    questions = job.get("analogies") or datapath("questions-words.txt")
    similarity = found.evaluate_word_pairs(pairs)[1][0]
    return {"similarity": float(similarity), "analogies": float(found.evaluate_word_analogies(questions)[0])}


class Watch:
    """Samples the private and the resident memory of this process every few milliseconds (Linux)."""

    def __init__(self) -> None:
        self.before, self.peaks = memory_held(), memory_held()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.wait(0.005):
            self.peaks = [max(pair) for pair in zip(self.peaks, memory_held(), strict=True)]

    def end(self) -> dict[str, float]:
        """Return the growth of private memory and the peak of resident memory, in bytes."""
        self._ended.set()
        self._thread.join()
        return {"memory": self.peaks[0] - self.before[0], "resident": self.peaks[1]}


def memory_held() -> list[int]:
    """Return private and resident memory of this process in bytes."""
    words = Path("/proc/self/status").read_text().split()
    held = {name: value for name, value in pairwise(words) if name in ("RssAnon:", "VmRSS:")}
    return [int(held[name]) * 1024 for name in ("RssAnon:", "VmRSS:")]


if __name__ == "__main__":
    if sys.argv[1:2] == [CONTESTANT]:
        print(json.dumps(contest(json.loads(sys.argv[2]))))
    else:
        main()
