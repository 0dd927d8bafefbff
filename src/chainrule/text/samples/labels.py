"""Built-in labelled data for trying a classifier and a tagger without data files.

*Topics*: the first paragraphs of docstrings of Python's standard library, labelled by the topic of their module. Whole
modules are held out for validation and test, so no text has a near duplicate in another split, and a classifier must
generalise from the words of some modules to those of others. The texts depend on the Python version only.

*Phrases*: sentences with numbers, dates, times of day and prices in English words (`phrases.py`), each word tagged with
the phrase it is part of: B-DATE, I-DATE, …, O.
"""

from __future__ import annotations

import importlib
import inspect
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chainrule.base.files import write_atomically
from chainrule.text.samples.phrases import MAX_PAIRS, phrase_pairs

SPLITS = ("train", "valid", "test")

TOPICS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "concurrency": (
            "threading multiprocessing.managers multiprocessing.queues multiprocessing.shared_memory "
            "multiprocessing.context concurrent.futures asyncio.events asyncio.base_events asyncio.tasks "
            "asyncio.subprocess contextvars signal",
            "asyncio.futures multiprocessing.process queue",
            "asyncio.locks asyncio.queues multiprocessing.pool subprocess sched",
        ),
        "containers": (
            "collections heapq array itertools functools weakref graphlib types typing enum",
            "bisect copy collections.abc",
            "dataclasses operator reprlib abc",
        ),
        "files": (
            "os os.path shutil tempfile zipfile gzip bz2 fileinput stat io",
            "glob fnmatch lzma",
            "pathlib tarfile filecmp linecache zlib",
        ),
        "network": (
            "socket ssl http.client http.server http.cookiejar urllib.request urllib.parse smtplib imaplib "
            "email.message email.headerregistry email.policy xmlrpc.client socketserver wsgiref.handlers",
            "http.cookies poplib urllib.robotparser",
            "ftplib ipaddress selectors xmlrpc.server email.utils webbrowser",
        ),
        "numbers": ("math decimal random numbers", "cmath", "statistics fractions"),
        "python": (
            "ast inspect importlib.util importlib.machinery importlib.abc dis pdb traceback unittest.mock "
            "unittest.case pkgutil sys sysconfig bdb tokenize",
            "symtable runpy code doctest",
            "unittest.loader unittest.suite trace pstats timeit tracemalloc gc modulefinder",
        ),
        "text": (
            "string re difflib unicodedata gettext codecs html.parser configparser json xml.dom.minidom "
            "xml.sax.saxutils xml.sax.handler pprint argparse",
            "shlex locale json.decoder",
            "textwrap csv xml.etree.ElementTree string.templatelib html optparse",
        ),
        "time": ("calendar time", "zoneinfo", "datetime"),
    }
)
"""Topics, each with the modules whose docstrings are for training, validation and test."""

MIN_WORDS = 5
"""Words of a paragraph at least; shorter ones are not informative enough."""

SIGNATURE = re.compile(r"[\w.]+\(.*\)(\s*->.*)?|.*(>>>|::|=\s|\|).*")


def topic_texts(split: str) -> list[tuple[str, str]]:
    """(topic, text) of each docstring of a split: train, valid or test; no text occurs twice, nor in two splits."""
    place = SPLITS.index(split)
    earlier = {text for before in SPLITS[:place] for _, text in topic_texts(before)}
    found: dict[str, str] = {}
    for topic, modules in TOPICS.items():
        for name in modules[place].split():
            for text in _paragraphs(name):
                if text not in earlier:
                    found.setdefault(text, topic)
    return [(topic, text) for text, topic in found.items()]


def _paragraphs(name: str) -> Iterator[str]:
    """The first paragraphs of the docstrings of a module's public functions, classes and their methods."""
    try:
        module = importlib.import_module(name)
    except ImportError:  # some systems and versions lack the module
        return
    for owner, member in _members(module, name):
        text = _docstring(member)
        if isinstance(text, str) and (owner is None or not _inherited(owner, text)):
            paragraph = _first_paragraph(text)
            if paragraph:
                yield paragraph


