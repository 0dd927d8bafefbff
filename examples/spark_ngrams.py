"""An n-gram model of text files on Apache Spark, for spark-submit.

    spark-submit examples/spark_ngrams.py corpus/*.txt --tokenizer tokenizer --out runs/ngram

Counts are shuffled and sorted by Spark, and the smoothing is made of its aggregations. Folders are on a disk that the
driver and all workers share. The tokeniser comes from `chainrule merge --vocabulary`, from a run, or is "byte".
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

import chainrule.spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="text files, one line per row")
    parser.add_argument("--tokenizer", required=True, help="file or folder of a tokeniser of words")
    parser.add_argument("--order", type=int, default=5, help="length of the n-grams (default: %(default)s)")
    parser.add_argument("--prune", type=int, nargs="*", default=[], help="drop n-grams that occur at most N times")
    parser.add_argument("--counts", type=Path, help="folder of the counts (default: beside the run)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    options = parser.parse_args()
    session = SparkSession.builder.appName("n-grams").getOrCreate()
    lines = session.read.text(options.text)
    counts = options.counts or options.out.with_name(f"{options.out.name}-counts")
    known = {"tokenizer": options.tokenizer, "order": options.order, "across_lines": False}
    counted = chainrule.spark.count(lines, column="value", out=counts, **known)
    run = chainrule.spark.estimate(counted.path, session, out=options.out, prune=options.prune)
    assert run is not None
    print(f"{counted.tokens} tokens, {run.parameters} parameters: {options.out}")


if __name__ == "__main__":
    main()
