"""What one request may ask for, and how much may wait."""

from __future__ import annotations

from dataclasses import dataclass

from chainrule.server.errors import ApiError, invalid


@dataclass(frozen=True)
class Limits:
    """The limits of a server. A request beyond them is refused before any work."""

    body: int = 10_000_000  # bytes of a request
    body_seconds: float = 30.0  # time to send it
    prompts: int = 2048  # prompts or lines of a request
    prompt_tokens: int = 32_768  # of each prompt or line
    tokens: int = 4096  # max_tokens; also of each line that is translated
    n: int = 16  # n, best_of and alternatives
    beams: int = 16
    logprobs: int = 20
    seconds: float = 300.0  # from the arrival of a request to its answer
    rows: int = 32  # texts that are generated at the same time
    queue: int = 64  # requests that wait
    queue_tokens: int = 1_000_000  # tokens of the requests that wait: prompts and max_tokens

    def check(self, name: str, value: int, most: int) -> None:
        """Refuse a value above a limit."""
        if value > most:
            raise invalid(f"{name} is {value}; this server allows at most {most}", name, "above_limit")

    def check_prompts(self, name: str, lengths: list[int]) -> None:
        """Refuse too many prompts, and prompts that are too long."""
        if len(lengths) > self.prompts:
            raise invalid(
                f"{name} has {len(lengths)} entries; this server allows at most {self.prompts}: send several requests",
                name,
                "above_limit",
            )
        longest = max(lengths, default=0)
        if longest > self.prompt_tokens:
            raise invalid(
                f"{name} has {longest} tokens; this server allows at most {self.prompt_tokens}: shorten it",
                name,
                "above_limit",
            )

    def check_lines(self, name: str, lengths: list[int], most: int) -> None:
        """Refuse lines with too many tokens."""
        longest = max(lengths, default=0)
        if longest > most:
            raise invalid(
                f"{name} has a line of {longest} tokens; this server allows at most {most}: divide it",
                name,
                "above_limit",
            )

    def too_large(self) -> ApiError:
        """The error for a body above the limit."""
        return ApiError(413, f"the request is larger than {self.body} bytes; send less at once", code="above_limit")
