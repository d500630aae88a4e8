"""Domain objects in the words of the API."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from vllm_mm.api.change_schemas import FieldChangeOut, FitOut, ModelChangeOut
from vllm_mm.api.plan_schemas import PlanOut, StoppedOut, VictimOut
from vllm_mm.api.schemas import (
    AccuracyOut,
    DeviceLeaseOut,
    DeviceOut,
    DeviceWishOut,
    EvictedOut,
    FootprintOut,
    ForeignProcessOut,
    HostMemoryOut,
    IdleOut,
    InstanceOut,
    MemoryOut,
    ModelOut,
    PriceOut,
    ProgressOut,
    RequestRuleOut,
    ReservationOut,
    RetryOut,
    ScheduleOut,
    SleepOut,
    StartLimitsOut,
)
from vllm_mm.control.plan import Plan
from vllm_mm.domain.changes import ModelChange
from vllm_mm.domain.device_leases import DeviceLease
from vllm_mm.domain.estimates import Accuracy
from vllm_mm.domain.fits import Fit
from vllm_mm.domain.footprint import Footprint
from vllm_mm.domain.lifecycle import TRANSITIONAL, State
from vllm_mm.domain.reasons import split
from vllm_mm.domain.residency import Device, Ledger
from vllm_mm.domain.schedules import Standing
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.tiers import HostMemory
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import ForeignProcess
from vllm_mm.engine.views import InstanceView

HIDDEN = "********"
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)KEY$", re.IGNORECASE)


def instance(manager: ProcessManager, model: str) -> InstanceOut:
    """The instance of `model` as it is now; raises UnknownModel."""
    view = manager.describe(model)
    return InstanceOut(
        id=view.id, model=view.model, state=view.state,
        progress=ProgressOut(
            phase=view.progress.phase, percent=view.progress.percent, elapsed_s=round(view.elapsed_s, 3), eta_s=view.eta_s
        ),
        reason=view.reason, devices=list(view.devices), pid=view.pid, in_flight=view.in_flight, frozen=view.frozen, queued=view.queued,
        since=view.since, failures=view.failures,
        memory=MemoryOut(reserved=dict(view.reserved), used=manager.require(model).memory),
        generation=view.generation, launcher=manager.require(model).launcher, pinned=view.pinned, pending=pending(manager, view),
        drain_s=round(manager.estimator.draining(manager.require(model)).likely, 3), idle_s=view.idle_s,
    )  # fmt: skip


def pending(manager: ProcessManager, view: InstanceView) -> bool:
    """Whether its state will change without anybody doing anything more: a load, a drain, a stop, a wish."""
    if view.state in TRANSITIONAL or manager.loading(view.model) is not None:
        return True
    return any(lane.model == view.model and lane.wanted_since is not None for lane in manager.view(()).lanes)


def has_run(manager: ProcessManager, model: str) -> bool:
    """Whether there is anything to say about its instance: it ran, or is about to, or was refused a start, or would be."""
    spec = manager.catalog.get(model)
    if spec is not None and manager.objection(spec):
        return True
    if not any(i.spec.id == model for i in manager.instances()):
        return False
    view = manager.describe(model)
    return (
        view.generation > 0
        or view.state is not State.STOPPED
        or pending(manager, view)
        or manager.refused_because(model) != ""
    )


def model(manager: ProcessManager, spec: ModelSpec, times: Standing | None, *, secrets: bool) -> ModelOut:
    """`times`: how those of its schedule stand. `secrets`: show environment variables that look like secrets."""
    return ModelOut(
        id=spec.id, source=spec.source, engine=spec.engine, model=spec.model, executable=spec.executable,
        launcher=spec.launcher,
        args=dict(spec.args), env=dict(spec.env) if secrets else _masked(spec.env), command=list(spec.command),
        sim=dict(spec.sim), task=spec.task, aliases=list(spec.aliases),
        devices=DeviceWishOut(count=spec.devices.count, ids=list(spec.devices.ids)), memory=spec.memory,
        kv_cache=spec.kv_cache,
        pinned=manager.pinned(spec), preload=spec.preload, schedule=list(spec.schedule), schedule_now=schedule(times), priority=spec.priority, concurrency=spec.concurrency,
        progress=spec.progress, stream_usage=spec.stream_usage,
        idle=IdleOut(**asdict(spec.idle)), start=StartLimitsOut(**asdict(spec.start)), retry=RetryOut(**asdict(spec.retry)),
        sleep=SleepOut(**asdict(spec.sleep), why_not=manager.why_no_sleep(spec)),
        request_defaults=dict(spec.request_defaults), request_overrides=dict(spec.request_overrides),
        request_limits=dict(spec.request_limits), request_rules=_request_rules(spec), lora=dict(spec.lora),
        price=None if spec.price is None else PriceOut(**asdict(spec.price)),
        fingerprint=spec.fingerprint, footprint=footprint(manager.footprint(spec)),
        instance=instance(manager, spec.id) if has_run(manager, spec.id) else None,
    )  # fmt: skip


def schedule(times: Standing | None) -> ScheduleOut | None:
    if times is None:
        return None
    at = times.changes_at
    return ScheduleOut(
        open=times.open, keeps=times.keeps, changes_at=None if at is None else at.timestamp(), text=str(times)
    )


def _request_rules(spec: ModelSpec) -> dict[str, list[RequestRuleOut]]:
    return {
        name: [RequestRuleOut(kind=r.kind, path=list(r.path), value=r.value, source=r.source) for r in rules.rules()]
        for name, rules in spec.request_rules.items()
    }


def _masked(env: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if value and _SECRET.search(name) else value for name, value in env.items()}


def change(found: ModelChange) -> ModelChangeOut:
    """Values of keys that look like secrets are hidden."""
    shown = [
        FieldChangeOut(key=f.key, before=_hidden(f.key, f.before), after=_hidden(f.key, f.after)) for f in found.fields
    ]
    return ModelChangeOut(model=found.model, effect=found.effect, text=found.text, fields=shown)


def _hidden(key: str, value: object) -> object:
    section, _, name = key.partition(".")
    return HIDDEN if section in {"env", "args"} and value and _SECRET.search(name.replace("-", "_")) else value


def fit(found: Fit) -> FitOut:
    return FitOut(
        device=found.device, fits=found.fits, free=found.free, capacity=found.capacity, victims=list(found.victims),
        reason=found.reason,
    )  # fmt: skip


def footprint(found: Footprint) -> FootprintOut:
    return FootprintOut(
        per_device=found.per_device, source=found.source, spread=found.spread, weights=found.parts.weights,
        kv_cache=found.parts.kv_cache, overhead=found.parts.overhead, kv_tokens=found.kv_tokens,
        kv_token_bytes=found.kv_token_bytes, samples=found.samples, learned_at=found.learned_at, notes=list(found.notes),
    )  # fmt: skip


def host_memory(found: HostMemory, free: int) -> HostMemoryOut:
    """`free`: bytes of the host's memory that nobody uses, as seen now."""
    return HostMemoryOut(
        budget=found.budget, used=found.used, held=dict(found.held), leaving=dict(found.leaving), free=free
    )


