"""Configurations: TOML files, the precedence of options, error messages, and the options chosen by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.base.devices import choose_device, physical_cores
from chainrule.config import (
    DataConfig,
    NamedSection,
    Recipe,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    merge,
    parse,
    parse_bytes,
    parse_settings,
    read_toml,
    write_toml,
)
from chainrule.errors import ConfigError
from chainrule.tasks.presets import resolve
from chainrule.tasks.task import CorpusSize, task_of
from chainrule.text.tokenizers.fit import choose_tokenizer
from chainrule.training.request import make_config


def test_a_configuration_written_and_read_is_the_same(tmp_path: Path) -> None:
    values = {
        "seed": 7,
        "data": {"train": ["a.txt", "b"], "held_out": 0.1},
        "model": {"name": "gru", "hidden": 12},
        "training": {"minutes": 1.5, "optimizer": "muon", "lr": 0.01},
    }
    config = parse(RunConfig, values)
    (tmp_path / "config.toml").write_text(write_toml(config))
    assert parse(RunConfig, read_toml(tmp_path / "config.toml")) == config
    assert config.model.options == {"hidden": 12}


def test_settings_are_nested_and_typed() -> None:
    read = parse_settings(["model.hidden=200", "model.tied=false", "training.lr=1e-3", "model.name=gru", "seed=3"])
    assert read == {"model": {"hidden": 200, "tied": False, "name": "gru"}, "training": {"lr": 0.001}, "seed": 3}
    assert parse_settings(["output.cutoffs=[2, 5]"]) == {"output": {"cutoffs": [2, 5]}}


def test_settings_win_over_named_options_and_these_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('seed = 4\n[model]\nname = "gru"\nhidden = 5\nembedding = 6\n')
    named = {"seed": None, "model": {"name": "rnn"}, "training": {"steps": 9, "minutes": None}}
    config = make_config(tmp_path / "recipe.toml", named, {"model": {"hidden": 7}})
    assert (config.seed, config.model.name, config.training.steps) == (4, "rnn", 9)
    assert config.model.options == {"hidden": 7, "embedding": 6}
    assert (config.output.name, config.objective.name) == ("softmax", "likelihood")
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "d": {"e": 5}}) == {
        "a": {"b": 4, "c": 2},
        "d": {"e": 5},
    }


def test_every_option_has_a_description() -> None:
    sections = [RunConfig, DataConfig, TokenizerConfig, NamedSection, TrainingConfig, Recipe]
    fields = [(section, name, field) for section in sections for name, field in section.model_fields.items()]
    assert [(section, name) for section, name, field in fields if not field.description] == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"training": {"lr": 0}}, "training.lr = 0: input should be greater than 0"),
        ({"training": {"steps": "many"}}, "training.steps = 'many': input should be a valid integer, unable to parse"),
        ({"sed": 1}, "unknown option 'sed': did you mean 'seed'?"),
        ({"data": {"feild": "x"}}, "unknown option 'data.feild': did you mean 'data.field'?"),
    ],
)
def test_an_invalid_value_has_a_one_line_message(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(RunConfig, values)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_presets_keep_given_options_and_choose_the_others() -> None:
    given = parse(RunConfig, {"model": {"name": "lstm", "hidden": 33}, "training": {"steps": 5, "length": 11}})
    chosen = resolve(given, task_of(given), size := CorpusSize(10_000, 60))
    assert (chosen.model.options["hidden"], chosen.training.length, chosen.training.steps) == (33, 11, 5)
    assert chosen.training.batching == "stream"
    assert None not in (chosen.training.batch_size, chosen.training.lr)
    assert (chosen.training.minutes, chosen.training.epochs) == (None, None)
    windowed = parse(RunConfig, {"model": {"name": "transformer"}})
    assert resolve(windowed, task_of(windowed), size).training.batching == "blocks"
    without_budget = parse(RunConfig, {})
    assert resolve(without_budget, task_of(without_budget), size).training.minutes is not None


def test_the_tokeniser_is_chosen_from_the_text() -> None:
    def kind(sample: str, size: int) -> str | None:
        return choose_tokenizer(RunConfig().tokenizer, sample, size).kind

    assert kind("the <unk> sat", 5_000_000) == "word"
    assert kind("白日依山盡黃河入海流", 5_000_000) == "char"
    assert kind("plain prose", 10_000) == "char"
    assert kind("plain prose", 5_000_000) == "bpe"


def test_an_unknown_device_is_an_error() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ConfigError) as caught:
        choose_device("gpu")
    assert str(caught.value) == "training.device = 'gpu' is not a device; use auto, cpu, cuda or mps"


def test_the_environment_sets_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert physical_cores() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert physical_cores() >= 1


@pytest.mark.parametrize(("text", "size"), [("64K", 1 << 16), (" 2.5 gb", 5 << 29), ("4096", 4096), ("1T", 1 << 40)])
def test_sizes_in_bytes(text: str, size: int) -> None:
    assert parse_bytes(text, "memory") == size


@pytest.mark.parametrize("text", ["", "much", "1e400", "inf", "-1", "9" * 400 + "G", "1KK", "1.G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"memory is '.*'; expected a number of bytes, for example 1G"):
        parse_bytes(text, "memory")
