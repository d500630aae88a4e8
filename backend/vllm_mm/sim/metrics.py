"""Counters in vLLM's names, in Prometheus' text form."""

from collections import Counter
from dataclasses import dataclass, field

from vllm_mm.sim.client import Stats

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


@dataclass(slots=True)
class Histogram:
    """Cumulative buckets of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * len(_SECONDS))
    count: int = 0
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.count += 1
        self.total += seconds
        for index, bound in enumerate(_SECONDS):
            if seconds <= bound:
                self.counts[index] += 1
                return

    def lines(self, name: str, labels: str) -> list[str]:
        """The sample lines."""
        so_far = 0
        out: list[str] = []
        for bound, count in zip(_SECONDS, self.counts, strict=True):
            so_far += count
            out.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(so_far)}')
        out.append(f'{name}_bucket{{{labels},le="+Inf"}} {float(self.count)}')
        out.append(f"{name}_count{{{labels}}} {float(self.count)}")
        out.append(f"{name}_sum{{{labels}}} {self.total}")
        return out


@dataclass(slots=True)
class Metrics:
    """What the API server counts itself; the rest comes from the core."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    success: Counter[str] = field(default_factory=Counter[str])
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)

    def first_token(self, seconds: float) -> None:
        """A first token came this long after its request."""
        self.ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A further token came this long after the one before."""
        self.itl.observe(seconds)

    def finished(self, reason: str, seconds: float) -> None:
        """A request ended by itself."""
        self.success[reason] += 1
        self.e2e.observe(seconds)

    def render(self, stats: Stats, model: str) -> str:
        """The text of /metrics."""
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{escaped}"'
        out: list[str] = []

        def add(name: str, kind: str, text: str, *samples: str) -> None:
            out.extend((f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}", *samples))

        def one(name: str, kind: str, text: str, value: float) -> None:
            add(name, kind, text, f"vllm:{name}{{{labels}}} {float(value)}")

        one("num_requests_running", "gauge", "Number of requests in model execution batches.", stats.running)
        one("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", stats.waiting)
        one("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", stats.kv_usage)
        add(
            "engine_sleep_state",
            "gauge",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            *(
                f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {float(level == stats.sleep_level)}'
                for level, state in enumerate(_SLEEP_STATES)
            ),
        )
        one("prompt_tokens_total", "counter", "Number of prefill tokens processed.", self.prompt_tokens)
        one("generation_tokens_total", "counter", "Number of generation tokens processed.", self.generation_tokens)
        one("prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", self.prefix_cache_queries)
        one("prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", 0)
        one("num_preemptions_total", "counter", "Cumulative number of preemptions.", stats.preemptions)
        add(
            "request_success_total",
            "counter",
            "Count of successfully processed requests.",
            *(
                f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(self.success[reason])}'
                for reason in ("stop", "length", "abort", "error")
            ),
        )
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Time to first token.", self.ttft),
            ("inter_token_latency_seconds", "Inter-token latency.", self.itl),
            ("e2e_request_latency_seconds", "End-to-end request latency.", self.e2e),
            ("request_queue_time_seconds", "Time spent waiting.", Histogram()),
        ):
            add(name, "histogram", text, *histogram.lines(f"vllm:{name}", labels))
        return "\n".join(out) + "\n"
