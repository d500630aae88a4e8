"""What real vLLM answered to each of the generated requests: the status by model and name, for tests without it."""

import json
from collections.abc import Mapping
from pathlib import Path

_FILE = Path(__file__).parent / "fixtures" / "vllm-statuses.json"
STATUSES: Mapping[str, Mapping[str, int]] = json.loads(_FILE.read_text()) if _FILE.is_file() else {}


def record(statuses: Mapping[str, Mapping[str, int]]) -> None:
    """Write them anew."""
    _FILE.write_text(json.dumps(statuses, indent=0, ensure_ascii=False) + "\n")
