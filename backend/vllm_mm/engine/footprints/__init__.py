"""How much memory each model takes: `book` knows it, `files` reads it off the model's files, `setup` off its arguments, and
`sample` off a running engine."""

from vllm_mm.engine.footprints.book import Footprints

__all__ = ["Footprints"]
