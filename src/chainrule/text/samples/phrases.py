"""Built-in sentence pairs for trying a translator without data files: numbers, dates, times of day and prices.

A *meaning* (207; 3 March 1987; half past seven in the morning; €12.50) is drawn at random and written in two *styles*:
English, German, Chinese or digits. A style has several writings of a meaning. The source is any of them, the target
always the first. No writing of a style has two meanings, so a perfect translator exists.

    >>> list(phrase_pairs("en", "de", 2, seed=50))
    [('thirty-eight', 'achtunddreißig'), ('March 19, 2075', '19. März 2075')]
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time
from itertools import compress, islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from chainrule.base.files import write_atomically
from chainrule.errors import ConfigError, unknown_name

NUMBERS = 1_000_000  # numbers are below this
MAX_PAIRS = 200_000  # few enough to draw new ones quickly; every style has more than a million writings
COUNTS: Mapping[str, int] = MappingProxyType({"train": 20_000, "valid": 500, "test": 500})


class Price(NamedTuple):
    """Below a hundred euros: from 101 on, German usage varies (hundertein, hunderteinen)."""

    euros: int
    cents: int


Meaning = int | date | time | Price
Writings = tuple[str, ...]
"""The ways to write a meaning in one style; the first is the one to translate to."""


class Style(NamedTuple):
    """How each kind of meaning is written."""

    number: Callable[[int], Writings]
    day: Callable[[date], Writings]
    clock: Callable[[time], Writings]
    price: Callable[[Price], Writings]


def _words(line: str) -> tuple[str, ...]:
    return tuple(line.split())


def _half_day(hour: int) -> int:
    """The hour on a clock face: 0 -> 12, 7 -> 7, 19 -> 7."""
    return (hour + 11) % 12 + 1


def _part_of_day(hour: int, parts: dict[int, str]) -> str:
    """The part of the day of an hour, given the first hour of each; no hour of a clock face occurs twice in a part."""
    return parts[max(begin for begin in parts if begin <= hour)]


# English

EN_SMALL = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
EN_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
EN_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
EN_ORDINALS |= {"twelve": "twelfth", "twenty": "twentieth", "thirty": "thirtieth"}
EN_MONTHS = _words("January February March April May June July August September October November December")
EN_DAY = {0: "at night", 1: "in the morning", 12: "in the afternoon", 18: "in the evening", 22: "at night"}


def _spell_en(number: int) -> str:
    """British spelling, with "and" before the last part below a hundred."""
    if number < 20:
        return EN_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return EN_TENS[tens - 2] + (f"-{EN_SMALL[ones]}" if ones else "")
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    many, rest = divmod(number, unit)
    joint = " and " if 0 < rest < 100 else " " if rest else ""
    return f"{_spell_en(many)} {name}{joint}{_spell_en(rest) if rest else ''}"


def _ordinal_en(number: int) -> str:
    """1 -> first, 21 -> twenty-first, for the days of a month."""
    head, dash, last = _spell_en(number).rpartition("-")
    return head + dash + EN_ORDINALS.get(last, f"{last}th")


def _number_en(number: int) -> Writings:
    british = _spell_en(number)
    return british, british.replace(" and ", " ")


def _day_en(day: date) -> Writings:
    month = EN_MONTHS[day.month - 1]
    spoken = f"the {_ordinal_en(day.day)} of {month} {day.year}"
    return f"{day.day} {month} {day.year}", f"{month} {day.day}, {day.year}", spoken


def _clock_en(clock: time) -> Writings:
    hour, minute, part = clock.hour, clock.minute, _part_of_day(clock.hour, EN_DAY)
    number = f"{_half_day(hour)}:{minute:02d} {'am' if hour < 12 else 'pm'}"
    now, then = _spell_en(_half_day(hour)), _spell_en(_half_day(hour + 1))
    if minute == 0:
        return f"{now} o'clock {part}", number
    read = f"{now} {'oh ' if minute < 10 else ''}{_spell_en(minute)} {part}"
    spoken = f"{_span_en(minute)} past {now}" if minute <= 30 else f"{_span_en(60 - minute)} to {then}"
    return f"{spoken} {part}", number, read


def _span_en(minutes: int) -> str:
    if minutes in (15, 30):
        return "a quarter" if minutes == 15 else "half"
    return _spell_en(minutes) if minutes % 5 == 0 else _count_en(minutes, "minute")


def _count_en(number: int, noun: str) -> str:
    return f"{_spell_en(number)} {noun}{'' if number == 1 else 's'}"


def _price_en(price: Price) -> Writings:
    counts = (_count_en(price.euros, "euro"), _count_en(price.cents, "cent"))
    return " and ".join(compress(counts, price)), f"€{price.euros}.{price.cents:02d}"


# German

DE_SMALL = _words(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
DE_TENS = _words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
DE_ORDINALS = {1: "erster", 3: "dritter", 7: "siebter", 8: "achter"}
DE_MONTHS = _words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember")
DE_DAY = {0: "nachts", 5: "morgens", 10: "vormittags", 12: "mittags", 14: "nachmittags", 18: "abends", 22: "nachts"}


def _spell_de(number: int) -> str:
    """One word, ones before tens, and always "einhundert", "eintausend"."""
    if number < 20:
        return DE_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return (f"{_stem_de(ones)}und" if ones else "") + DE_TENS[tens - 2]
    unit, name = (100, "hundert") if number < 1000 else (1000, "tausend")
    many, rest = divmod(number, unit)
    return _stem_de(many) + name + (_spell_de(rest) if rest else "")


def _stem_de(number: int) -> str:
    """The form before another word: a final "eins" loses its s."""
    word = _spell_de(number)
    return word[:-1] if word.endswith("eins") else word


def _number_de(number: int) -> Writings:
    word = _spell_de(number)
    return word, re.sub("^ein(?=hundert|tausend)", "", word)


def _day_de(day: date) -> Writings:
    month_year = f"{DE_MONTHS[day.month - 1]} {day.year}"
    ordinal = DE_ORDINALS.get(day.day, _spell_de(day.day) + ("ter" if day.day < 20 else "ster"))
    return f"{day.day}. {month_year}", f"{ordinal} {month_year}"


def _clock_de(clock: time) -> Writings:
    hour, minute = clock.hour, clock.minute
    read = f"{_stem_de(hour)} Uhr" + (f" {_spell_de(minute)}" if minute else "")
    return read, f"{hour}:{minute:02d} Uhr", f"{_spoken_de(hour, minute)} {_part_of_day(hour, DE_DAY)}"


def _spoken_de(hour: int, minute: int) -> str:
    """The spoken form: around the half hour relative to "halb" and the next hour."""
    now, then = _spell_de(_half_day(hour)), _spell_de(_half_day(hour + 1))
    if minute == 0:
        return f"{_stem_de(_half_day(hour))} Uhr"
    if minute in (25, 30, 35):
        return {25: "fünf vor ", 30: "", 35: "fünf nach "}[minute] + f"halb {then}"
    return f"{_span_de(minute)} nach {now}" if minute < 30 else f"{_span_de(60 - minute)} vor {then}"


def _span_de(minutes: int) -> str:
    if minutes == 15:
        return "Viertel"
    if minutes % 5 == 0:
        return _spell_de(minutes)
    return "eine Minute" if minutes == 1 else f"{_spell_de(minutes)} Minuten"


def _price_de(price: Price) -> Writings:
    counts = (f"{_stem_de(price.euros)} Euro", f"{_stem_de(price.cents)} Cent")
    return " und ".join(compress(counts, price)), f"{price.euros},{price.cents:02d} €"


# Chinese

ZH_DIGITS = "零一二三四五六七八九"
ZH_DAY = {0: "凌晨", 6: "上午", 12: "中午", 13: "下午", 18: "晚上"}


def _spell_zh(number: int) -> str:
    """Ten at the start is 十, elsewhere 一十; a single 零 stands for any run of zeros before the next digit."""
    word = _units_zh(number)
    return word[1:] if word.startswith("一十") else word


def _units_zh(number: int) -> str:
    if number < 10:
        return ZH_DIGITS[number]
    unit, name = next(pair for pair in ((10_000, "万"), (1000, "千"), (100, "百"), (10, "十")) if pair[0] <= number)
    many, rest = divmod(number, unit)
    if rest == 0:
        return _units_zh(many) + name
    return _units_zh(many) + name + ("零" if rest < unit // 10 else "") + _units_zh(rest)


def _count_zh(number: int) -> str:
    """The form before a measure word: two by itself is 两."""
    return "两" if number == 2 else _spell_zh(number)


def _number_zh(number: int) -> Writings:
    word = _spell_zh(number)
    return word, re.sub("^二(?=[百千万])", "两", word)


def _day_zh(day: date) -> Writings:
    year = "".join("〇" if digit == "0" else ZH_DIGITS[int(digit)] for digit in str(day.year))
    return f"{day.year}年{day.month}月{day.day}日", f"{year}年{_spell_zh(day.month)}月{_spell_zh(day.day)}日"


def _clock_zh(clock: time) -> Writings:
    hour, minute, part = clock.hour, clock.minute, _part_of_day(clock.hour, ZH_DAY)
    short = hour if hour <= 12 else hour - 12
    minutes = f"{'零' if minute < 10 else ''}{_spell_zh(minute)}分" if minute else ""
    hours = f"{part}{_count_zh(short)}点"
    return hours + ("半" if minute == 30 else minutes), hours + minutes, f"{part}{short}:{minute:02d}"


def _price_zh(price: Price) -> Writings:
    counts = (f"{_count_zh(price.euros)}欧元", f"{_count_zh(price.cents)}欧分")
    return "".join(compress(counts, price)), f"{price.euros}.{price.cents:02d}欧元"


STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "en": Style(_number_en, _day_en, _clock_en, _price_en),
        "de": Style(_number_de, _day_de, _clock_de, _price_de),
        "zh": Style(_number_zh, _day_zh, _clock_zh, _price_zh),
        "digits": Style(
            lambda number: (f"{number}", f"{number:,}"),
            lambda day: (f"{day:%Y-%m-%d}", f"{day.day}.{day.month}.{day.year}"),
            lambda clock: (f"{clock:%H:%M}", f"{clock.hour}:{clock:%M}"),
            lambda price: (f"€{price.euros}.{price.cents:02d}", f"{price.euros}.{price.cents:02d} EUR"),
        ),
    }
)


def _style(name: str) -> Style:
    if name not in STYLES:
        raise unknown_name("style of phrases", name, STYLES)
    return STYLES[name]


def spell(number: int, language: str) -> str:
    """A number from 0 to 999,999 in words of "en", "de" or "zh", or in "digits"."""
    if not 0 <= number < NUMBERS:
        raise ConfigError(f"cannot spell {number}: give a number from 0 to {NUMBERS - 1}")
    return writings(number, language)[0]


def writings(meaning: Meaning, style: str) -> Writings:
    """Every way to write a meaning in a style, without duplicates, the canonical one first."""
    number, day, clock, price = _style(style)
    match meaning:
        case Price():
            ways = price(meaning)
        case date():
            ways = day(meaning)
        case time():
            ways = clock(meaning)
        case _:
            ways = number(meaning)
    return tuple(dict.fromkeys(ways))


def phrase_pairs(source: str, target: str, count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """`count` pairs of lines with different sources, from style to style: "en", "de", "zh", "digits".

    The sources depend only on their style and the seed; a smaller count gives the first of the same pairs.
    """
    if _style(source) is _style(target):
        raise ConfigError(f"source and target are both '{source}': choose two of {', '.join(STYLES)}")
    if not 0 <= count <= MAX_PAIRS:
        raise ConfigError(f"cannot make {count} pairs of phrases: ask for 0 to {MAX_PAIRS}")
    return islice(_all_pairs(source, target, random.Random(seed)), count)


def _all_pairs(source: str, target: str, generator: random.Random) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    while True:
        meaning = _draw(generator)
        line = generator.choice(writings(meaning, source))
        if line not in seen:
            seen.add(line)
            yield line, writings(meaning, target)[0]


def _draw(generator: random.Random) -> Meaning:
    """Half numbers, log-uniform; three tenths days from 1800 to 2099; a tenth each times and prices."""
    kind = generator.random()
    if kind < 0.5:
        return int(math.exp(generator.random() * math.log(NUMBERS + 1))) - 1
    if kind < 0.8:
        return date.fromordinal(generator.randrange(date(1800, 1, 1).toordinal(), date(2100, 1, 1).toordinal()))
    if kind < 0.9:
        hour, minute = divmod(generator.randrange(24 * 60), 60)
        return time(hour, minute)
    euros, cents = generator.randrange(1, 100), generator.randrange(1, 100)
    return generator.choice((Price(euros, cents), Price(euros, cents), Price(euros, 0), Price(0, cents)))


def shuffled_pairs(source: str, target: str, count: int, seed: int = 1) -> list[tuple[str, str]]:
    """The same in an order that gives all splits one distribution: rare phrases are first drawn late."""
    pairs = list(phrase_pairs(source, target, count, seed))
    random.Random(seed).shuffle(pairs)
    return pairs


def write_phrase_pairs(
    folder: Path, source: str, target: str, counts: Mapping[str, int] = COUNTS, seed: int = 1
) -> dict[str, tuple[Path, Path]]:
    """Pairs in two files per split, like train.en and train.de, no source in two splits -> the files by split.

    A file that has this content already is not written.
    """
    rest = iter(shuffled_pairs(source, target, sum(counts.values()), seed))
    paths = {}
    for split, count in counts.items():
        part = list(islice(rest, count))
        paths[split] = (folder / f"{split}.{source}", folder / f"{split}.{target}")
        for side, path in enumerate(paths[split]):
            content = "".join(f"{pair[side]}\n" for pair in part).encode()
            if not path.exists() or path.read_bytes() != content:
                write_atomically(path, content)
    return paths
