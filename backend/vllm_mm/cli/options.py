"""Options that several commands share, and those of `serve`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from vllm_mm.cli.completion import model_names


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `vllm-mm serve` was told; None where it was told nothing."""

    config: Path | None = None
    data_dir: Path | None = None
    host: str | None = None
    port: int | None = None
    log_level: str | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """From `--set`: values by dotted key."""

    def overrides(self) -> dict[str, Any]:
        """For `settings.load`: flags by dotted key."""
        given = {
            "paths.data_dir": str(self.data_dir) if self.data_dir is not None else None,
            "server.host": self.host,
            "server.port": self.port,
            "log.level": self.log_level,
        }
        return {**self.settings, **{name: value for name, value in given.items() if value is not None}}


Serve = Callable[[ServeOptions], int]
"""Runs the server; returns the exit code."""

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="VLLM_MM_CONFIG",
        help="Configuration file. Default ./vllm-mm.yaml, then the user's own.",
    ),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where the state is kept.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Model = Annotated[str, typer.Argument(help="Id or alias of a model.", autocompletion=model_names)]
MaybeModel = Annotated[str | None, typer.Argument(help="Id or alias of a model.", autocompletion=model_names)]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once instead of waiting for the end.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait at most.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and say what would change; change nothing.")]
