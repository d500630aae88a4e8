/** `work`, one at a time: calls during a run lead to one more run after it, so that what was asked for last is seen. */
export function coalesced(work: () => Promise<unknown>): () => void {
  let running = false;
  let again = false;
  return () => {
    again = true;
    if (running) return;
    running = true;
    void (async () => {
      try {
        while (again) {
          again = false;
          await work();
        }
      } finally {
        running = false;
      }
    })();
  };
}
