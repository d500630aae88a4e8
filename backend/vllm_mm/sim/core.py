"""The engine core: a process of its own (`VLLM::EngineCore`) that loads, holds the memory, and runs the batch.

It talks to the API server over a socket pair, one JSON object a line:

    to the core     {"add": ID, "prompt": TOKENS, "total": TOKENS} | {"abort": [ID, ...]} | {"call": N, "method": ..., ...}
    from the core   {"ready": true} | {"tokens": [[ID, COUNT], ...], "finished": [ID, ...], "aborted": [ID, ...]}
                    {"return": N, "value": ...} | {"return": N, "error": MESSAGE}

Every message from the core carries its counters as "stats": running, waiting, KV use, preemptions, garbled, sleep level.
When the API server is gone the core stays and keeps its memory, as vLLM's does; TERM ends it, and so does the death of a worker.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from vllm_mm.sim import ledger
from vllm_mm.sim.batch import Batch, Output, Sequence, Speed
from vllm_mm.sim.loading import kv_tokens
from vllm_mm.sim.log import Log
from vllm_mm.sim.memory import Memory
from vllm_mm.sim.options import Options
from vllm_mm.sim.workers import Workers

_LOOK = 3600.0
"""Seconds of one wait for the death of a worker; any number would do."""
_DROP_WEIGHTS = 0.02
"""Seconds that sleep at level 2 takes: nothing is copied."""


def hang() -> NoReturn:
    """Do nothing for ever."""
    while True:
        signal.pause()


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


@dataclass(slots=True)
class _Operation:
    """A call that takes time. It begins when the batch is empty (if it waits for that) and ends `seconds` later."""

    call: int
    begin: Callable[[], float]
    """Does it; returns the seconds that it takes. Raises ledger.DoesNotFitError or _RefusedError."""
    end: Callable[[], Any]
    when_empty: bool = False
    due: float | None = None


class _RefusedError(Exception):
    """A call that cannot be done; the message goes to the caller."""


class EngineCore:
    """The core after its load."""

    def __init__(self, options: Options, log: Log, memory: Memory, workers: Workers, line: socket.socket) -> None:
        profile = options.profile
        self._options = options
        self._log = log
        self._memory = memory
        self._workers = workers
        self._line = line
        self._faults = profile.fault
        self._batch = Batch(
            Speed(
                tokens_per_second=profile.tokens_per_second,
                batch_slowdown=profile.batch_slowdown,
                prefill_tokens_per_second=profile.prefill_tokens_per_second,
                max_num_seqs=profile.max_num_seqs,
                max_num_batched_tokens=profile.max_num_batched_tokens,
                kv_tokens=kv_tokens(options),
            )
        )
        self._inbox = b""
        self._operations: deque[_Operation] = deque()
        self._paused = False
        self._level = 0
        self._asleep = False
        self._resident = {"weights", "kv_cache"}
        self._weights_valid = True
        self._lies = False
        self._tokens_left = profile.fault.crash_after_tokens

    def serve(self) -> int:
        """Until SIGTERM, or the death of a worker; returns the exit code."""
        try:
            if not self._faults.ignore_term:
                signal.signal(signal.SIGTERM, _exit)
            self._send({"ready": True})
            while self._turn():
                pass
            while not self._workers.dead(_LOOK):  # the API server is gone: vLLM's core stays
                pass
            self._workers.shut_down(self._log)
        except SystemExit:
            self._workers.end()
            return 0
        self._log.alarm("core.py:1491", "EngineCore encountered a fatal error.\nRuntimeError: Executor failed.")
        return 1

    def _turn(self) -> bool:
        """One round of the loop; False when the line is closed, or a worker has died."""
        now = time.monotonic()
        if not self._faults.hang_requests:
            self._emit(self._batch.poll(now))
        self._operate(now)
        readable, _, _ = select.select([self._line, *self._workers.descriptors], [], [], self._timeout())
        if any(descriptor is not self._line for descriptor in readable):
            return False
        return self._receive() if readable else True

    def _timeout(self) -> float | None:
        dues = [] if self._faults.hang_requests else [self._batch.due()]
        if self._operations:
            dues.append(self._operations[0].due)
        times = [due for due in dues if due is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _receive(self) -> bool:
        try:
            data = self._line.recv(1 << 20)
        except ConnectionError:
            return False
        if not data:
            return False
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for text in lines:
            message: dict[str, Any] = json.loads(text)
            now = time.monotonic()
            if "add" in message:
                self._batch.add(Sequence(message["add"], message["prompt"], message["total"]), now)
            elif "abort" in message:
                self._batch.abort(message["abort"], now)
            else:
                self._call(message)
        self._operate(time.monotonic())
        self._send({})
        return True

    def _send(self, message: dict[str, Any]) -> bool:
        waiting = self._batch.waiting if self._batch.admitting else 0  # a held queue is silent
        message["stats"] = [
            self._batch.told_running,
            waiting,
            round(self._batch.kv_usage, 6),
            self._batch.preemptions,
            self._lies or not self._weights_valid,
            self._level,
        ]
        try:
            self._line.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError:
            return False
        return True

    def _emit(self, output: Output) -> None:
        if not output:
            return
        if self._tokens_left is not None:
            self._tokens_left -= sum(output.tokens.values())
            if self._tokens_left <= 0:
                self._log.alarm("core.py:1491", "EngineCore encountered a fatal error.\nRuntimeError: simulated crash")
                os._exit(1)
        self._send({"tokens": list(output.tokens.items()), "finished": output.finished})

    # Calls

    def _call(self, message: dict[str, Any]) -> None:
        number: int = message["call"]
        match message["method"]:
            case "sleep":
                self._sleep(number, message["level"], message["mode"])
            case "wake_up":
                tags: set[str] = set(message["tags"] or ("weights", "kv_cache", "scheduling"))
                self._operations.append(_Operation(number, lambda: self._wake(tags), self._awake))
            case "pause":
                self._hold(message["mode"])
                self._operations.append(
                    _Operation(number, lambda: 0.0, self._set_paused, when_empty=message["mode"] == "wait")
                )
            case "resume":
                self._paused = False
                self._go_on()
                self._return(number, None)
            case "is_sleeping":
                self._return(number, self._asleep)
            case "is_paused":
                self._return(number, self._paused or self._asleep)
            case "reload_weights":
                self._operations.append(_Operation(number, self._reload, self._reloaded))
            case "fault":
                self._set_faults(message["texts"])
                self._return(number, None)
            case method:
                self._return(number, None, error=f"Method '{method}' is not implemented.")

    def _return(self, number: int, value: object, *, error: str | None = None) -> None:
        self._send({"return": number, "value": value} if error is None else {"return": number, "error": error})

    def _operate(self, now: float) -> None:
        """Begin and end the calls that take time, one after the other."""
        while self._operations:
            operation = self._operations[0]
            try:
                if operation.due is None:
                    if operation.when_empty and self._batch.running:
                        return
                    operation.due = now + operation.begin()
                if operation.due > now:
                    return
                self._operations.popleft()
                self._return(operation.call, operation.end())
            except ledger.DoesNotFitError as error:
                self._operations.popleft()
                self._return(operation.call, None, error=self._memory.out_of_memory(error))
            except _RefusedError as error:
                self._operations.popleft()
                self._return(operation.call, None, error=str(error))

    def _hold(self, mode: str, *, drop_cache: bool = True) -> None:
        """Stop admitting; what runs is aborted, finished (wait) or frozen (keep)."""
        if mode == "keep":
            self._batch.freeze(drop_cache=drop_cache)
            return
        if mode == "abort":
            aborted = self._batch.abort_all(time.monotonic())
            if aborted:
                self._send({"aborted": aborted})
        self._batch.admitting = False

    def _go_on(self) -> None:
        if not self._paused and not self._asleep:
            self._batch.thaw(time.monotonic())

    def _set_paused(self) -> None:
        self._paused = True

    def _sleep(self, number: int, level: int, mode: str) -> None:
        self._hold(mode, drop_cache=level > 0)

        def begin() -> float:
            frees = self._options.enable_sleep_mode and level > 0 and not self._faults.lie_sleep
            already = not self._resident
            if not frees or already:
                return 0.0
            self._resident.clear()
            if level == 2:
                self._weights_valid = False
                return _DROP_WEIGHTS
            return self._options.profile.weights / self._options.profile.sleep_bandwidth

        def end() -> None:
            if not self._resident:
                self._memory.hold(weights=False, kv_cache=False)
            self._asleep = True
            self._level = level
            self._log.note("gpu_worker.py:184", f"Sleep mode level {level}: memory given back.")

        self._operations.append(_Operation(number, begin, end, when_empty=mode == "wait"))

    def _wake(self, tags: set[str]) -> float:
        if self._faults.refuse_wake:
            raise _RefusedError("simulated failure of wake_up")
        wanted = self._resident | (tags & {"weights", "kv_cache"})
        new = wanted - self._resident
        self._memory.hold(weights="weights" in wanted, kv_cache="kv_cache" in wanted)
        self._resident = wanted
        copied = "weights" in new and self._level == 1
        return self._options.profile.weights / self._options.profile.sleep_bandwidth if copied else 0.0

    def _awake(self) -> bool:
        if self._resident != {"weights", "kv_cache"}:
            return False
        self._asleep = False
        self._paused = False
        self._level = 0
        self._lies = self._faults.lie_wake
        self._go_on()
        return True

    def _reload(self) -> float:
        if "weights" not in self._resident:
            raise _RefusedError(
                "CUDA error: an illegal memory access was encountered: the weights are not on the device"
            )
        return self._options.profile.weights / self._options.profile.load_bandwidth

    def _reloaded(self) -> None:
        self._weights_valid = True

    def _set_faults(self, texts: list[str]) -> None:
        from vllm_mm.vocabulary.faults import parse_faults  # noqa: PLC0415 - only when faults change

        self._faults = parse_faults(texts)
        self._tokens_left = self._faults.crash_after_tokens
        self._lies = self._lies and self._faults.lie_wake
        if self._faults.leave_session and os.getsid(0) != os.getpid():
            os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN if self._faults.ignore_term else _exit)
