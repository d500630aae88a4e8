"""`python -m vllm_mm.sim`."""

import sys

from vllm_mm.sim.launch import main

if __name__ == "__main__":
    sys.exit(main())
