"""The documentation is correct and complete: code runs, commands parse, links resolve, every option has its place."""

from __future__ import annotations

import dataclasses
import pkgutil
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from typer.main import get_command

import chainrule as cr
from chainrule.cli.main import _repeat, app
from chainrule.config import (
    DataConfig,
    DecodingConfig,
    Recipe,
    RunConfig,
    Section,
    TokenizerConfig,
    TrainingConfig,
    parse,
    parse_settings,
)
from chainrule.experiments.compare import Contender, Row, parse_contenders
from chainrule.experiments.mix import MixtureRecipe
from chainrule.experiments.speed_quality import read_recipe
from chainrule.interop.formats import export
from chainrule.models.feature_layer import LanguageModelConfig
from chainrule.registry import MODELS, OBJECTIVES, OUTPUTS, TOKENIZERS
from chainrule.text.samples.texts import english_text
from chainrule.training.fit import fit
from chainrule.training.fitting.fitting import Fitted
from chainrule.training.request import make_config

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
VERBS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


class Snippet(NamedTuple):
    page: Path
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.text[:40]!r}"


def snippets(*languages: str) -> list[Snippet]:
    found = [Snippet(page, *match) for page in PAGES for match in FENCE.findall(page.read_text(encoding="utf-8"))]
    return [snippet for snippet in found if snippet.language in languages]


def commands() -> list[str]:
    """Every `chainrule VERB …` of the documents: after a prompt, indented in the text, or as code with arguments."""
    lines = []
    for page in PAGES:
        joined = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines += re.findall(r"^(?:\$ |    )(chainrule [^\n]+)$", joined, re.MULTILINE)
        lines += re.findall(r"`(chainrule [a-z]+ [^`\n]+)`", joined)
    return sorted(set(lines))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the documents assume it: a book, a test text, and finished runs."""
    folder = tmp_path_factory.mktemp("desk")
    text = english_text()
    (folder / "book.txt").write_text(text[:20_000], encoding="utf-8")
    (folder / "test.txt").write_text(text[20_000:21_000], encoding="utf-8")
    small = {"model": {"embedding": 16, "hidden": 16, "layers": 1}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAINRULE_CACHE", str(folder / "cache"))
        cr.train(folder / "book.txt", model="lstm", tokenizer="char", steps=3, out=folder / "lstm", settings=small)
        cr.train(folder / "book.txt", model="ngram", tokenizer="word", out=folder / "ngram")
        export(folder / "ngram", folder / "model.arpa", to="arpa")
        shape = {"model": {"embedding": 16, "heads": 2, "layers": 1, "context": 32}}
        options = {"tokenizer": "word", "steps": 3, "settings": shape}
        cr.train(folder / "book.txt", model="transformer", out=folder / "transformer", **options)
    return folder


@pytest.fixture
def at_desk(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a fresh copy of it, where every training has three steps, or one pass where there are no steps."""

    def brief(config: RunConfig, *rest: Any) -> Fitted:
        stepped = MODELS.get(config.model.name).fitting == "gradients"
        budget = {"epochs": None, "steps": 3} if stepped else {"epochs": 1, "steps": None}
        training = config.training.model_copy(update={"minutes": None, **budget})
        return fit(config.model_copy(update={"training": training}), *rest)

    for name in ("book.txt", "test.txt", "model.arpa"):
        shutil.copy(desk / name, tmp_path / name)
    for name, made in (("lstm", "lstm"), ("book", "lstm"), ("ngram", "ngram"), ("transformer", "transformer")):
        shutil.copytree(desk / made, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(desk / "cache"))
    monkeypatch.setattr("chainrule.experiments.train.fit", brief)
    before = dict(MODELS._entries)
    yield
    MODELS._entries.clear()
    MODELS._entries.update(before)


# Code


