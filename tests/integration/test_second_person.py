"""The README's way from nothing to another person's key, a limit and a report of what was used: its commands, as they stand there."""

import asyncio
import re
import shlex
from pathlib import Path

from cli_rig import Cli
from hard_cases import running, sim

README = Path(__file__).parents[2] / "README.md"
SECTION = README.read_text().partition("## A second person\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(
    r"^\$ (?:(\w+)=(\S+) )?(export \w+=\S+|vllm-mm [^#\n]*?)(?: # exits (\d).*)?$", SECTION, re.MULTILINE
)
WINDOW = 60.0


async def test_from_nothing_to_a_second_persons_key_and_a_report(tmp_path: Path) -> None:
    """With the token that the first start prints and nothing else; each command ends as it says, and the report has her requests."""
    assert len(COMMANDS) == 12
    async with running({"demo": sim(), "other": sim()}, own_devices=True, auth={"mode": "keys"}) as case:
        token = re.search(r"shown this once: (mm-\S+)", case.serving.log)
        assert token is not None
        case.client.headers["authorization"] = f"Bearer {token[1]}"
        cli = Cli(tmp_path, case.url, token=None)
        secrets = {"mm-...": token[1]}
        told: dict[str, str] = {}
        began = asyncio.get_running_loop().time()
        for name, value, command, code in COMMANDS:
            if command.startswith("export "):
                variable, _, text = command.removeprefix("export ").partition("=")
                assert variable == "VLLM_MM_TOKEN"
                cli.token = secrets[text]
                continue
            env = {name: secrets[value]} if name else {}
            result = await cli(*shlex.split(command)[1:], env=env)
            late = (
                asyncio.get_running_loop().time() - began > WINDOW and code == "1"
            )  # her first request does not count any more
            assert result.exit_code == int(code or 0) or late, (command, result.output)
            told[command] = result.output
            if command.startswith("vllm-mm keys create"):
                secrets["mm-grace..."] = result.stdout.split()[-1]
        said = "\n".join(told.values())
        assert "lacks the scope `admin`" in said
        assert "may not use the model `other`" in said or "does not exist" in said
        report = next(text for command, text in told.items() if command.startswith("vllm-mm usage"))
        assert "grace" in report
        assert "demo" in report
        shown = next(text for command, text in told.items() if command.startswith("vllm-mm keys show"))
        assert "of 100,000" in shown
        assert "load, logs" in shown
