/** Acts on models: asked for, confirmed where others would feel them, sent, and told when they are refused. */

import { useCallback, useState } from "react";
import { modelPath } from "./api/paths";
import { useSession } from "./api/overview";
import type { Instance, Plan } from "./api/types";
import { ASKING, loadQuestion, type Act, type Asking, type Question } from "./format/acts";

export type Asked =
  /** The question is made anew from the instance as it is while it stands. */
  { model: string; act: Asking } | { model: string; act: "start" | "wake"; question: Question };

export function useActs(refresh: () => void) {
  const session = useSession();
  const [sent, setSent] = useState<ReadonlySet<string>>(new Set());
  const [asked, setAsked] = useState<Asked | null>(null);
  const [trouble, setTrouble] = useState<string | null>(null);

  const during = useCallback(async (model: string, act: Act, work: () => Promise<void>) => {
    const mark = `${model} ${act}`;
    setSent((marks) => new Set(marks).add(mark));
    setTrouble(null);
    try {
      await work();
    } catch (error) {
      setTrouble(`${act} ${model}: ${error instanceof Error ? error.message : String(error)}`);
    } finally {
      setSent((marks) => new Set([...marks].filter((m) => m !== mark)));
    }
  }, []);

  const send = useCallback(
    async (model: string, act: Act, force: boolean) => {
      await session.post<Instance>(modelPath(model, act) + (force ? "?force=true" : ""));
      refresh();
    },
    [session, refresh],
  );

  const act = useCallback(
    (model: string, wish: Act) => {
      if (ASKING.has(wish)) {
        setAsked({ model, act: wish as Asking });
        return;
      }
      void during(model, wish, async () => {
        if (wish === "start" || wish === "wake") {
          const plan = await session.get<Plan>(`api/plan?model=${encodeURIComponent(model)}`);
          const question = loadQuestion(wish, plan);
          if (question !== null) {
            setAsked({ model, act: wish, question });
            return;
          }
        }
        await send(model, wish, false);
      });
    },
    [during, send, session],
  );

  const answer = useCallback(
    (yes: boolean, force = false) => {
      if (yes && asked !== null) void during(asked.model, asked.act, () => send(asked.model, asked.act, force));
      setAsked(null);
    },
    [asked, during, send],
  );

  return { sent, asked, trouble, act, answer, dismiss: () => setTrouble(null) };
}
