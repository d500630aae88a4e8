import * as Tabs from "@radix-ui/react-tabs";
import { useMemo, useState } from "react";
import { Link } from "wouter";
import { useLook } from "../api/look";
import { useAccess, useOverview, useSession } from "../api/overview";
import type { Model, Who } from "../api/types";
import { useSetting } from "../frame/address";
import { useTitle } from "../frame/shared";
import { Chat } from "../parts/playground/chat";
import { Embeddings, Rerank, Tokens } from "../parts/playground/others";

const MODES: readonly { name: string; title: string; takes: (model: Model) => boolean; most: number }[] = [
  { name: "chat", title: "Chat", takes: (model) => model.task === "generate", most: 4 },
  { name: "embeddings", title: "Embeddings", takes: (model) => model.task === "embed", most: 1 },
  { name: "rerank", title: "Rerank", takes: (model) => model.task === "score" || model.task === "embed", most: 1 },
  { name: "tokens", title: "Tokens", takes: (model) => ["generate", "embed", "score", "classify"].includes(model.task), most: 1 },
];

/** Models tried by hand; several side by side. */
export default function PlaygroundPage() {
  useTitle("Playground");
  const { data } = useOverview();
  const [mode, setMode] = useSetting("mode", "chat");
  const [wished, setWished] = useSetting("m");
  const chosen = MODES.find(({ name }) => name === mode) ?? MODES[0];
  const models = useMemo(() => (data?.models ?? []).filter((model) => chosen?.takes(model)), [data?.models, chosen]);
  const ids = models.map((model) => model.id);
  const asked = wished.split(",").filter((id) => ids.includes(id)).slice(0, chosen?.most);
  // Without a wish, what is ready answers at once.
  const first = models.find((model) => model.instance?.state === "ready") ?? models[0];
  const used = asked.length > 0 ? asked : first === undefined ? [] : [first.id];
  const most = chosen?.most ?? 1;
  return (
    <Tabs.Root value={mode} onValueChange={setMode}>
      <div className="page-head">
        <h1>Playground</h1>
        <Tabs.List className="tabs" aria-label="What to try">
          {MODES.map(({ name, title }) => (
            <Tabs.Trigger key={name} value={name}>
              {title}
            </Tabs.Trigger>
          ))}
        </Tabs.List>
      </div>
      <KeyField />
      {data !== undefined && models.length === 0 && (
        <p className="empty">
          No model does this. <Link href="/add">Add one</Link>
        </p>
      )}
      {used.length > 0 && (
        <div className="filters" role="group" aria-label="Models">
          {used.map((id, place) => (
            <span key={place} className="pick">
              <select aria-label={used.length > 1 ? `Model ${place + 1}` : "Model"} value={id} onChange={(event) => setWished(used.with(place, event.target.value).join(","))}>
                {ids.map((other) => (
                  <option key={other} disabled={other !== id && used.includes(other)}>
                    {other}
                  </option>
                ))}
              </select>
              {used.length > 1 && (
                <button type="button" aria-label={`Without ${id}`} onClick={() => setWished(used.toSpliced(place, 1).join(","))}>
                  ✕
                </button>
              )}
            </span>
          ))}
          {used.length < Math.min(most, ids.length) && (
            <button type="button" onClick={() => setWished([...used, ids.find((id) => !used.includes(id)) ?? ""].join(","))}>
              Compare with another
            </button>
          )}
        </div>
      )}
      <Tabs.Content value="chat">{used.length > 0 && <Chat models={used} />}</Tabs.Content>
      <Tabs.Content value="embeddings">{used[0] !== undefined && <Embeddings key={used[0]} model={used[0]} />}</Tabs.Content>
      <Tabs.Content value="rerank">{used[0] !== undefined && <Rerank key={used[0]} model={used[0]} />}</Tabs.Content>
      <Tabs.Content value="tokens">{used[0] !== undefined && <Tokens key={used[0]} model={used[0]} />}</Tabs.Content>
    </Tabs.Root>
  );
}

/** A session is for looking and operating; a request to a model needs a key, as any client's does. */
function KeyField() {
  const session = useSession();
  const { key } = useAccess();
  const { data: who } = useLook<Who>("api/session");
  const [text, setText] = useState("");
  if (who === undefined || who.by === "none" || key !== null) return null;
  return (
    <form
      className="filters"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim() !== "") session.useKey(text.trim());
      }}
    >
      <label>
        Requests to models need a key with the scope infer; it stays in this tab
        <input type="password" value={text} autoComplete="off" placeholder="mm-…" onChange={(event) => setText(event.target.value)} />
      </label>
      <button type="submit">Use it</button>
    </form>
  );
}
