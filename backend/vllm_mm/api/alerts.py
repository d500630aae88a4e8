"""What an operator should look at now."""

from vllm_mm.api.dependencies import Services
from vllm_mm.domain.lifecycle import State


def problems(the: Services) -> list[str]:
    """Why the server cannot do its work as it should; empty when it can. For `/ready`."""
    found = list(the.queue.overdue())
    found += [problem for check in (the.journal.problem, *the.checks) if (problem := check()) is not None]
    if the.closing.is_set():
        found.append("the server is shutting down")
    return found


def alerts(the: Services) -> list[str]:
    """The problems of the server, and of single models."""
    found = problems(the)
    if (refused := the.configuration.problem()) is not None:
        found.append(refused)
    found += the.manager.device_alerts.standing(the.manager.ledger)
    for spec in the.manager.catalog:
        if wrong := the.manager.objection(spec):
            found.append(f"{spec.id} cannot be started: {wrong}")
    now = the.clock.now()
    for instance in the.manager.instances():
        i = instance.snapshot
        if i.state is State.FAILED:
            found.append(f"{i.model} has failed: {i.reason} (`vllm-mm load {i.model}` tries again)")
        elif i.state is State.STOPPING and now - i.since > i.timeouts.stop:
            found.append(f"{i.model} does not stop: {now - i.since:.0f} s since the first signal")
    return found
