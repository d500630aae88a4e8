/** Which repository of a hub a model's `model` names, and how far its download is. */

import type { Pull, Weights } from "../api/types";
import { about, bytes } from "./quantities";

const ID = /^[A-Za-z0-9][\w.-]*\/[\w.-]+$/;

/** The id on the hub; null for a folder, or for what is no id. */
export function repositoryOf(source: string): string | null {
  const text = source.trim();
  return ID.test(text) ? text : null;
}

export function over(pull: Pull): boolean {
  return pull.ended_at !== null;
}

/** 0 to 100; null while the hub has not said how much there is. */
export function percent(pull: Pull): number | null {
  return pull.total === null || pull.total === 0 ? null : Math.min(100, (100 * pull.done) / pull.total);
}

/** `4.2 GiB of 14 GiB · 120 MiB/s · about 2 min left`. */
export function told(pull: Pull): string {
  const parts = [pull.total === null ? bytes(pull.done) : `${bytes(pull.done)} of ${bytes(pull.total)}`];
  if (!over(pull)) {
    if (pull.rate !== null && pull.rate > 0) parts.push(`${bytes(pull.rate)}/s`);
    if (pull.eta_s !== null) parts.push(`about ${about(pull.eta_s)} left`);
  }
  return parts.join(" · ");
}

/** Bytes that are there, of a whole download or of a part of one. */
export function stored(weights: Weights, repository: string): { size: number; partial: number } | null {
  const found = weights.repositories.find(({ repo }) => repo.toLowerCase() === repository.toLowerCase());
  return found === undefined ? null : { size: found.size, partial: found.partial };
}
