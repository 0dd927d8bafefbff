"""Built-in texts, so that every command can be tried without data: `sample:english`, `sample:poems:test`.

    english    half a megabyte of technical English: the topics of Python's `help()`
    poems      well-known Chinese poems of the Tang dynasty, one per line
    en-de.en   with en-de.de parallel texts of 10,000 numbers, dates, times and prices, for translators; likewise
               en-digits.en with en-digits.digits, and zh-en.zh with zh-en.en

`:train`, `:valid` and `:test` select 80%, 10% and 10% of the lines, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chainrule.errors import DataError, unknown_name
from chainrule.text.samples.phrases import shuffled_pairs

PREFIX = "sample:"
SPLITS = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}
"""First and last tenth of the lines of each split."""

PAIRS = 10_000
LANGUAGE_PAIRS = (("en", "de"), ("en", "digits"), ("zh", "en"))

POEMS = """\
床前明月光，疑是地上霜。舉頭望明月，低頭思故鄉。
春眠不覺曉，處處聞啼鳥。夜來風雨聲，花落知多少。
白日依山盡，黃河入海流。欲窮千里目，更上一層樓。
千山鳥飛絕，萬徑人蹤滅。孤舟蓑笠翁，獨釣寒江雪。
空山不見人，但聞人語響。返景入深林，復照青苔上。
紅豆生南國，春來發幾枝。願君多采擷，此物最相思。
鋤禾日當午，汗滴禾下土。誰知盤中餐，粒粒皆辛苦。
獨坐幽篁裏，彈琴復長嘯。深林人不知，明月來相照。
人閑桂花落，夜靜春山空。月出驚山鳥，時鳴春澗中。
離離原上草，一歲一枯榮。野火燒不盡，春風吹又生。
移舟泊煙渚，日暮客愁新。野曠天低樹，江清月近人。
松下問童子，言師採藥去。只在此山中，雲深不知處。
向晚意不適，驅車登古原。夕陽無限好，只是近黃昏。
慈母手中線，遊子身上衣。臨行密密縫，意恐遲遲歸。誰言寸草心，報得三春暉。
國破山河在，城春草木深。感時花濺淚，恨別鳥驚心。烽火連三月，家書抵萬金。白頭搔更短，渾欲不勝簪。
好雨知時節，當春乃發生。隨風潛入夜，潤物細無聲。野徑雲俱黑，江船火獨明。曉看紅濕處，花重錦官城。
空山新雨後，天氣晚來秋。明月松間照，清泉石上流。竹喧歸浣女，蓮動下漁舟。隨意春芳歇，王孫自可留。
單車欲問邊，屬國過居延。征蓬出漢塞，歸雁入胡天。大漠孤煙直，長河落日圓。蕭關逢候騎，都護在燕然。
故人具雞黍，邀我至田家。綠樹村邊合，青山郭外斜。開軒面場圃，把酒話桑麻。待到重陽日，還來就菊花。
海上生明月，天涯共此時。情人怨遙夜，竟夕起相思。滅燭憐光滿，披衣覺露滋。不堪盈手贈，還寢夢佳期。
朝辭白帝彩雲間，千里江陵一日還。兩岸猿聲啼不住，輕舟已過萬重山。
日照香爐生紫煙，遙看瀑布掛前川。飛流直下三千尺，疑是銀河落九天。
故人西辭黃鶴樓，煙花三月下揚州。孤帆遠影碧空盡，唯見長江天際流。
兩個黃鸝鳴翠柳，一行白鷺上青天。窗含西嶺千秋雪，門泊東吳萬里船。
月落烏啼霜滿天，江楓漁火對愁眠。姑蘇城外寒山寺，夜半鐘聲到客船。
渭城朝雨浥輕塵，客舍青青柳色新。勸君更盡一杯酒，西出陽關無故人。
獨在異鄉為異客，每逢佳節倍思親。遙知兄弟登高處，遍插茱萸少一人。
黃河遠上白雲間，一片孤城萬仞山。羌笛何須怨楊柳，春風不度玉門關。
秦時明月漢時關，萬里長征人未還。但使龍城飛將在，不教胡馬度陰山。
葡萄美酒夜光杯，欲飲琵琶馬上催。醉臥沙場君莫笑，古來征戰幾人回。
遠上寒山石徑斜，白雲生處有人家。停車坐愛楓林晚，霜葉紅於二月花。
清明時節雨紛紛，路上行人欲斷魂。借問酒家何處有，牧童遙指杏花村。
千里鶯啼綠映紅，水村山郭酒旗風。南朝四百八十寺，多少樓臺煙雨中。
煙籠寒水月籠沙，夜泊秦淮近酒家。商女不知亡國恨，隔江猶唱後庭花。
君問歸期未有期，巴山夜雨漲秋池。何當共剪西窗燭，卻話巴山夜雨時。
少小離家老大回，鄉音無改鬢毛衰。兒童相見不相識，笑問客從何處來。
碧玉妝成一樹高，萬條垂下綠絲絛。不知細葉誰裁出，二月春風似剪刀。
朱雀橋邊野草花，烏衣巷口夕陽斜。舊時王謝堂前燕，飛入尋常百姓家。
獨憐幽草澗邊生，上有黃鸝深樹鳴。春潮帶雨晚來急，野渡無人舟自橫。
李白乘舟將欲行，忽聞岸上踏歌聲。桃花潭水深千尺，不及汪倫送我情。
"""
"""Poems of Li Bai, Du Fu, Wang Wei, Meng Haoran, Wang Zhihuan, Liu Zongyuan, Bai Juyi and others."""


def english_text() -> str:
    """Half a megabyte of English: the topics of Python's `help()`."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name].strip("\n") + "\n" for name in sorted(topics))


def phrases_text(source: str, target: str, style: str) -> str:
    """The lines of one side of the phrase pairs from `source` to `target`."""
    side = (source, target).index(style)
    return "".join(f"{pair[side]}\n" for pair in shuffled_pairs(source, target, PAIRS))


SAMPLES: dict[str, Callable[[], str]] = {
    "english": english_text,
    "poems": lambda: POEMS,
    **{
        f"{source}-{target}.{style}": partial(phrases_text, source, target, style)
        for source, target in LANGUAGE_PAIRS
        for style in (source, target)
    },
}


def sample_text(spec: str) -> str:
    """The text of `sample:NAME` or `sample:NAME:SPLIT`."""
    name, _, split = spec.removeprefix(PREFIX).partition(":")
    if name not in SAMPLES:
        raise unknown_name("sample text", name, SAMPLES)
    if split and split not in SPLITS:
        raise DataError(f"got '{spec}': expected one of the splits {', '.join(SPLITS)}, as in {PREFIX}{name}:train")
    lines = SAMPLES[name]().splitlines(keepends=True)
    first, last = SPLITS[split] if split else (0, 10)
    return "".join(lines[len(lines) * first // 10 : len(lines) * last // 10])