@pytest.mark.parametrize("snippet", snippets("python"), ids=lambda snippet: snippet.name)
@pytest.mark.usefixtures("at_desk")
def test_python_runs(snippet: Snippet) -> None:
    code = compile(snippet.text, snippet.name, "exec")
    if re.search(r"^(import|from) ", snippet.text, re.MULTILINE):  # without imports it is an excerpt
        names = {"__name__": "snippet"}
        exec(code, names)
        assert set(code.co_names) & set(names), "the snippet ran to its end but left nothing behind"


OF_RUNS = ("eval", "score", "generate", "translate", "compress", "decompress", "export")
LIVE = {
    name
    for entry in MODELS.entries()
    for name, field in entry.make.Config.model_fields.items()
    if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("live")
}
"""Options that can be set of a finished run, of whichever model."""


@pytest.mark.parametrize("line", commands())
def test_command_parses(line: str) -> None:
    words = shlex.split(re.split(r" [|<>] ", line)[0], comments=True)[1:]
    if words[0] == "--help":
        return
    assert words[0] in VERBS, f"no verb '{words[0]}'"
    parsed = VERBS[words[0]].make_context(words[0], _repeat(words[1:], "--prune")).params
    if words[0] in OF_RUNS:
        assert set(parse_settings(parsed.get("settings") or []).get("model", {})) <= LIVE
        return
    default = "ngram" if words[0] in ("count", "merge") else "lstm"
    for contender in parse_contenders(parsed.get("models") or parsed.get("model") or default):
        _check_options(contender, parsed)


def _check_options(contender: Contender, parsed: dict[str, Any]) -> None:
    """Every option of a command, named, in brackets or by `--set`, is one that its model and the others have."""
    own = {name: parsed.get(name) or None for name in ("order", "smoothing", "prune", "quantize")}
    named = {
        "model": {"name": contender.model, **own, **contender.options},
        "output": {"name": contender.output or parsed.get("output")},
        "objective": {"name": parsed.get("objective")},
        "training": {"memory": parsed.get("memory")},
    }
    config = make_config(None, named, parse_settings(parsed.get("settings") or []))
    for registry, section in ((MODELS, config.model), (OUTPUTS, config.output), (OBJECTIVES, config.objective)):
        parse(registry.get(section.name).make.Config, section.options)


