"""vllm-mm: one endpoint in front of many models on your own GPUs."""

__version__ = "0.1.0"
