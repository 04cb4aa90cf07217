// What a plan promises, as far as a client can check it without accounting: docs/plan.md. Epsilon
// itself is not computed of the noise.

import { refuse } from "./bytes.js";
import { checkName } from "./identity.js";
import { type Float, integer, type Table } from "./json.js";

/** What a plan opens, which its promise must describe. */
export interface Opened {
  readonly rows: number;
  readonly counters: number;
  readonly histogram: boolean;
  readonly num_clients: number;
  readonly num_rounds: number;
  /** Sums that are opened. */
  readonly releases: number;
  readonly isPublic: boolean;
  /** The most that the noise of both servers adds to a counter, as the plan says. */
  readonly noise: number;
}

function real(table: Table, name: string, low: number, high: number): number {
  const { value } = table[name] as Float;
  if (!(value >= low && value <= high)) refuse(`${name} must be from ${low} to ${high}, not ${value}`);
  return value;
}

function oneOf(table: Table, name: string, ...known: readonly string[]): string {
  const value = String(table[name]);
  if (!known.includes(value)) refuse(`the event's ${name} must be ${known.join(" or ")}, not ${value}`);
  return value;
}

const within = ([low, high]: readonly bigint[], most: number): boolean =>
  0n <= high! && high! <= low! && low! <= BigInt(most);

/** Refuses entries that no event of two servers and single people has. */
function checkEvent(event: Table, of: Opened): void {
  const relation = oneOf(event, "relation", "zero-out", "replace-one"); // else the number is secret
  integer(event, "rows", of.rows, of.rows);
  integer(event, "max_items", 1, 1);
  if ((event["encoding"] === "histogram") !== of.histogram || (!of.histogram && event["encoding"])) {
    refuse("the event's encoding is not the plan's");
  }
  for (const name of ["honest_survivors", "silos_per_person"]) {
    if (name in event) refuse(`an event of two servers and single people has no ${name}`);
  }
  if ("clip_norm" in event) {
    if (of.histogram) refuse("an event of a histogram has no clip_norm");
    real(event, "clip_norm", Math.sqrt(of.rows), 1e9);
  }
  const collisions = event["collisions"] as bigint[] | undefined;
  const may = !of.histogram && relation === "replace-one" && event["trust"] === "central";
  if (collisions && !(may && within(collisions, of.rows))) refuse("the event's collisions are wrong");
}

/** The most that noise adds to a counter of a sum, but for 2^-40, as the plan must say it. */
const bound = (variance: number, draws: number, counters: number): number => {
  const exponent = Math.log(2 * counters) + 40 * Math.log(2);
  const stddev = Math.sqrt(variance) * Math.sqrt(draws);
  return Math.ceil(stddev * Math.sqrt(2 * exponent) * (1 + 1e-12)) + 1; // each is rounded
};

/** Refuses noise that is not what the event counts on; returns its bound. */
function noiseOf(event: Table, counters: number, histogram: boolean): number {
  const isCentral = oneOf(event, "trust", "central", "distributed") === "central";
  const pure = isCentral && histogram ? ["geometric"] : [];
  const isPure = oneOf(event, "mechanism", "rounded-gaussian", ...pure) === "geometric";
  const variance = real(event, "variance", isPure ? 2 ** -20 : 2 ** -6, 2 ** 29);
  // one draw more than counters; and a server stops where its noise has no room
  const drawn = 2 ** (Math.ceil(Math.log2(counters + 1)) - 108) + (isCentral ? 0 : 2 ** -80);
  real(event, "total_variation", isPure ? 0 : drawn, isPure ? 0 : 1);
  return isCentral ? 0 : bound(variance, 2, counters);
}

/**
 * Refuses a promise that is not one of what the plan opens.
 *
 * @returns the most reports of a client, over all releases
 */
export function checkPrivacy(privacy: Table | undefined, of: Opened): number {
  const event = privacy?.["event"] as Table | undefined;
  const noise = event ? noiseOf(event, of.counters, of.histogram) : 0;
  if (of.noise !== noise) refuse(`noise must be ${noise}, that of the plan's privacy, not ${of.noise}`);
  if (!privacy || !event) return Infinity;
  oneOf(event, "schema", "fedtally-event/1");
  checkEvent(event, of);
  checkName(String(privacy["population"]), "population");
  real(privacy, "epsilon", 1e-3, 100);
  const isPure = event["mechanism"] === "geometric";
  const delta = isPure ? real(privacy, "delta", 0, 0) : real(privacy, "delta", Number.MIN_VALUE, 1 - 2 ** -53);
  const isMarked = privacy["not_private"];
  if (delta * of.num_clients >= 1 && !isMarked) refuse("delta must be below 1 / num_clients");
  if (!of.isPublic && !isMarked) refuse("with privacy the domain must be public");
  const most = integer(event, "participations", 1, of.num_rounds);
  const lost = 2 * most * (event["total_variation"] as Float).value; // at least, at any epsilon
  if (!isPure && delta <= lost) refuse(`delta must exceed ${lost}, which drawing the noise uses up`);
  // two servers take one report of a client in a release
  const together = Math.min(most, Math.ceil(of.num_rounds / of.releases));
  if (together > 1) refuse("a client may be in several rounds of a release");
  integer(event, "per_release", 1, 1);
  return most;
}
