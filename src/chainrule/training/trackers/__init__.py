"""Trackers: programs that draw the metrics of trainings. They mirror metrics.jsonl, which stays the truth."""