def device(found: Device, ledger: Ledger, strangers: Sequence[ForeignProcess]) -> DeviceOut:
    held = [r for r in ledger.reservations.values() if found.id in r.device_bytes]
    return DeviceOut(
        id=found.id, kind=found.kind, name=found.name, capacity=found.capacity, headroom=found.headroom,
        foreign=found.foreign, free=ledger.free(found.id), problem=found.problem,
        foreign_processes=[
            ForeignProcessOut(pid=p.pid, name=p.name, bytes=p.size) for p in strangers if p.device == found.id
        ],
        reservations=[
            ReservationOut(
                model=r.model, bytes=r.shown(found.id), in_use=r.held.get(found.id, 0) > 0, leaving=r.leaving
            )
            for r in held
        ],
    )  # fmt: skip


def device_lease(found: DeviceLease) -> DeviceLeaseOut:
    return DeviceLeaseOut(
        id=found.id, device=found.device, bytes=found.size, stage=found.stage, reason=found.reason, note=found.note,
        by=found.by, asked_at=found.asked_at, held_at=found.held_at, ends_at=found.ends_at, ended_at=found.ended_at,
        evicted=[EvictedOut(model=e.model, wanted=e.wanted) for e in found.evicted],
    )  # fmt: skip


def plan(found: Plan) -> PlanOut:
    return PlanOut(
        model=found.model, act=found.act, code=split(found.reason)[0], reason=found.reason, state=found.state, devices=dict(found.device_bytes),
        bytes=sum(found.device_bytes.values()),
        victims=[
            VictimOut(
                model=v.model, state=v.state, in_flight=v.in_flight, device_bytes=dict(v.device_bytes),
                bytes=sum(v.device_bytes.values()), goal=v.goal, why=v.why, on_timeout=v.then,
                drain_s=v.drain_s, go_s=v.go_s, return_s=v.return_s, cache_s=v.cache_s,
            )
            for v in found.victims
        ],
        stopped=[
            StoppedOut(
                model=s.model, sleeps_for=s.sleeps_for, host_bytes=s.host_bytes, asleep_s=s.asleep_s, return_s=s.return_s,
                late=s.late,
            )
            for s in found.stopped
        ],
        footprint=footprint(found.footprint), room_s=found.room_s, load_s=found.load_s, eta_s=found.eta_s,
        at_latest_s=found.at_latest_s, again_in_s=found.again_in_s,
    )  # fmt: skip


def accuracy(found: Accuracy) -> AccuracyOut:
    return AccuracyOut(
        compared=len(found.pairs), typical_error_s=found.error, typical_ratio=found.ratio, kept_at_latest=found.kept
    )
