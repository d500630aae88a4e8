import { moment } from "./clock";

/** A moment, in Unix seconds; all of it is told to those who point at it. */
export function Moment({ at }: { at: number }) {
  const date = new Date(at * 1000);
  return (
    <time dateTime={date.toISOString()} title={date.toLocaleString()}>
      {moment(at * 1000)}
    </time>
  );
}
