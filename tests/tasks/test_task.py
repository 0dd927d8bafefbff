"""What a task decides from the names of models and data files."""

from __future__ import annotations

from chainrule.tasks.task import form_for_data


def test_a_model_of_two_forms_takes_the_one_that_fits_the_data() -> None:
    assert form_for_data("at", ["book.txt"]) == "at"
    assert form_for_data("at", ["train.en", "train.de"]) == form_for_data("at", ["pairs.tsv"]) == "seq2seq-at"
    assert form_for_data("hybrid", ["train.en", "train.de"]) == form_for_data("hybrid", ["pairs.jsonl"]) == "hybrid"
    assert form_for_data("hybrid", ["book.txt"]) == form_for_data("hybrid", ["a.txt", "b.txt", "c.txt"]) == "hybrid-lm"
    assert form_for_data("seq2seq-at", ["book.txt"]) == "at"
    assert form_for_data("lstm", ["train.en", "train.de"]) == "lstm"  # it has one form; training then refuses the files
    assert form_for_data("at", []) == "at"
