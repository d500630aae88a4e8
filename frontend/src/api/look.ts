/** One thing of the server's, looked at again at intervals. */

import { keepPreviousData, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useAccess, useSession } from "./overview";
import { Refused } from "./session";

/** `path` null: not now. `every`: seconds between two looks; without it, when the page is opened and when it is asked for. */
export function useLook<T>(path: string | null, every?: number): UseQueryResult<T> {
  const session = useSession();
  const { wanted } = useAccess();
  return useQuery({
    queryKey: ["look", path],
    queryFn: ({ signal }) => session.get<T>(path ?? "", signal),
    enabled: path !== null && wanted === null,
    refetchInterval: every === undefined ? false : every * 1000,
    placeholderData: keepPreviousData,
    retry: (count, error) => !(error instanceof Refused) && count < 1,
    retryDelay: 500,
  });
}

/** A query string of what is set: empty and undefined values are left out. */
export function query(values: Record<string, string | number | boolean | undefined | null>): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "") found.set(name, String(value));
  }
  const text = found.toString();
  return text === "" ? "" : `?${text}`;
}
