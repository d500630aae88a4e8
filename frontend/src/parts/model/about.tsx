import { useLook } from "../../api/look";
import type { Footprint, Model, Plan } from "../../api/types";
import { repositoryOf } from "../../format/pulls";
import { about, bytes, count, duration } from "../../format/quantities";
import { Download } from "../download";
import { Facts } from "../facts";
import { Failed } from "../failed";
import { Prose } from "../prose";
import { Section } from "../section";

export function About({ model }: { model: Model }) {
  const { instance } = model;
  const repository = model.engine === "vllm" ? repositoryOf(model.model ?? model.id) : null;
  return (
    <div className="pair">
      <div>
        <Section title="What a start would do now" note="the server's plan; nothing is changed">
          <PlanView model={model.id} />
        </Section>
        <Section title="Memory">
          <Memory footprint={model.footprint} devices={model.devices.count} />
          {repository !== null && <Download repository={repository} />}
        </Section>
        <Section title="Its engine">
          {instance === null || instance.generation === 0 ? (
            <p className="empty">It has not run since the server was started.</p>
          ) : (
            <Facts
              facts={[
                ["Launch", `number ${instance.generation}${instance.launcher === "" ? "" : `, ${instance.launcher}`}`],
                ["Process", instance.pid],
                ["On", instance.devices.join(", ")],
                ["In flight", instance.in_flight],
                ["Standing still", instance.frozen === 0 ? null : instance.frozen],
                ["Queued", instance.queued],
                ["Idle for", instance.idle_s === null ? null : duration(instance.idle_s)],
                ["Failures", instance.failures],
              ]}
            />
          )}
        </Section>
      </div>
      <Section title="What it is">
        <Facts
          facts={[
            ["Loads", <code key="m">{model.model ?? model.id}</code>],
            ["Engine", model.engine],
            ["Task", model.task],
            ["Declared", model.source === "api" ? "over the API" : "in the configuration file"],
            ["Aliases", model.aliases.join(", ")],
            ["Adapters", Object.keys(model.lora).join(", ")],
            ["Devices", devices(model)],
            ["At the same time", count(model.concurrency, "request", "requests")],
            ["Priority", model.priority],
            ["Pinned", model.pinned ? "yes: never swapped out" : "no"],
            ["Kept ready", model.schedule_now?.text ?? ""],
            ["When idle", idle(model)],
            ["Arguments", Object.keys(model.args).length === 0 ? null : <code key="a">{JSON.stringify(model.args)}</code>],
            ["Environment", Object.keys(model.env).length === 0 ? null : <code key="e">{JSON.stringify(model.env)}</code>],
          ]}
        />
      </Section>
    </div>
  );
}

function devices({ devices: wish }: Model): string {
  return wish.count === 1 ? "one" : `${wish.count}`;
}

function idle({ idle: after }: Model): string {
  const parts = [];
  if (after.sleep_after !== null) parts.push(`sleeps after ${duration(after.sleep_after)}`);
  if (after.stop_after !== null) parts.push(`is stopped after ${duration(after.stop_after)}`);
  return parts.length === 0 ? "stays as it is" : parts.join(", ");
}

const SOURCE = { declared: "as it was declared", learned: "measured", estimated: "estimated from its files" };

/** What a model takes on each device, in parts where they are known. */
export function Memory({ footprint, devices: many }: { footprint: Footprint; devices: number }) {
  const parts: [string, number, string][] = [
    ["Weights", footprint.weights, "c0"],
    ["KV cache", footprint.kv_cache, "c2"],
    ["Runtime", footprint.overhead, "c1"],
  ];
  const known = parts.filter(([, size]) => size > 0);
  const whole = Math.max(1, known.reduce((sum, [, size]) => sum + size, 0));
  return (
    <>
      <p>
        <b>{bytes(footprint.per_device)}</b>
        {many > 1 && ` on each of ${many} devices`}, {SOURCE[footprint.source]}
        {footprint.source === "learned" && ` in ${count(footprint.samples, "launch", "launches")}`}
        {footprint.spread > 0 && `, give or take ${bytes(footprint.spread)}`}.
      </p>
      {known.length > 0 && (
        <>
          <div className="bar" aria-hidden="true">
            {known.map(([name, size, look]) => (
              <span key={name} className={look} style={{ width: `${(100 * size) / whole}%` }} />
            ))}
          </div>
          <ul className="legend">
            {known.map(([name, size, look]) => (
              <li key={name}>
                <span className={`swatch ${look}`} aria-hidden="true" />
                {name} <b>{bytes(size)}</b>
              </li>
            ))}
          </ul>
        </>
      )}
      {footprint.kv_tokens !== null && <p className="note">The KV cache holds {footprint.kv_tokens.toLocaleString()} tokens.</p>}
      {footprint.notes.length > 0 && (
        <ul className="notes">
          {footprint.notes.map((note) => (
            <li key={note}>
              <Prose text={note} />
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

const WOULD: Record<Plan["act"], string> = {
  none: "Nothing: it is ready.",
  loading: "Nothing more: it is being loaded.",
  start: "It would be started.",
  wake: "It would be woken.",
  wait: "It would have to wait.",
  refuse: "It could not be loaded.",
};

export function PlanView({ model }: { model: string }) {
  const { data: plan, error } = useLook<Plan>(`api/plan?model=${encodeURIComponent(model)}`, 5);
  if (plan === undefined || plan.model !== model) return error === null ? <p className="empty">Asking the server…</p> : <Failed error={error} />;
  return (
    <>
      <p>
        <b className={plan.act === "refuse" ? "bad" : undefined}>{WOULD[plan.act]}</b> {plan.reason !== "" && <Prose text={plan.reason} />}
      </p>
      <Facts
        facts={[
          ["Takes", Object.entries(plan.devices).map(([device, size]) => `${bytes(size)} on ${device}`).join(", ")],
          ["Makes room", plan.victims.map((v) => `${v.model} (${v.goal}, ${count(v.in_flight, "request", "requests")} in flight, ${about(v.drain_s + v.go_s)})`).join("; ")],
          ["Stopped for that", plan.stopped.map((s) => `${s.model}, which sleeps`).join("; ")],
          ["Ready in", plan.eta_s === null ? null : `about ${about(plan.eta_s)}`],
          ["At the latest in", plan.at_latest_s === null ? null : `${about(plan.at_latest_s)}, nine times of ten`],
        ]}
      />
    </>
  );
}
