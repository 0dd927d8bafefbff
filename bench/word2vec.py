"""word2vec against gensim: words a second, memory, and with --quality how good the vectors are.

Both learn from the same text with the same settings: 100 dimensions, window 5, words that come 5 times or more, 5
negative words, frequent words left out above a share of 0.001. Every measurement is a process of its own, with one
thread or two, and the time is that of learning alone: vocabulary and tokens are there, the loops are compiled. gensim
is used in its quickest way, with `corpus_file`. Words are those of the text, unknown ones too, line ends not.

Memory is the peak of what a process has for itself (RssAnon), from the text file to the learned vectors, less what it
had after it had learned from the first of the lines. What it holds in all is told beside it: imports, compiled code,
and pages of mapped files, such as the tokens, that the system happens to keep.

--quality learns for --epochs with seeds 1 to 3 and compares Spearman's correlation with human judgements of similarity
and the share of analogies that are solved, among the words that both have. Without files of these, gensim's own copies
of WordSim353 and of questions-words.txt are used.
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


# What the contestants do not need is imported where it is needed, so that their memory is their own.


def main() -> None:
    from harness import arguments, begin, report

    parser = arguments(__doc__, repeats=5)
    parser.add_argument("text", type=Path, help="a text, a sentence a line")
    parser.add_argument("--epochs", type=int, default=1, help="passes over it (default: %(default)s)")
    parser.add_argument("--quality", action="store_true", help="compare the vectors, not the speed")
    parser.add_argument("--similarity", type=Path, help="word, word, score a line")
    parser.add_argument("--analogies", type=Path, help="four words a line, sections begin with a colon")
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
            taken: dict[str, list[dict[str, float]]] = {"chainrule": [], "gensim": []}
            for number in range(options.repeats + 1):
                for name, results in taken.items():
                    result = run_contestant(name, text, sg, threads, options.epochs)
                    if number:  # the first leaves compiled loops and the text in caches
                        results.append(result)
            figures += figures_of(f"{NAMES[sg]}, {threads} thread(s)", taken)
    return figures


def figures_of(name: str, taken: dict[str, list[dict[str, float]]]) -> list[Figure]:
    from harness import Figure

    ours, theirs = taken["chainrule"], taken["gensim"]
    speed, peer = (median(result["speed"] for result in results) for results in (ours, theirs))
    ratio = median(one["speed"] / other["speed"] for one, other in zip(ours, theirs, strict=True))
    held, peers = (max(result["memory"] for result in results) / 2**20 for results in (ours, theirs))
    whole, whole_peer = (max(result["resident"] for result in results) / 2**20 for results in (ours, theirs))
    note = f"all that is held: {whole:.0f} against {whole_peer:.0f}"
    return [
        Figure(name, speed, "words/s", peer, ratio, at_least=1.5),
        Figure(f"{name}, memory", held, "MiB", peers, held / peers, at_most=1.0, note=note),
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
            note = f"{low:.4f} to {high:.4f} against {least:.4f} to {most:.4f}"
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


# The contestants, each in a process of its own


def contest(job: dict[str, Any]) -> dict[str, float]:
    """Learn from the first lines, then from the text -> what that took, or how good it is."""
    learn = {"chainrule": learn_with_chainrule, "gensim": learn_with_gensim}[job["name"]]
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINRULE_CACHE"] = f"{place}/cache"
        few = Path(place, "few.txt")
        with open(job["text"], "rb") as file:
            few.write_bytes(b"".join(islice(file, WARMING_LINES)))
        learn({**job, "text": str(few), "epochs": 1}, f"{place}/few")
        watch = Watch()
        speed = learn(job, f"{place}/all")
        memory = watch.end()
        return quality(f"{place}/all.bin", job) if job.get("quality") else {"speed": speed, **memory}


def learn_with_chainrule(job: dict[str, Any], out: str) -> float:
    import chainrule as cr

    valid = Path(f"{out}-valid.txt")
    valid.write_text("nothing is measured on this\n")
    run = cr.train(
        job["text"], valid=valid, model="word2vec", sg=job["sg"], workers=job["threads"], epochs=job["epochs"],
        seed=job["seed"], out=out, **SETTINGS,
    )  # fmt: skip
    if job.get("quality"):
        from chainrule.interop.word2vec import export_vectors

        export_vectors(out, f"{out}.bin")
    speed: float = run.result["tokens_per_second"]
    return speed


def learn_with_gensim(job: dict[str, Any], out: str) -> float:
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
    """Both are judged by the same program, gensim's."""
    from gensim.models import KeyedVectors
    from gensim.test.utils import datapath

    found = KeyedVectors.load_word2vec_format(vectors, binary=True)
    pairs = job.get("similarity") or datapath("wordsim353.tsv")
    questions = job.get("analogies") or datapath("questions-words.txt")
    similarity = found.evaluate_word_pairs(pairs)[1][0]
    return {"similarity": float(similarity), "analogies": float(found.evaluate_word_analogies(questions)[0])}


class Watch:
    """The most memory that this process has for itself and holds in all, read every few milliseconds (Linux)."""

    def __init__(self) -> None:
        self.before, self.peaks = memory_held(), memory_held()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.wait(0.005):
            self.peaks = [max(pair) for pair in zip(self.peaks, memory_held(), strict=True)]

    def end(self) -> dict[str, float]:
        """Bytes of its own beyond those at first, and all that it held."""
        self._ended.set()
        self._thread.join()
        return {"memory": self.peaks[0] - self.before[0], "resident": self.peaks[1]}


def memory_held() -> list[int]:
    """Bytes that this process has for itself, and all that it holds, mapped files too."""
    words = Path("/proc/self/status").read_text().split()
    held = {name: value for name, value in pairwise(words) if name in ("RssAnon:", "VmRSS:")}
    return [int(held[name]) * 1024 for name in ("RssAnon:", "VmRSS:")]


if __name__ == "__main__":
    if sys.argv[1:2] == [CONTESTANT]:
        print(json.dumps(contest(json.loads(sys.argv[2]))))
    else:
        main()
