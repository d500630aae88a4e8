import { useQuery } from "@tanstack/react-query";
import { useContext, createContext, useSyncExternalStore } from "react";
import { Refused, type Access, type Session } from "./session";
import type { Device, Instance, Model, Queue, Status } from "./types";

export const SessionContext = createContext<Session | null>(null);

export function useSession(): Session {
  const session = useContext(SessionContext);
  if (session === null) throw new Error("no Session above");
  return session;
}

export function useAccess(): Access {
  const session = useSession();
  return useSyncExternalStore(session.subscribe, session.access);
}

/** All that the first page shows, taken at about one moment. */
export interface Overview {
  status: Status;
  models: Model[];
  /** Engines of models that were removed and still run. */
  removed: Instance[];
  devices: Device[];
  queue: Queue;
}

export const OVERVIEW = ["overview"] as const;
const BUSY = 1000; // ms between two looks while something is under way
const CALM = 3000;

async function look(session: Session, signal: AbortSignal): Promise<Overview> {
  const [status, models, instances, devices, queue] = await Promise.all([
    session.get<Status>("api/status", signal),
    session.get<Model[]>("api/models", signal),
    session.get<Instance[]>("api/instances", signal),
    session.get<Device[]>("api/devices", signal),
    session.get<Queue>("api/queue", signal),
  ]);
  const known = new Set(models.map((model) => model.id));
  return { status, models, removed: instances.filter((i) => !known.has(i.model)), devices, queue };
}

function busy(seen: Overview): boolean {
  return seen.queue.length > 0 || seen.status.in_flight > 0 || seen.models.some((m) => m.instance?.pending === true);
}

/** Looked at again on every event (see App), and at intervals for what changes without one. */
export function useOverview() {
  const session = useSession();
  const { wanted } = useAccess();
  return useQuery({
    queryKey: OVERVIEW,
    queryFn: ({ signal }) => look(session, signal),
    enabled: wanted === null,
    refetchInterval: (query) => (query.state.data !== undefined && busy(query.state.data) ? BUSY : CALM),
    retry: (count, error) => !(error instanceof Refused) && count < 1,
    retryDelay: 500,
  });
}
