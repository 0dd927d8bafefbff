"""N-grams on Apache Spark: `windows` counts a column into count files, `estimate` smooths with aggregations."""