@pytest.mark.parametrize("snippet", snippets("toml"), ids=lambda snippet: snippet.name)
def test_toml_is_a_configuration(snippet: Snippet, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(snippet.text, encoding="utf-8")
    if "contenders" in tomllib.loads(snippet.text):
        for entry in read_recipe(file)[1]:
            parse(MODELS.get(entry.model["name"]).make.Config, {k: v for k, v in entry.model.items() if k != "name"})
        return
    config = make_config(file, {}, {})
    recipe = "parts" in config.model.options  # for a mixture: its parts have models of their own
    parse(MixtureRecipe if recipe else MODELS.get(config.model.name).make.Config, config.model.options, "model")
    understood = config.model_dump(mode="json")
    for section, options in tomllib.loads(snippet.text).items():
        for name, value in options.items() if isinstance(options, dict) else ():
            assert understood[section][name] == value


# Links and words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(file), f"{page.name} links to {target}"


def _anchors(page: Path) -> set[str]:
    """Anchors of the headings, and of what the page documents from the source (`::: chainrule.api.train`)."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(DOCUMENTED.findall(text))


def test_what_the_api_pages_document_exists() -> None:
    names = [name for page in PAGES for name in DOCUMENTED.findall(page.read_text(encoding="utf-8"))]
    assert len(names) > 10
    for name in names:
        assert pkgutil.resolve_name(name).__doc__, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_exist(page: Path) -> None:
    """A path into the source tree that a page names is there."""
    for name in re.findall(r"`((?:src/chainrule|examples|tests|docs)/[\w./-]+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_seed_files_exist() -> None:
    rows = re.findall(r"^\|(.+)\|$", (ROOT / "docs/seeds.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", row)}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / "src/chainrule" / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_are_relative(page: Path) -> None:
    assert not re.search(r"(?<![\w.~:/])/(?:home|work|tmp|root|Users)/", page.read_text(encoding="utf-8"))


# Nothing left out


def _page(*parts: str) -> str:
    return ROOT.joinpath("docs", *parts).read_text(encoding="utf-8")


def _missing(options: type[BaseModel], page: str, without: type[BaseModel] | None = None) -> list[str]:
    """Options that are in no table of a page."""
    shared = {name: (field.default, field.description) for name, field in (without or Section).model_fields.items()}
    written = {name: (field.default, field.description) for name, field in options.model_fields.items()}
    new = sorted(name for name in written if written[name] != shared.get(name))
    return [name for name in new if f"| `{name}` |" not in page]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_its_page_with_every_option(verb: str) -> None:
    page = _page("verbs", f"{verb}.md")
    assert page.startswith(f"# chainrule {verb}\n")
    flags = [flag for option in VERBS[verb].params for flag in [*option.opts, *option.secondary_opts] if flag[0] == "-"]
    assert [flag for flag in flags if f"`{flag}`" not in page] == []
    assert f"verbs/{verb}.md" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("entry", MODELS.entries(), ids=lambda entry: entry.name)
def test_every_model_stands_on_the_page_of_its_family(entry: Any) -> None:
    page = _page("models", f"{entry.family}.md")
    assert f"`{entry.name}`" in page
    assert _missing(entry.make.Config, page, without=LanguageModelConfig) == []


def test_every_option_is_on_the_configuration_page() -> None:
    page = _page("configuration.md")
    for section in (DataConfig, TokenizerConfig, TrainingConfig, DecodingConfig, Recipe, LanguageModelConfig):
        assert _missing(section, page) == []
    assert [name for name in RunConfig.model_fields if f"`{name}`" not in page] == []


def test_every_default_is_correct() -> None:
    """The default column of the tables against the records themselves."""
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]+\| ([^|]+) \|", _page("configuration.md"), re.MULTILINE))
    for section in (DataConfig, TokenizerConfig, TrainingConfig, DecodingConfig, LanguageModelConfig):
        for name, field in section.model_fields.items():
            written = {"memory": "no bound"}.get(name) or _written(field.default)
            assert rows[name].replace(",", "") == written, name


def _written(default: Any) -> str:
    """How a default is written in a table."""
    if default is None:
        return "chosen"
    if isinstance(default, bool | tuple):
        return "`[]`" if default == () else f"`{str(default).lower()}`"
    return (
        f'`"{default}"`' if isinstance(default, str) else f"{default:g}" if isinstance(default, float) else str(default)
    )


def test_every_output_layer_and_objective_is_described() -> None:
    outputs, objectives = _page("outputs.md"), _page("objectives.md")
    for entry in OUTPUTS.entries():
        assert f"## `{entry.name}`" in outputs
        assert _missing(entry.make.Config, outputs) == []
    for entry in OBJECTIVES.entries():
        assert f"`{entry.name}`" in objectives
        assert _missing(entry.make.Config, objectives) == []


def test_every_tokenizer_is_described() -> None:
    from_files = {"huggingface", "sentencepiece"}
    page = _page("tokenizers.md")
    assert [name for name in TOKENIZERS.names() if name not in from_files and f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(("verb", "record"), [("eval", cr.Evaluation), ("compare", Row)])
def test_json_keys_are_written(verb: str, record: Any) -> None:
    page = _page("verbs", f"{verb}.md")
    assert [field.name for field in dataclasses.fields(record) if f"`{field.name}`" not in page] == []


def test_contributing_shows_the_example() -> None:
    """The model in CONTRIBUTING.md is the one that the tests run, and has at most 40 lines."""
    shown = next(snippet for snippet in snippets("python") if snippet.page.name == "CONTRIBUTING.md").text
    assert shown in (ROOT / "examples/add_a_model.py").read_text(encoding="utf-8")
    assert len(shown.splitlines()) <= 40
