"""Figures for Prometheus. Labels are run, route, status and reason: nothing that a client sends."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests answered.", "route", "code")
        self.finished = self._counter("request_success", "Texts generated, by the reason they end.", "finished_reason")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.", "model")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.", "model")
        self.running = self._gauge("num_requests_running", "Requests being computed.")
        self.waiting = self._gauge("num_requests_waiting", "Requests in the queue.")
        self.rows = self._gauge("num_texts_running", "Texts being generated.")
        self.loaded = self._gauge("runs_loaded", "Runs in memory.")
        self.latency = self._histogram("e2e_request_latency_seconds", "Time of a request.", SECONDS, "route")
        self.first_token = self._histogram("time_to_first_token_seconds", "Time to the first token.", SECONDS)
        self.queue_time = self._histogram("request_queue_time_seconds", "Time in the queue.", SECONDS)
        self.prompt_size = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self.text_size = self._histogram("request_generation_tokens", "Tokens generated for a request.", TOKENS)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"chainrule_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"chainrule_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"chainrule_{name}", text, labels, registry=self.registry, buckets=buckets)

    def page(self) -> bytes:
        """All figures in the text format 0.0.4."""
        return generate_latest(self.registry)
