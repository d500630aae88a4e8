"""A fleet of engines in virtual time: what the ProcessManager does with decisions, as events in a heap.

Time is a number that jumps from event to event; nothing waits and nothing is asynchronous. The decisions are the server's
own (`domain.scheduling.decide` over the ledger of `domain.residency`), or those of another policy with the same signature.
What is not modelled: failures, and KV caches that overflow.
"""

import heapq
from collections.abc import Mapping, Sequence
from math import inf

from vllm_mm.domain.ledger import PROFILES_MEMORY
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device, Placement, place
from vllm_mm.domain.scheduling import Grant, Hold, Load, Ticket
from vllm_mm.virtual.body import Body, view
from vllm_mm.virtual.engine import Decoder, VirtualModel
from vllm_mm.virtual.instances import Instances
from vllm_mm.virtual.policies import Policy
from vllm_mm.virtual.records import LoadRecord, Outcome, Served, Unserved
from vllm_mm.virtual.terms import Terms
from vllm_mm.virtual.trace import Request


class Stuck(Exception):
    """Requests wait, and nothing would ever happen any more: the policy forgot them."""


class Fleet(Instances):
    """One run. Use `simulate`."""

    def __init__(self, models: Sequence[VirtualModel], devices: Sequence[Device], policy: Policy, terms: Terms) -> None:
        super().__init__(models, devices, terms, Outcome(policy=policy.name, rules=terms.rules))
        self._policy = policy
        self._prompts: dict[str, Request] = {}
        self._waiting = 0
        """Tickets in all lanes."""
        self._called: list[str] = []
        """Loads whose memory is not there yet, in the order of the decisions."""
        self._looks: set[float] = set()
        self._kicked = False
        self._slots: dict[str, Body] = {}
        """READY ones, still busy, that have a slot for those who wait: nobody else's decision depends on that."""
        for body in sorted(self._bodies.values(), key=lambda b: not b.model.pinned):
            if body.model.pinned or body.model.preload:
                self._begin_with(body)

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Until everybody is served, refused or gone. Raises Stuck."""
        arrivals = iter(requests)
        following = next(arrivals, None)
        number = 0
        while following is not None or self._heap:
            at = self._heap[0][0] if self._heap else inf
            if following is not None and following.at <= at:
                self.now = following.at
                self._arrive(following, number)
                number += 1
                following = next(arrivals, None)
            else:
                self.now, _, kind, name, what = heapq.heappop(self._heap)
                self._event(kind, name, what)
            # All that happens at one moment is seen by one decision.
            again = following.at if following is not None else inf
            while (self._kicked or self._slots) and min(again, self._heap[0][0] if self._heap else inf) > self.now:
                self._round()
            if self._waiting == 0 and following is None and not any(b.running for b in self._bodies.values()):
                break
        if self._lanes:
            raise Stuck(
                f"{self._waiting} requests wait for {', '.join(self._lanes)}, and nothing would happen any more under "
                f"the policy {self._policy.name}"
            )
        for body in self._bodies.values():
            self._left(body)
        self._out.ended = self.now
        return self._out

    # Requests.

    def _arrive(self, request: Request, number: int) -> None:
        body = self._bodies[request.model]
        ticket = Ticket(f"t{number}", request.model, self.now, self.now + self._terms.patience)
        self._prompts[ticket.id] = request
        body.habits.arrived(self.now)
        free = body.state is State.READY and len(body.running) < body.model.concurrency
        if self._policy.passes and free and not body.tickets:
            self._lease(body, ticket)
            return
        if not body.waits:
            self._lanes[request.model] = body
            body.rivals = 0
        matters = not (body.loading or (body.tickets and not self._policy.weighs))
        body.tickets[ticket.id] = ticket
        body.arrived += self.now
        self._waiting += 1
        if body.loading or body.state is State.READY:
            self._reached(body, ticket)
        if self._terms.patience < inf:
            self._at(ticket.deadline, "expire", ticket.id)
        if matters:
            self._kick()

    def _lease(self, body: Body, ticket: Ticket) -> None:
        request = self._prompts.pop(ticket.id)
        self._reached(body, ticket)
        number = next(self._ids)
        decoder = body.decoder
        if decoder is None:
            raise ValueError(f"{request.model} gives no leases: it is {body.state}")
        served = Served(request.model, ticket.arrived, self.now, request.output, prompt=request.prompt)
        self._out.served.append(served)
        body.running[number] = served
        body.habits.leased(self.now - ticket.arrived)
        self._prefill(body, number, decoder.admit(self.now, request.prompt))

    def _prefill(self, body: Body, number: int, until: float) -> None:
        body.prefills[number] = until
        self._at(until, "prefilled", body.model.id, number)

    def _prefilled(self, body: Body, number: int) -> None:
        served, decoder = body.running.get(number), body.decoder
        if body.prefills.get(number) != self.now or body.frozen_since is not None:  # it was cut, or frozen meanwhile
            return
        del body.prefills[number]
        if served is None or decoder is None:
            return
        served.first_token = self.now
        if served.output == 0:
            self._done(body, [number])
            return
        decoder.join(self.now, number, served.output)
        served.first_token += decoder.step()
        self._schedule(body, decoder)

    def _schedule(self, body: Body, decoder: Decoder) -> None:
        due = decoder.due()
        if due is not None and due < body.finish_at:
            body.finish_at = due
            self._at(due, "finish", body.model.id, body.launch)

    def _look_again(self, body: Body) -> None:
        if body.decoder is not None:
            self._schedule(body, body.decoder)

    def _done(self, body: Body, numbers: Sequence[int]) -> None:
        for number in numbers:
            served = body.running.pop(number)
            served.finished = self.now
            body.habits.ended(self.now - served.leased)
        if not numbers or body.running:
            if numbers and body.tickets and body.state is State.READY:
                self._slot(body)
            return
        body.last_used = self.now
        if body.state is State.DRAINING:
            self._drained(body)
        elif body.state is State.READY:
            self._arm_idle(body)
            self._kick()

    def _reached(self, body: Body, ticket: Ticket) -> None:
        """Its model is ready or being loaded: what the bound on starvation is about."""
        if ticket.id in self._out.reached:
            return
        self._out.reached.add(ticket.id)
        self._out.note_reached(self.now - ticket.arrived, max(1, body.rivals))

    def _expire(self, ticket_id: str) -> None:
        request = self._prompts.get(ticket_id)
        if request is None:
            return
        body = self._bodies[request.model]
        ticket = body.tickets[ticket_id]
        self._leave_lane(body, [ticket])
        self._out.timed_out.append(Unserved(request.model, ticket.arrived, self.now, "it gave up waiting"))
        del self._prompts[ticket_id]
        self._kick()

    def _leave_lane(self, body: Body, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            del body.tickets[ticket.id]
            body.arrived -= ticket.arrived
        self._waiting -= len(tickets)
        if not body.waits:
            self._lanes.pop(body.model.id, None)

    # Events.

    def _event(self, kind: str, name: str, what: int) -> None:
        if kind == "look":
            self._kick()
            return
        if kind == "expire":
            self._expire(name)
            return
        body = self._bodies[name]
        match kind:
            case "prefilled":
                self._prefilled(body, what)
            case "finish":
                if body.finish_at == self.now and body.decoder is not None:
                    body.finish_at = inf
                    self._done(body, body.decoder.finished(self.now))
                    self._look_again(body)
            case "ready" if body.launch == what:
                self._ready(body)
            case "drain over" if body.launch == what and body.state is State.DRAINING:
                if self._terms.preempt and body.goal_sleep and self._make_host_room(body, keeps=True):
                    self._freeze(body)
                else:
                    self._cut(body)
            case "asleep" if body.state is State.SUSPENDING:
                self._asleep(body)
            case "reaped" if body.launch == what and body.state is State.STOPPING:
                body.state = State.STOPPED
                if not body.anew:
                    self._ledger = self._ledger.release(name)
                body.anew = False
                self._begin_loads()
                self._kick()
            case "idle" if body.launch == what:
                self._idle(body)
            case _:
                pass

    # Decisions.

    def _kick(self) -> None:
        self._kicked = bool(self._lanes)

    def _slot(self, body: Body) -> None:
        if not self._policy.ordered:
            self._slots[body.model.id] = body
        else:
            self._kick()

    def _round(self) -> None:
        """One decision, carried out."""
        self._out.rounds += 1
        lanes = self._lanes if self._kicked else {m: b for m, b in self._slots.items() if b.tickets}
        self._kicked = False
        self._slots.clear()
        apart = [b for b in self._lanes.values() if b.state is not State.READY]
        for body in apart:
            body.rivals = max(body.rivals, len(apart))
        seen = view(
            self._bodies, lanes.values(), self._ledger, self.now, self._terms.sleep_budget, weighs=self._policy.weighs
        )
        for decision in self._policy.decide(seen, self._terms.rules, self.now):
            body = self._bodies[decision.model]
            match decision:
                case Grant():
                    self._leave_lane(body, decision.tickets)
                    for ticket in decision.tickets:
                        self._lease(body, ticket)
                case Load():
                    self._load(body, decision)
                case Hold():
                    until = decision.until
                    if until is not None and until > self.now and until not in self._looks:
                        self._looks.add(until)
                        self._at(until, "look", "")
                case _:
                    self._refuse(body, decision.reason)
        self._begin_loads()

    def _load(self, body: Body, load: Load) -> None:
        kind = "wake" if body.state is State.SLEEPING else "start"
        body.load = LoadRecord(load.model, kind, load.victims, load.reason, self.now)
        self._out.loads.append(body.load)
        for victim in load.victims:
            self._evict(self._bodies[victim], body.load)
        change = self._ledger.grow if load.model in self._ledger.reservations else self._ledger.reserve
        self._ledger = change(load.model, load.device_bytes)
        self._called.append(load.model)
        for ticket in body.tickets.values():
            self._reached(body, ticket)

    def _refuse(self, body: Body, reason: str) -> None:
        tickets = list(body.tickets.values())
        for ticket in tickets:
            del self._prompts[ticket.id]
            self._out.refused.append(Unserved(body.model.id, ticket.arrived, self.now, reason))
        self._leave_lane(body, tickets)
        self._kick()  # others may have been waiting behind them

    def _begin_loads(self) -> None:
        """Loads begin when their memory is there and nobody else sizes its cache on their devices."""
        for name in tuple(self._called):
            body = self._bodies[name]
            devices = self._ledger.reservations[name].device_bytes
            if body.state is State.STOPPING:  # to start anew
                continue
            if any(self._profiled(d, name) for d in devices) or not self._ledger.fits_now(name):
                continue
            self._called.remove(name)
            self._ledger = self._ledger.begin(name)
            waking = body.state is State.SLEEPING
            body.state, body.begun = (State.WAKING if waking else State.STARTING), True
            body.launch += 1
            took = body.model.times.wake if waking else body.model.times.load
            if body.load is not None:
                body.load.begun = self.now
                body.load.freed = max(
                    (self._bodies[v].drained_at for v in body.load.victims), default=body.load.decided
                )
            self._at(self.now + took, "ready", name, body.launch)

    def _profiled(self, device: str, name: str) -> bool:
        if self._ledger.devices[device].kind not in PROFILES_MEMORY:
            return False
        return any(
            b.begun and m != name and device in self._ledger.reservations[m].device_bytes
            for m, b in self._bodies.items()
            if b.begun
        )

    def _begin_with(self, body: Body) -> None:
        """Pinned and preloaded models are there from the beginning, where they fit."""
        found = place(self._ledger, body.model.wish, body.model.memory, (), 0.0, min_dwell=0.0, drain_busy=False)
        if isinstance(found, Placement):
            self._ledger = self._ledger.adopt(body.model.id, found.device_bytes)
            body.launch = 1
            self._ready(body)
            self._kicked = False


def simulate(
    requests: Sequence[Request],
    models: Sequence[VirtualModel],
    devices: Sequence[Device],
    policy: Policy,
    terms: Terms,
) -> Outcome:
    """What would happen. Raises ValueError when a request names a model that is not there, Stuck for a policy's mistake."""
    known: Mapping[str, VirtualModel] = {m.id: m for m in models}
    unknown = sorted({r.model for r in requests if r.model not in known})
    if unknown:
        raise ValueError(f"the trace asks for {', '.join(unknown)}; the models are {', '.join(known) or 'none'}")
    return Fleet(models, devices, policy, terms).run(requests)
