"""Built-in phrases: every writing is read back by independent parsers."""

from __future__ import annotations

import doctest
import random
import re
from datetime import date, time, timedelta
from itertools import permutations
from pathlib import Path

import pytest

from chainrule.errors import ConfigError
from chainrule.text.samples import phrases
from chainrule.text.samples.phrases import Meaning, Price, phrase_pairs, spell, write_phrase_pairs, writings

STYLES = ("en", "de", "zh", "digits")
NUMBERS = [*range(10_000), *random.Random(0).sample(range(10_000, 1_000_000), 10_000)]
DAYS = [date(1800, 1, 1) + timedelta(days=number) for number in range(0, 109_572, 13)] + [date(2099, 12, 31)]
TIMES = [time(hour, minute) for hour in range(24) for minute in range(60)]
PRICES = [Price(euros, cents) for euros in range(100) for cents in range(100) if euros or cents]


def words(line: str) -> list[str]:
    return line.split()


EN = {word: n for n, word in enumerate(words("zero one two three four five six seven eight nine ten eleven twelve"))}
EN |= {f"{stem}teen": n for n, stem in enumerate(words("thir four fif six seven eigh nine"), 13)}
EN |= {f"{stem}ty": 10 * n for n, stem in enumerate(words("twen thir for fif six seven eigh nine"), 2)}
EN_DAYS = words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third twenty-fourth "
    "twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth thirty-first"
)
EN_MONTHS = words("January February March April May June July August September October November December")
EN_HOURS = {
    "at night": (22, 23, 0),
    "in the morning": range(1, 12),
    "in the afternoon": range(12, 18),
    "in the evening": range(18, 22),
}

DE = {word: n for n, word in enumerate(words("null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf"))}
DE |= {f"{stem}zehn": n for n, stem in enumerate(words("drei vier fünf sech sieb acht neun"), 13)}
DE |= {f"{stem}zig": 10 * n for n, stem in enumerate(words("vier fünf sech sieb acht neun"), 4)}
DE |= {"eins": 1, "zwanzig": 20, "dreißig": 30}
DE_DAYS = words(
    "erster zweiter dritter vierter fünfter sechster siebter achter neunter zehnter elfter zwölfter dreizehnter "
    "vierzehnter fünfzehnter sechzehnter siebzehnter achtzehnter neunzehnter zwanzigster einundzwanzigster "
    "zweiundzwanzigster dreiundzwanzigster vierundzwanzigster fünfundzwanzigster sechsundzwanzigster "
    "siebenundzwanzigster achtundzwanzigster neunundzwanzigster dreißigster einunddreißigster"
)
DE_MONTHS = words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember")
DE_HOURS = {
    "nachts": (22, 23, 0, 1, 2, 3, 4),
    "morgens": range(5, 10),
    "vormittags": (10, 11),
    "mittags": (12, 13),
    "nachmittags": range(14, 18),
    "abends": range(18, 22),
}
ZH_HOURS = {"凌晨": range(6), "上午": range(6, 12), "中午": (12,), "下午": range(13, 18), "晚上": range(18, 24)}


# Parsers: a line -> its meaning, or None if it is of another kind


def number_en(line: str) -> int:
    total = group = 0
    for word in re.split(" and | |-", line):
        if word == "hundred":
            group *= 100
        elif word == "thousand":
            total, group = 1000 * group, 0
        else:
            group += EN[word]
    return total + group


def number_de(line: str) -> int:
    for name, unit in (("tausend", 1000), ("hundert", 100)):
        before, found, after = line.partition(name)
        if found:
            return (number_de(before) if before else 1) * unit + (number_de(after) if after else 0)
    return sum(DE[word] for word in line.split("und"))


