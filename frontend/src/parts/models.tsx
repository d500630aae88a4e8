import * as Menu from "@radix-ui/react-dropdown-menu";
import { memo } from "react";
import { Link } from "wouter";
import { canStop, label, LABELS, mainAct, moreActs, type Act } from "../format/acts";
import { about, bytes, duration } from "../format/quantities";
import { modelPage } from "../frame/address";
import type { Instance, Model } from "../api/types";
import { Prose } from "./prose";
import { Section } from "./section";
import { StateMark } from "./state-mark";

export interface Acting {
  /** Model and act that were sent and not answered yet. */
  sent: ReadonlySet<string>;
  onAct: (model: string, act: Act) => void;
}

interface Row {
  id: string;
  model: Model | null;
  instance: Instance | null;
}

export function Models(props: { models: readonly Model[]; removed: readonly Instance[] } & Acting) {
  const rows: Row[] = [
    ...props.models.map((model) => ({ id: model.id, model, instance: model.instance })),
    ...props.removed.map((instance) => ({ id: instance.model, model: null, instance })),
  ];
  if (rows.length === 0) {
    return (
      <Section title="Models">
        <p className="empty">
          No models yet. <Link href="/add">Add one</Link>, put some into <code>vllm-mm.yaml</code>, or type{" "}
          <code>vllm-mm add my-model --model Qwen/Qwen2.5-7B-Instruct</code>
        </p>
      </Section>
    );
  }
  return (
    <Section title="Models" note={rows.length}>
      <table className="models">
        <thead>
          <tr>
            <th scope="col">Model</th>
            <th scope="col">State</th>
            <th scope="col">Requests</th>
            <th scope="col">Memory</th>
            <th scope="col">
              <span className="unseen">Acts</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <ModelRow key={row.id} {...row} sent={props.sent} onAct={props.onAct} />
          ))}
        </tbody>
      </table>
    </Section>
  );
}

/** Drawn anew when the server tells something new of it, and not whenever anything happens. */
const ModelRow = memo(function ModelRow({ id, model, instance, sent, onAct }: Row & Acting) {
  const why = reasonOf(instance);
  return (
    <>
      <tr>
        <th scope="row">
          {model === null ? (
            <span className="name">{id}</span>
          ) : (
            <Link href={modelPage(id)} className="name">
              {id}
            </Link>
          )}
          <span className="under">{model === null ? "removed; its engine still runs" : describe(model)}</span>
        </th>
        <td>
          <StateCell instance={instance} />
        </td>
        <td data-label="Requests">
          {instance === null || (instance.in_flight === 0 && instance.queued === 0) ? (
            <span className="none">none</span>
          ) : (
            <span>
              {instance.in_flight} in flight
              <span className="under">{instance.queued} queued</span>
            </span>
          )}
        </td>
        <td data-label="Memory">
          <MemoryCell model={model} instance={instance} />
        </td>
        <td className="acts">
          {model !== null && <Acts model={model} sent={sent} onAct={onAct} />}
        </td>
      </tr>
      {why !== "" && (
        <tr className="why">
          <td colSpan={5}>
            <span className="unseen">Why {id} is so: </span>
            <Prose text={why} />
          </td>
        </tr>
      )}
    </>
  );
});

/** Why it is down, or what it waits for; empty where the state says enough. */
export function reasonOf(instance: Instance | null): string {
  if (instance === null || LOADS.includes(instance.state)) return "";
  return instance.pending || instance.state === "failed" || instance.state === "backoff" ? instance.reason : "";
}

export function describe(model: Model): string {
  const names = model.aliases.length > 0 ? `also ${model.aliases.join(", ")}` : "";
  const kind = [model.engine, model.task === "generate" ? "" : model.task, model.source === "api" ? "made over the API" : ""];
  return [names, ...kind].filter((part) => part !== "").join(" · ");
}

const LOADS: readonly string[] = ["starting", "waking"];
const TRANSIENT: readonly string[] = [...LOADS, "draining", "suspending", "stopping"];

