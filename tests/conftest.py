"""Options of the whole suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-full", action="store_true", default=False,
        help="real vLLM: every kill in every state and the embedding model too, not only the part that CI has time for",
    )  # fmt: skip
