import type { Device, Reservation } from "../api/types";
import { bytes } from "../format/quantities";
import { Section } from "./section";

interface Segment {
  id: string;
  label: string;
  size: number;
  look: string;
}

const COLOURS = 6;

/** The colour of a model, the same on every device: by its place in the catalog, so that neighbours differ. */
function colour(model: string, order: readonly string[]): string {
  const place = order.indexOf(model);
  return place < 0 ? "c-gone" : `c${place % COLOURS}`;
}

function note(reservation: Reservation): string {
  if (reservation.leaving) return " (leaving)";
  return reservation.in_use ? "" : " (promised)";
}

function segments(device: Device, order: readonly string[]): Segment[] {
  const held = [...device.reservations].sort((a, b) => order.indexOf(a.model) - order.indexOf(b.model));
  const found: Segment[] = held.map((r) => ({
    id: `model ${r.model}`,
    label: `${r.model}${note(r)}`,
    size: r.bytes,
    look: `${colour(r.model, order)}${r.in_use && !r.leaving ? "" : " hatched"}`,
  }));
  found.push({ id: "foreign", label: "other processes", size: device.foreign, look: "c-foreign" });
  found.push({ id: "headroom", label: "kept free", size: device.headroom, look: "c-headroom" });
  found.push({ id: "free", label: "free", size: device.free, look: "c-free" });
  return found.filter((segment) => segment.size > 0 || segment.id === "free");
}

export function Devices({ devices, order }: { devices: readonly Device[]; order: readonly string[] }) {
  return (
    <Section title="Devices">
      {devices.length === 0 && (
        <p className="empty">
          The server found no device. <code>vllm-mm doctor</code> looks for the reason.
        </p>
      )}
      <ul className="devices">
        {devices.map((device) => (
          <DeviceBar key={device.id} device={device} order={order} />
        ))}
      </ul>
    </Section>
  );
}

function DeviceBar({ device, order }: { device: Device; order: readonly string[] }) {
  const parts = segments(device, order);
  // A device can be overcommitted: then the parts are more than the whole.
  const whole = Math.max(device.capacity, parts.reduce((sum, part) => sum + part.size, 0));
  const over = whole - device.capacity;
  return (
    <li>
      <div className="device-head">
        <strong>{device.id}</strong>
        <span className="note">{device.name === device.id ? device.kind : device.name}</span>
        <span className="capacity">{bytes(device.capacity)}</span>
      </div>
      {device.problem && <p className="bad">Out of use: {device.problem}</p>}
      <div className="bar" aria-hidden="true">
        {parts.map((part) => (
          <span key={part.id} className={part.look} style={{ width: `${(100 * part.size) / whole}%` }} title={`${part.label}: ${bytes(part.size)}`} />
        ))}
      </div>
      <ul className="legend" aria-label={`Memory of ${device.id}`}>
        {parts.map((part) => (
          <li key={part.id}>
            <span className={`swatch ${part.look}`} aria-hidden="true" />
            {part.label} <b>{bytes(part.size)}</b>
          </li>
        ))}
        {over > 0 && <li className="bad">{bytes(over)} more than there is</li>}
      </ul>
    </li>
  );
}