export function StateCell({ instance }: { instance: Instance | null }) {
  if (instance === null) return <StateMark state="stopped" wanted={false} />;
  const { state, progress, pending } = instance;
  const passing = TRANSIENT.includes(state);
  const facts: string[] = [];
  if (progress.phase !== "" && LOADS.includes(state)) facts.push(`${progress.phase}${progress.percent === null ? "" : ` ${Math.round(progress.percent)} %`}`);
  facts.push(passing ? duration(progress.elapsed_s) : `for ${duration(progress.elapsed_s)}`);
  if (progress.eta_s !== null) facts.push(`about ${about(progress.eta_s)} left`);
  if (instance.idle_s !== null) facts.push(`idle ${duration(instance.idle_s)}`);
  if (instance.failures > 0) facts.push(`${instance.failures} failed`);
  return (
    <>
      <span className="state-line">
        <StateMark state={state} wanted={pending && !passing} />
        <span className="facts">{facts.join(" · ")}</span>
      </span>
      {LOADS.includes(state) && <Progress instance={instance} />}
    </>
  );
}

function Progress({ instance: { model, progress } }: { instance: Instance }) {
  const label = `Load of ${model}: ${progress.phase}`;
  return progress.percent === null ? (
    <progress aria-label={label} />
  ) : (
    <progress aria-label={label} max={100} value={progress.percent} />
  );
}

const SOURCES = { declared: "declared", learned: "measured", estimated: "a guess" };

export function MemoryCell({ model, instance }: { model: Model | null; instance: Instance | null }) {
  const reserved = Object.entries(instance?.memory.reserved ?? {});
  if (reserved.length > 0) {
    return (
      <span>
        {bytes(reserved.reduce((sum, [, size]) => sum + size, 0))}
        <span className="under">on {reserved.map(([device]) => device).join(", ")}</span>
      </span>
    );
  }
  if (model === null) return <span className="none">none</span>;
  return (
    <span className="none">
      needs {bytes(model.footprint.per_device * model.devices.count)}
      <span className="under">{SOURCES[model.footprint.source]}</span>
    </span>
  );
}

/** What is done more rarely. */
const More = memo(function More({ id, acts: text, onAct }: { id: string; acts: string; onAct: Acting["onAct"] }) {
  const acts = text === "" ? [] : (text.split(" ") as Act[]);
  return (
    <Menu.Root modal={false}>
      <Menu.Trigger className="more" aria-label={`More acts on ${id}`} disabled={acts.length === 0}>
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <path d="M3.5 8h.01M8 8h.01M12.5 8h.01" />
        </svg>
      </Menu.Trigger>
      {/* Not in a portal: what is outside of the landmarks is not found by those who go by them. */}
      <Menu.Content className="menu" align="end" sideOffset={6} collisionPadding={8}>
        {acts.map((act) => (
          <Menu.Item key={act} onSelect={() => onAct(id, act)}>
            {LABELS[act]}
          </Menu.Item>
        ))}
      </Menu.Content>
    </Menu.Root>
  );
});

export function Acts({ model, sent, onAct }: { model: Model } & Acting) {
  const main = mainAct(model.instance);
  const pin: Act = model.pinned ? "unpin" : "pin";
  const button = (act: Act, enabled: boolean, name = label(act, model.instance)) => (
    <button
      type="button"
      key={name}
      disabled={!enabled || sent.has(`${model.id} ${act}`)}
      aria-label={`${name} ${model.id}`}
      title={act === "undrain" ? "Take the drain back" : undefined}
      onClick={() => onAct(model.id, act)}
    >
      {name}
    </button>
  );
  return (
    <span className="buttons" role="group" aria-label={`Acts on ${model.id}`}>
      {main === null ? button("start", false) : button(main, true)}
      {button("stop", canStop(model.instance), LABELS.stop)}
      <button
        type="button"
        className="pin"
        aria-pressed={model.pinned}
        aria-label={`Pin ${model.id}`}
        title={model.pinned ? "Never swapped out; click to allow it" : "Never swap it out"}
        disabled={sent.has(`${model.id} ${pin}`)}
        onClick={() => onAct(model.id, pin)}
      >
        {model.pinned ? "Pinned" : "Pin"}
      </button>
      <More id={model.id} acts={moreActs(model.instance).join(" ")} onAct={onAct} />
    </span>
  );
}
