"""The `vllm-mm` command."""

from typing import Annotated

import typer

from vllm_mm.cli import (
    audit,
    bench,
    chat,
    database,
    declarations,
    devices,
    doctor,
    importing,
    keys,
    models,
    profiles,
    requests,
    serving,
    settings,
    simulate,
    usage,
    watch,
    weights,
)
from vllm_mm.cli.options import Serve
from vllm_mm.cli.server import DEFAULT_URL, Server

HELP = """Serve many models behind one endpoint, loaded on demand.

Exit codes: 0 done, 1 failed, 2 usage, 3 server unreachable, 4 refused, 5 not found.
"""


def build(serve: Serve) -> typer.Typer:
    """The command line; `serve` runs the server and comes from the composition root."""
    # Plain help: rich would double the time that it takes.
    app = typer.Typer(
        name="vllm-mm", help=HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
        epilog="Example: vllm-mm serve",
    )  # fmt: skip

    @app.callback()
    def root(
        context: typer.Context,
        url: Annotated[str, typer.Option("--url", envvar="VLLM_MM_URL", help="The server.")] = DEFAULT_URL,
        token: Annotated[
            str | None,
            typer.Option("--token", envvar="VLLM_MM_TOKEN", show_envvar=True, help="A key; better in the environment."),
        ] = None,
    ) -> None:
        server = Server(url.rstrip("/"), token or None)
        context.call_on_close(server.close)
        context.obj = server

    _ = root
    serving.add_to(app, serve)
    chat.add_to(app)
    bench.add_to(app)
    models.add_to(app)
    declarations.add_to(app)
    weights.add_to(app)
    watch.add_to(app)
    devices.add_to(app)
    app.add_typer(keys.app(), name="keys")
    app.add_typer(profiles.app(), name="profile")
    app.add_typer(requests.app(), name="requests")
    usage.add_to(app)
    audit.add_to(app)
    settings.add_to(app)
    doctor.add_to(app)
    simulate.add_to(app)
    app.add_typer(database.app(), name="db")
    app.add_typer(importing.app(), name="import")
    return app
