import { useState } from "react";
import { useOverview, useSession } from "../api/overview";
import { Failed } from "./failed";
import { Queue } from "./queue";

/** Who waits, each with a way to end it. */
export function UnderWay() {
  const { data } = useOverview();
  const session = useSession();
  const [error, setError] = useState<Error | null>(null);
  if (data === undefined || data.queue.length === 0) return null;
  const cancel = async (id: string) => {
    try {
      await session.post(`api/requests/${encodeURIComponent(id)}/cancel`);
      setError(null);
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <>
      <Failed error={error} />
      <Queue queue={data.queue} onCancel={(id) => void cancel(id)} />
    </>
  );
}
