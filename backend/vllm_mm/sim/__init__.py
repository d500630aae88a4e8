"""The simulated engine: an HTTP server process with vLLM's surface, log, exit codes and process tree, and a model of time and memory.

It is a part of the product: demos, tests of a configuration and rehearsals of a failure run on it without a GPU. Run it
with `python -m vllm_mm.sim MODEL --uds PATH --sim KEY=VALUE ...`; `--help` lists every key and every fault. The facts that it
imitates are those of vLLM 0.32.
"""
