"""`serve`, `sim` and `version`: what runs in this process."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vllm_mm.cli.declarations import put
from vllm_mm.cli.options import Config, DataDir, Json, Serve, ServeOptions
from vllm_mm.cli.output import print_json


def add_to(app: typer.Typer, serve: Serve) -> None:
    app.command("serve", epilog="Example: vllm-mm serve --config vllm-mm.yaml --port 8000")(_serve_with(serve))
    app.command(
        "sim",
        epilog="Example: vllm-mm sim demo --port 9000 --sim tokens_per_second=50",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )(sim)
    app.command("version", epilog="Example: vllm-mm version")(version)


def _serve_with(serve: Serve) -> Any:
    def command(
        config: Config = None,
        data_dir: DataDir = None,
        host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
        port: Annotated[
            int | None, typer.Option("--port", min=0, max=65535, help="TCP port; 0 takes a free one.")
        ] = None,
        log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")] = None,
        settings: Annotated[
            list[str] | None,
            typer.Option("--set", help="Any setting, such as queue.max_wait=60s; may be repeated."),
        ] = None,
    ) -> None:
        """Serve the models of the configuration until SIGTERM or Ctrl-C."""
        values: dict[str, Any] = {}
        for setting in settings or ():
            # Kept by dotted key: the configuration lays flags over what else is in a section.
            nested: dict[str, Any] = {}
            put(nested, setting)
            key = setting.partition("=")[0]
            value: Any = nested
            for part in key.split("."):
                value = value[part]
            values[key] = value
        raise typer.Exit(serve(ServeOptions(_path(config), _path(data_dir), host, port, log_level, values)))

    return command


def _path(path: Path | None) -> Path | None:
    return path.expanduser() if path is not None else None


def sim(context: typer.Context) -> None:
    """Run one simulated engine, for tests and rehearsals. Its own --help lists every key and fault."""
    from vllm_mm.sim.launch import main  # noqa: PLC0415  # only here

    sys.exit(main(context.args))


def version(json: Json = False) -> None:
    """Print the version."""
    from vllm_mm import __version__  # noqa: PLC0415  # beside the only use

    if json:
        print_json({"version": __version__})
    else:
        typer.echo(f"vllm-mm {__version__}")