def number_zh(line: str) -> int:
    total = section = 0
    digit = None
    for sign in line:
        if sign == "万":
            total, section, digit = 10_000 * (section + (digit or 0)), 0, None
        elif sign in "千百十":
            section += (1 if digit is None else digit) * {"千": 1000, "百": 100, "十": 10}[sign]
            digit = None
        else:
            digit = 2 if sign == "两" else "零一二三四五六七八九".index(sign)
            digit = digit or None
    return total + section + (digit or 0)


def number_digits(line: str) -> int:
    return int(line.replace(",", ""))


def day_of(line: str, style: str) -> date | None:
    if style == "en":
        if found := re.fullmatch(r"(\d+) (\w+) (\d{4})", line):
            return date(int(found[3]), EN_MONTHS.index(found[2]) + 1, int(found[1]))
        if found := re.fullmatch(r"(\w+) (\d+), (\d{4})", line):
            return date(int(found[3]), EN_MONTHS.index(found[1]) + 1, int(found[2]))
        if found := re.fullmatch(r"the ([\w-]+) of (\w+) (\d{4})", line):
            return date(int(found[3]), EN_MONTHS.index(found[2]) + 1, EN_DAYS.index(found[1]) + 1)
    if style == "de" and (found := re.fullmatch(r"(\w+)\.? (\w+) (\d{4})", line)):
        day = int(found[1]) if found[1].isdigit() else DE_DAYS.index(found[1]) + 1
        return date(int(found[3]), DE_MONTHS.index(found[2]) + 1, day)
    if style == "zh" and (found := re.fullmatch(r"(\d+)年(\d+)月(\d+)日", line)):
        return date(*map(int, found.groups()))
    if style == "zh" and (found := re.fullmatch("(.+)年(.+)月(.+)日", line)):
        year = int("".join(str("〇一二三四五六七八九".index(sign)) for sign in found[1]))
        return date(year, number_zh(found[2]), number_zh(found[3]))
    if style == "digits" and (found := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", line)):
        return date(*map(int, found.groups()))
    if style == "digits" and (found := re.fullmatch(r"(\d+)\.(\d+)\.(\d{4})", line)):
        return date(int(found[3]), int(found[2]), int(found[1]))
    return None


def on_the_day(face_minutes: int, hours: range | tuple[int, ...]) -> time:
    """The only time in a part of the day that a clock face shows like this."""
    fits = [time(hour, face_minutes % 60) for hour in hours if (hour - face_minutes // 60) % 12 == 0]
    assert len(fits) == 1
    return fits[0]


def face_en(line: str) -> int:
    if found := re.fullmatch("(.+) o'clock", line):
        return 60 * number_en(found[1])
    if found := re.fullmatch("(.+) (past|to) (.+)", line):
        span = {"a quarter": 15, "half": 30}.get(found[1]) or number_en(re.sub(" minutes?$", "", found[1]))
        return 60 * number_en(found[3]) + (span if found[2] == "past" else -span)
    hour, _, minute = line.replace(" oh ", " ").partition(" ")
    return 60 * number_en(hour) + number_en(minute)


def face_de(line: str) -> int:
    if found := re.fullmatch("(.+) Uhr", line):
        return 60 * number_de(found[1])
    if found := re.fullmatch("(?:(fünf) (vor|nach) )?halb (.+)", line):
        return 60 * number_de(found[3]) - 30 + {None: 0, "vor": -5, "nach": 5}[found[2]]
    found = re.fullmatch("(.+) (nach|vor) (.+)", line)
    assert found
    span = {"Viertel": 15, "eine Minute": 1}.get(found[1]) or number_de(found[1].removesuffix(" Minuten"))
    return 60 * number_de(found[3]) + (span if found[2] == "nach" else -span)


def face_zh(line: str) -> int:
    if found := re.fullmatch(r"(\d+):(\d\d)", line):
        return 60 * int(found[1]) + int(found[2])
    hour, _, minute = line.partition("点")
    return 60 * number_zh(hour) + (30 if minute == "半" else number_zh(minute.removesuffix("分")))


def time_of(line: str, style: str) -> time | None:
    if style == "en":
        if found := re.fullmatch(r"(\d+):(\d\d) (am|pm)", line):
            return time(int(found[1]) % 12 + (12 if found[3] == "pm" else 0), int(found[2]))
        for part, hours in EN_HOURS.items():
            if line.endswith(f" {part}"):
                return on_the_day(face_en(line.removesuffix(f" {part}")), hours)
    if style == "de":
        for part, hours in DE_HOURS.items():
            if line.endswith(f" {part}"):
                return on_the_day(face_de(line.removesuffix(f" {part}")), hours)
        if found := re.fullmatch(r"(\d+):(\d\d) Uhr", line):
            return time(int(found[1]), int(found[2]))
        if found := re.fullmatch("(.+) Uhr(?: (.+))?", line):
            return time(number_de(found[1]), number_de(found[2] or "null"))
    if style == "zh" and line[:2] in ZH_HOURS:
        return on_the_day(face_zh(line[2:]), ZH_HOURS[line[:2]])
    if style == "digits" and (found := re.fullmatch(r"(\d+):(\d\d)", line)):
        return time(int(found[1]), int(found[2]))
    return None


def price_of(line: str, style: str) -> Price | None:
    if found := re.fullmatch(r"€?(\d+)[.,](\d\d)( €| EUR|欧元)?", line):
        return Price(int(found[1]), int(found[2]))
    if style == "en" and (found := re.fullmatch("(?:(.+) euros?)?(?: and )?(?:(.+) cents?)?", line)):
        return Price(number_en(found[1] or "zero"), number_en(found[2] or "zero"))
    if style == "de" and (found := re.fullmatch("(?:(.+) Euro)?(?: und )?(?:(.+) Cent)?", line)):
        return Price(number_de(found[1] or "null"), number_de(found[2] or "null"))
    if style == "zh" and (found := re.fullmatch("(?:(.+)欧元)?(?:(.+)欧分)?", line)):
        return Price(number_zh(found[1] or "零"), number_zh(found[2] or "零"))
    return None


NUMBER_OF = {"en": number_en, "de": number_de, "zh": number_zh, "digits": number_digits}


def understand(line: str, style: str) -> Meaning:
    """The meaning of a line of any kind."""
    for parse in (price_of, day_of, time_of):
        meaning = parse(line, style)
        if meaning is not None:
            return meaning
    return NUMBER_OF[style](line)


def chinese_from_digits(number: int) -> str:
    """Character by character: every digit with its unit, then superfluous zeros are removed."""
    sections = []
    for section in (number // 10_000, number % 10_000):
        digits = zip(f"{section:04}", "千百十 ", strict=True)
        signs = "".join("零一二三四五六七八九"[int(digit)] + unit for digit, unit in digits)
        sections.append(re.sub("零+", "零", re.sub("零[千百十 ]", "零", signs)).strip().removesuffix("零"))
    word = f"{sections[0].lstrip('零')}万{sections[1]}" if number >= 10_000 else sections[1].lstrip("零")
    return re.sub("^一十", "十", word) or "零"


# The spellers


@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_numbers_are_read_back(language: str) -> None:
    for number in NUMBERS:
        for line in writings(number, language):
            assert NUMBER_OF[language](line) == number, line
        assert spell(number, language) == writings(number, language)[0]


def test_chinese_numbers_equal_those_built_digit_by_digit() -> None:
    for number in NUMBERS:
        assert spell(number, "zh") == chinese_from_digits(number)


@pytest.mark.parametrize(
    ("number", "english", "german", "chinese"),
    [
        (0, "zero", "null", "零"),
        (1, "one", "eins", "一"),
        (10, "ten", "zehn", "十"),
        (12, "twelve", "zwölf", "十二"),
        (16, "sixteen", "sechzehn", "十六"),
        (17, "seventeen", "siebzehn", "十七"),
        (20, "twenty", "zwanzig", "二十"),
        (21, "twenty-one", "einundzwanzig", "二十一"),
        (30, "thirty", "dreißig", "三十"),
        (40, "forty", "vierzig", "四十"),
        (66, "sixty-six", "sechsundsechzig", "六十六"),
        (77, "seventy-seven", "siebenundsiebzig", "七十七"),
        (100, "one hundred", "einhundert", "一百"),
        (101, "one hundred and one", "einhunderteins", "一百零一"),
        (110, "one hundred and ten", "einhundertzehn", "一百一十"),
        (112, "one hundred and twelve", "einhundertzwölf", "一百一十二"),
        (207, "two hundred and seven", "zweihundertsieben", "二百零七"),
        (1000, "one thousand", "eintausend", "一千"),
        (1001, "one thousand and one", "eintausendeins", "一千零一"),
        (1005, "one thousand and five", "eintausendfünf", "一千零五"),
        (1010, "one thousand and ten", "eintausendzehn", "一千零一十"),
        (1100, "one thousand one hundred", "eintausendeinhundert", "一千一百"),
        (2020, "two thousand and twenty", "zweitausendzwanzig", "二千零二十"),
        (10_000, "ten thousand", "zehntausend", "一万"),
        (10_010, "ten thousand and ten", "zehntausendzehn", "一万零一十"),
        (10_300, "ten thousand three hundred", "zehntausenddreihundert", "一万零三百"),
        (21_000, "twenty-one thousand", "einundzwanzigtausend", "二万一千"),
        (100_000, "one hundred thousand", "einhunderttausend", "十万"),
        (101_001, "one hundred and one thousand and one", "einhunderteintausendeins", "十万一千零一"),
        (110_000, "one hundred and ten thousand", "einhundertzehntausend", "十一万"),
        (203_000, "two hundred and three thousand", "zweihundertdreitausend", "二十万三千"),
        (500_005, "five hundred thousand and five", "fünfhunderttausendfünf", "五十万零五"),
        (
            999_999,
            "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
            "九十九万九千九百九十九",
        ),
    ],
)
def test_known_numbers(number: int, english: str, german: str, chinese: str) -> None:
    assert [spell(number, language) for language in STYLES] == [english, german, chinese, str(number)]


@pytest.mark.parametrize(
    ("meaning", "style", "expected"),
    [
        (1907, "en", ("one thousand nine hundred and seven", "one thousand nine hundred seven")),
        (101_000, "de", ("einhunderteintausend", "hunderteintausend")),
        (1001, "de", ("eintausendeins", "tausendeins")),
        (21_000, "de", ("einundzwanzigtausend",)),
        (22_200, "zh", ("二万二千二百", "两万二千二百")),
        (220_000, "zh", ("二十二万",)),
        (12_345, "digits", ("12345", "12,345")),
        (date(1987, 3, 3), "en", ("3 March 1987", "March 3, 1987", "the third of March 1987")),
        (date(1987, 3, 3), "de", ("3. März 1987", "dritter März 1987")),
        (date(2007, 10, 31), "zh", ("2007年10月31日", "二〇〇七年十月三十一日")),
        (date(1987, 3, 3), "digits", ("1987-03-03", "3.3.1987")),
        (time(7, 30), "en", ("half past seven in the morning", "7:30 am", "seven thirty in the morning")),
        (time(0, 45), "en", ("a quarter to one at night", "12:45 am", "twelve forty-five at night")),
        (time(13, 1), "en", ("one minute past one in the afternoon", "1:01 pm", "one oh one in the afternoon")),
        (time(22, 0), "en", ("ten o'clock at night", "10:00 pm")),
        (time(7, 30), "de", ("sieben Uhr dreißig", "7:30 Uhr", "halb acht morgens")),
        (time(12, 25), "de", ("zwölf Uhr fünfundzwanzig", "12:25 Uhr", "fünf vor halb eins mittags")),
        (time(1, 0), "de", ("ein Uhr", "1:00 Uhr", "ein Uhr nachts")),
        (time(21, 1), "de", ("einundzwanzig Uhr eins", "21:01 Uhr", "eine Minute nach neun abends")),
        (time(23, 45), "de", ("dreiundzwanzig Uhr fünfundvierzig", "23:45 Uhr", "Viertel vor zwölf nachts")),
        (time(7, 30), "zh", ("上午七点半", "上午七点三十分", "上午7:30")),
        (time(14, 2), "zh", ("下午两点零二分", "下午2:02")),
        (time(0, 0), "zh", ("凌晨零点", "凌晨0:00")),
        (time(12, 5), "zh", ("中午十二点零五分", "中午12:05")),
        (time(7, 30), "digits", ("07:30", "7:30")),
        (Price(1, 1), "en", ("one euro and one cent", "€1.01")),
        (Price(21, 0), "de", ("einundzwanzig Euro", "21,00 €")),
        (Price(1, 50), "de", ("ein Euro und fünfzig Cent", "1,50 €")),
        (Price(2, 12), "zh", ("两欧元十二欧分", "2.12欧元")),
        (Price(0, 5), "digits", ("€0.05", "0.05 EUR")),
    ],
)
def test_known_writings(meaning: Meaning, style: str, expected: tuple[str, ...]) -> None:
    assert writings(meaning, style) == expected


@pytest.mark.parametrize("style", STYLES)
def test_days_times_and_prices_are_read_back(style: str) -> None:
    for meaning in (*DAYS, *TIMES, *PRICES):
        for line in writings(meaning, style):
            assert understand(line, style) == meaning, line


@pytest.mark.parametrize("style", STYLES)
def test_no_writing_has_two_meanings(style: str) -> None:
    known: dict[str, Meaning] = {}
    for meaning in (*NUMBERS, *DAYS, *TIMES, *PRICES):
        for line in writings(meaning, style):
            assert known.setdefault(line, meaning) is meaning, line


@pytest.mark.parametrize("number", [-1, 1_000_000])
def test_a_number_out_of_reach_is_refused(number: int) -> None:
    with pytest.raises(ConfigError) as caught:
        spell(number, "en")
    assert str(caught.value) == f"cannot spell {number}: give a number from 0 to 999999"


# The pairs


@pytest.mark.parametrize(("source", "target"), list(permutations(STYLES, 2)))
def test_the_target_has_the_meaning_of_the_source(source: str, target: str) -> None:
    targets: dict[Meaning, str] = {}
    for line, translation in phrase_pairs(source, target, 2000):
        meaning = understand(line, source)
        assert understand(translation, target) == meaning
        assert targets.setdefault(meaning, translation) == translation


@pytest.mark.parametrize("source", STYLES)
def test_there_are_enough_sources_of_every_kind_and_size(source: str) -> None:
    target = "digits" if source != "digits" else "en"
    pairs = list(phrase_pairs(source, target, 21_000))
    assert len({line for line, _ in pairs}) == len(pairs) == 21_000
    for line in (line for pair in pairs for line in pair):
        assert line == line.strip() != ""
        assert line.isprintable()
    meanings = [understand(line, source) for line, _ in pairs]
    numbers = [meaning for meaning in meanings if isinstance(meaning, int)]
    assert set(range(100)) <= set(numbers)
    assert max(numbers) > 990_000
    assert {meaning.year for meaning in meanings if isinstance(meaning, date)} == set(range(1800, 2100))
    assert {meaning.hour for meaning in meanings if isinstance(meaning, time)} == set(range(24))
    assert {meaning.euros for meaning in meanings if isinstance(meaning, Price)} == set(range(100))


def test_numbers_are_drawn_log_uniformly() -> None:
    generator = random.Random(0)
    drawn = [number for number in (phrases._draw(generator) for _ in range(20_000)) if isinstance(number, int)]
    for digits in range(1, 7):
        share = sum(len(str(number)) == digits for number in drawn) / len(drawn)
        assert abs(share - 1 / 6) < 0.02, digits


def test_every_writing_of_a_meaning_is_equally_likely() -> None:
    lines = [line for line, _ in phrase_pairs("en", "de", 21_000) if re.search(r"\d{4}$", line)]
    for pattern in (r"\d+ \w+ \d+", r"\w+ \d+, \d+", r"the .*"):
        assert abs(sum(bool(re.fullmatch(pattern, line)) for line in lines) / len(lines) - 1 / 3) < 0.03


def test_sources_depend_on_the_seed_and_not_on_the_target() -> None:
    first = list(phrase_pairs("de", "en", 500, seed=7))
    assert first == list(phrase_pairs("de", "en", 500, seed=7))
    assert first[:100] == list(phrase_pairs("de", "en", 100, seed=7))
    assert first != list(phrase_pairs("de", "en", 500, seed=8))
    assert [line for line, _ in first] == [line for line, _ in phrase_pairs("de", "zh", 500, seed=7)]


def test_the_example_of_the_module_is_true() -> None:
    assert doctest.testmod(phrases) == (0, 1)


@pytest.mark.parametrize(
    ("source", "target", "count", "message"),
    [
        ("en", "fr", 1, "unknown style of phrases 'fr': choose one of these. Known: de, digits, en, zh"),
        ("digit", "en", 1, "unknown style of phrases 'digit': did you mean 'digits'? Known: de, digits, en, zh"),
        ("zh", "zh", 1, "source and target are both 'zh': choose two of en, de, zh, digits"),
        ("en", "de", -1, "cannot make -1 pairs of phrases: ask for 0 to 200000"),
        ("en", "de", 200_001, "cannot make 200001 pairs of phrases: ask for 0 to 200000"),
    ],
)
def test_impossible_requests_are_refused_at_once(source: str, target: str, count: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        phrase_pairs(source, target, count)
    assert str(caught.value) == message


# The files


def read_pairs(paths: tuple[Path, Path]) -> list[tuple[str, str]]:
    sides = [path.read_text(encoding="utf-8").split("\n") for path in paths]
    assert [side.pop() for side in sides] == ["", ""]
    return list(zip(*sides, strict=True))


def test_the_splits_partition_the_pairs(tmp_path: Path) -> None:
    paths = write_phrase_pairs(tmp_path / "new", "en", "de")
    assert paths["test"] == (tmp_path / "new" / "test.en", tmp_path / "new" / "test.de")
    splits = {name: read_pairs(both) for name, both in paths.items()}
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 20_000, "valid": 500, "test": 500}
    together = [pair for pairs in splits.values() for pair in pairs]
    assert len({line for line, _ in together}) == 21_000
    stream = list(phrase_pairs("en", "de", 21_000))
    assert sorted(together) == sorted(stream)
    early = set(stream[:10_500])  # all splits have one distribution: each has as many early as late pairs
    assert all(abs(sum(pair in early for pair in pairs) / len(pairs) - 0.5) < 0.07 for pairs in splits.values())


def test_files_are_written_only_when_they_differ(tmp_path: Path) -> None:
    counts = {"train": 30, "valid": 0}
    paths = write_phrase_pairs(tmp_path, "zh", "digits", counts, seed=3)
    files = [path for both in paths.values() for path in both]
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in files}
    assert write_phrase_pairs(tmp_path, "zh", "digits", counts, seed=3) == paths
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in files} == before
    files[1].write_bytes(b"\xff\n")
    write_phrase_pairs(tmp_path, "zh", "digits", counts, seed=3)
    assert files[1].read_bytes() == before[files[1]][1]
    assert paths["valid"][0].read_bytes() == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.digits", "train.zh", "valid.digits", "valid.zh"]
