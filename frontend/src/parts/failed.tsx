import { Prose } from "./prose";

/** Why something could not be shown or done, in the server's words. Nothing without an error. */
export function Failed({ error }: { error: Error | string | null | undefined }) {
  if (error === null || error === undefined || error === "") return null;
  return (
    <p className="failed" role="alert">
      <Prose text={typeof error === "string" ? error : error.message} />
    </p>
  );
}
