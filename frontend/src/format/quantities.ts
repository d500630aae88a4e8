/** Numbers as people read them. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Three figures at most: `270 MiB`, `23.5 GiB`. */
export function bytes(count: number): string {
  let value = count;
  let unit = 0;
  // 1023.6 would be written 1024.
  while (Math.round(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** The two largest units: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`, `4 d 3 h`. */
export function duration(seconds: number): string {
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const [minutes, hours, days] = [Math.floor(whole / 60), Math.floor(whole / 3600), Math.floor(whole / 86_400)];
  if (hours === 0) return `${minutes} min ${two(whole % 60)} s`;
  if (days === 0) return `${hours} h ${two(minutes % 60)} min`;
  return `${days} d ${hours % 24} h`;
}

/** An estimate, without the figures that it does not have: `5 s`, `3 min`. */
export function about(seconds: number): string {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export function count(number: number, one: string, many: string): string {
  return `${number} ${number === 1 ? one : many}`;
}

function two(number: number): string {
  return String(number).padStart(2, "0");
}
