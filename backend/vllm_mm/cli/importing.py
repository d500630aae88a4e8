"""`import llama-swap FILE`: another program's configuration in our words."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import Json
from vllm_mm.cli.output import count, print_json


def app() -> typer.Typer:
    imports = typer.Typer(
        help="Take over the configuration of another program.", no_args_is_help=True, rich_markup_mode=None
    )
    # A callback keeps the name of the only command.
    imports.callback()(lambda: None)
    imports.command("llama-swap", epilog="Example: vllm-mm import llama-swap config.yaml -o vllm-mm.yaml")(llama_swap)
    return imports


def llama_swap(
    file: Annotated[Path, typer.Argument(help="A configuration file of llama-swap.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to make, which must not exist; else it is printed.")
    ] = None,
    json: Json = False,
) -> None:
    """Turn a configuration of llama-swap into one of this server, and say what could not be carried over."""
    import yaml  # noqa: PLC0415  # only here

    from vllm_mm.settings.llama_swap import convert, lines  # noqa: PLC0415  # as above

    try:
        document: Any = yaml.safe_load(file.read_text())
        done = convert(cast("dict[str, Any]", document) if isinstance(document, dict) else {})
    except OSError as error:
        fail(
            f"{file} cannot be read: {error.strerror}",
            Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.FAILED,
        )
    except UnicodeDecodeError:
        fail(f"{file} is no text")
    except yaml.YAMLError as error:
        fail(f"{file} is not YAML: {error}")
    except ValueError as error:
        fail(f"{file}: {error}")
    if json:
        print_json({"config": done.config, "notes": done.notes})
        return
    body: str = yaml.safe_dump(done.config, sort_keys=False, allow_unicode=True, width=120)  # pyright: ignore[reportUnknownMemberType]  # its stubs say Unknown
    if output is None:
        typer.echo(body.rstrip())
        for note in done.notes:
            typer.echo(f"note: {note}", err=True)
        return
    head = [f"# From {file.name}, a configuration of llama-swap. What could not be carried over:", *lines(done)]
    try:
        with output.open("x") as made:
            made.write("\n".join(head) + "\n" + body if done.notes else body)
    except OSError as error:
        fail(f"{output} cannot be made: {error.strerror}")
    typer.echo(
        f"{output}: made, with {count(len(done.config['models']), 'model')} and {count(len(done.notes), 'note')} at its head. "
        f"`vllm-mm validate {output}` checks it."
    )
