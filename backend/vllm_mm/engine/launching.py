"""From a load that was decided to a launch that can be carried out: first the row that says what is about to start, then
the command line and the environment. Nothing is started or written here."""

from collections.abc import Sequence

from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine import command
from vllm_mm.engine.loading import Loading
from vllm_mm.engine.policy import Places
from vllm_mm.engine.ports import LaunchPlan

_TOKEN_PART = 12
"""Characters of a launch's token in the name of its work directory."""


def intent(spec: ModelSpec, loading: Loading, places: Places, wall: float) -> LaunchRecord:
    """The record of a launch before there is a process: pid 0. `wall`: now, in Unix time.

    The address is chosen at the first call for a load, and is the same at every later one. Raises ConfigError when the
    command of the model leaves no address to reach it at.
    """
    workdir = places.run / loading.token[:_TOKEN_PART]
    address = loading.address or command.address_for(spec, workdir)
    loading.address = address
    slug = "".join(c if c.isalnum() or c in "-._" else "_" for c in spec.id)[:80]
    return LaunchRecord(
        model=spec.id, generation=loading.generation, token=loading.token, pid=0, start_ticks=0, boot_id="",
        address=address, workdir=workdir, log=places.logs / f"{slug}.log",
        fingerprint=spec.fingerprint, device_bytes=dict(loading.load.device_bytes), started_at=wall,
    )  # fmt: skip


def check(spec: ModelSpec, places: Places) -> None:
    """Raises ConfigError where `intent` would for any launch of `spec`."""
    command.address_for(spec, places.run / ("0" * _TOKEN_PART))


def plan(
    spec: ModelSpec, generation: int, record: LaunchRecord, places: Places, devices: Sequence[Device], kv_cache: int
) -> LaunchPlan:
    """What the launcher carries out for `record`, which is that of `intent`. `kv_cache`: bytes of it on each device."""
    argv, env = command.build(
        spec, address=record.address, device_bytes=record.device_bytes, devices=devices, kv_cache=kv_cache, workdir=record.workdir,
        token=record.token, owner=places.owner, cache_dir=places.cache, sim_ledger=places.sim_ledger,
        python=places.python, base_env=places.environment,
    )  # fmt: skip
    return LaunchPlan(
        model=spec.id, generation=generation, token=record.token, argv=argv, env=env, address=record.address,
        workdir=record.workdir, log=record.log, fingerprint=record.fingerprint, device_bytes=record.device_bytes,
        launcher=spec.launcher,
    )  # fmt: skip
