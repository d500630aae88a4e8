"""`python -m vllm_mm.main` is `vllm-mm`."""

from vllm_mm.main import run

run()
