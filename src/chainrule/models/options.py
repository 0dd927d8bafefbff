"""Marks on the options of models."""

from __future__ import annotations

from pydantic import JsonValue

LIVE: dict[str, JsonValue] = {"live": True}
"""`json_schema_extra` of an option on which no weight depends, so that it can be changed in a trained model."""