def _docstring(member: Any) -> Any:
    """The docstring, if there is one, without the warning of members that are deprecated (typing.io)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(member, "__doc__", None)


def _members(module: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """(None, a function or class) or (a class, one of its methods), by name."""
    for key, member in sorted(vars(module).items()):
        if key.startswith("_") or not callable(member) or not _belongs(member, name):
            continue
        yield None, member
        if inspect.isclass(member):
            yield from ((member, part) for key, part in sorted(vars(member).items()) if not key.startswith("_"))


def _belongs(member: Any, name: str) -> bool:
    """Whether something is defined in a module, or in the module that implements it: _socket, posixpath."""
    home = getattr(member, "__module__", None)
    implementation = {"os.path": "posixpath", "os": "posix"}.get(name, name)
    return isinstance(home, str) and home.lstrip("_") in (name, implementation, name.partition(".")[0])


def _inherited(owner: Any, text: str) -> bool:
    """Whether the docstring of a method is that of a base class."""
    return any(
        getattr(part, "__doc__", None) == text
        for base in owner.__mro__[1:]
        for key, part in vars(base).items()
        if not key.startswith("_")
    )


def _first_paragraph(text: str) -> str:
    for part in inspect.cleandoc(text).split("\n\n"):
        paragraph = " ".join(part.split())
        if len(paragraph.split()) >= MIN_WORDS and not SIGNATURE.fullmatch(paragraph):
            return paragraph
    return ""


def write_topics(folder: Path) -> dict[str, Path]:
    """The topics as topic, tab, text in train.tsv, valid.tsv and test.tsv -> the files by split."""
    return {
        split: _write(folder / f"{split}.tsv", "".join(f"{topic}\t{text}\n" for topic, text in topic_texts(split)))
        for split in SPLITS
    }


# Tagged phrases

COUNTS: Mapping[str, int] = MappingProxyType({"train": 2000, "valid": 200, "test": 200})

CARRIERS = (
    "we met on {} and again on {}",
    "it cost {} at the market",
    "she counted {} birds before {}",
    "the train of {} was late",
    "they paid {} for it on {}",
    "about {} people came",
    "the shop opens at {} and a coffee is {}",
    "between {} and {} nobody called",
    "he wrote {} letters",
    "the meeting of {} was moved to {} and cost us {}",
    "he waited for half of the evening and for a second in May",
    "one of the three may march past at night",
)


def tagged_sentences(count: int, seed: int = 1) -> Iterator[tuple[list[str], list[str]]]:
    """`count` sentences of English words with their tags."""
    generator, phrases = random.Random(seed), phrase_pairs("en", "digits", MAX_PAIRS, seed)
    for _ in range(count):
        words: list[str] = []
        tags: list[str] = []
        for part in generator.choice(CARRIERS).split():
            if part == "{}":
                phrase, digits = next(phrases)
                inside, kind = phrase.split(), _kind(digits)
                words += inside
                tags += [f"B-{kind}", *([f"I-{kind}"] * (len(inside) - 1))]
            else:
                words.append(part)
                tags.append("O")
        yield words, tags


def _kind(digits: str) -> str:
    """The tag of a phrase by its digits: €12.50, 07:30, 1987-03-03 or 207."""
    if digits.startswith("€"):
        return "PRICE"
    return "TIME" if ":" in digits else "DATE" if "-" in digits else "NUMBER"


# Questions and answers

QUESTIONS = {
    "PRICE": ("how much did the {} cost", "what is the price of the {}", "what did they pay for the {}"),
    "TIME": ("at what time does the {} open", "when in the day did the {} arrive", "what did the clock of the {} show"),
    "DATE": ("on which day was the {} sold", "what is the date of the {}", "in which year and month was the {} made"),
    "NUMBER": ("how many people saw the {}", "what is the number of the {}", "how often was the {} moved"),
}
THINGS = (
    "ticket",
    "house",
    "letter",
    "train",
    "shop",
    "museum",
    "painting",
    "book",
    "bridge",
    "garden",
    "clock",
    "map",
)
ANSWERS = ("{}", "it was {}", "I think {}", "{} as far as I know", "they said {}")
MATCHING = 0.4
"""Share of pairs in which the answer fits the question."""


def question_answers(count: int, seed: int = 1) -> Iterator[tuple[str, str, str]]:
    """`count` pairs of a question and an answer, each after `match` or `other`: whether the answer fits in kind."""
    generator, phrases = random.Random(seed), phrase_pairs("en", "digits", MAX_PAIRS, seed)
    for _ in range(count):
        phrase, digits = next(phrases)
        kind = _kind(digits)
        label = "match" if generator.random() < MATCHING else "other"
        asked = kind if label == "match" else generator.choice([other for other in QUESTIONS if other != kind])
        question = generator.choice(QUESTIONS[asked]).format(generator.choice(THINGS))
        yield label, question, generator.choice(ANSWERS).format(phrase)


def write_question_answers(folder: Path, counts: Mapping[str, int] = COUNTS, seed: int = 1) -> dict[str, Path]:
    """Label, tab, question, tab, answer in train.tsv, valid.tsv and test.tsv -> the files by split."""
    pairs = question_answers(sum(counts.values()), seed)
    return {
        split: _write(folder / f"{split}.tsv", "".join("\t".join(next(pairs)) + "\n" for _ in range(count)))
        for split, count in counts.items()
    }


def write_tagged_phrases(folder: Path, counts: Mapping[str, int] = COUNTS, seed: int = 1) -> dict[str, Path]:
    """Sentences, one word and its tag per line, in train.conll, valid.conll and test.conll -> the files by split."""
    sentences = tagged_sentences(sum(counts.values()), seed)
    paths = {}
    for split, count in counts.items():
        blocks = (zip(*next(sentences), strict=True) for _ in range(count))
        text = "".join("".join(f"{word} {tag}\n" for word, tag in block) + "\n" for block in blocks)
        paths[split] = _write(folder / f"{split}.conll", text)
    return paths


def _write(path: Path, text: str) -> Path:
    """Write a file unless it has this content already."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)
    return path
