// A plan that a client may report under: docs/plan.md.

import { type Bytes, fromHex, isUnicode, join, refuse, sha256, toHex, u64, utf8 } from "./bytes.js";
import type { OneHot } from "./circuit.js";
import { canonical, Float, integer, isTable, type Json, parse, type Table } from "./json.js";
import { circuitOf, contextOf, type Parameters } from "./parameters.js";
import { checkPrivacy } from "./privacy.js";
import { readSignature, type Signature } from "./signature.js";
import type { Schedule } from "./sketch.js";

/** What a client allows: a plan outside of it is refused before anything is made. */
export interface Policy {
  /** The fewest honest identities in a sum, at least 2. */
  readonly minHonest: number;
  /** The most corrupt identities that the plan must allow for. */
  readonly corrupt?: number;
  /** The most reports in a batch. */
  readonly maxBatch?: number;
  /** The most counters of a vector. */
  readonly maxLength?: number;
  /** The largest epsilon; then a plan without one is refused. */
  readonly epsilon?: number;
}

export interface Domain {
  readonly kind: "range" | "integers" | "dictionary" | "strings" | "grid";
  readonly size: bigint;
  readonly first: bigint;
  /** Whether the candidates are nobody's own items. */
  readonly isPublic: boolean;
  /** Digest of the candidates, if they are public. */
  readonly sha256: string | null;
}

export interface Plan {
  /** SHA-256 of the canonical plan, in hexadecimal digits. */
  readonly fingerprint: string;
  /** All entries of the plan, for whoever shows them. */
  readonly entries: Table;
  readonly seed: Bytes;
  readonly rows: number;
  readonly width: number;
  readonly schedule: Schedule;
  readonly num_rounds: number;
  /** Sums that are opened; each is of rounds in a row. */
  readonly releases: number;
  /** The most reports of a client, over all releases: its epsilon counts on that. */
  readonly mostReports: number;
  readonly histogram: boolean;
  readonly domain: Domain;
  readonly parameters: Parameters;
  readonly circuit: OneHot;
  readonly context: Bytes;
  /** Its registrar's; null: whoever read the plan trusts the fingerprint. */
  readonly signature: Signature | null;
}

/** Types of entries: integer, float, text, truth value, integers, the domain, or a table's own. */
type Type = "i" | "f" | "s" | "b" | "[]" | "domain" | keyof typeof ENTRIES;

/** All entries that a plan of two servers may have; "?" marks those that may be absent. */
const ENTRIES = {
  plan:
    "rows i width i schedule s num_rounds i num_clients i max_round_clients i max_items i " +
    "people? i spelling? spelling encoding? s seed s domain domain secure_sum sum " +
    "privacy? privacy target? target",
  spelling: "rows i width i",
  sum:
    "method s length i bits i n_max i min_batch i corrupt i leader_key? s helper_key? s " +
    "allow_list? s largest_entry i noise i validity? s",
  privacy: "epsilon f delta f population s not_private b event event",
  event:
    "schema s mechanism s rows i relation s variance f max_items i clip_norm? f " +
    "participations i per_release i honest_survivors? i collisions? [] total_variation f " +
    "trust s encoding? s silos_per_person? i",
  target: "linf f failure_probability f recovery s frequencies? s",
} as const;

const PRIMITIVE: Record<string, (value: Json) => boolean> = {
  i: (value) => typeof value === "bigint",
  f: (value) => value instanceof Float,
  s: (value) => typeof value === "string" && isUnicode(value),
  b: (value) => typeof value === "boolean",
  "[]": (value) => Array.isArray(value) && value.length === 2 && value.every(PRIMITIVE["i"]!),
  domain: (value) =>
    isTable(value) &&
    !Object.values(value).some((v) => typeof v === "object" && !(v instanceof Float)),
};

/** The entries of a table with their types: an integer is a float where a float belongs. */
function read(given: Json | undefined, table: keyof typeof ENTRIES, defaults: Table): Table {
  if (!isTable(given)) refuse(`the ${table} is no table`);
  const words = ENTRIES[table].split(" ");
  const entries: Record<string, Json> = {};
  const rest = new Set(Object.keys(given));
  for (let i = 0; i < words.length; i += 2) {
    const name = words[i]!.replace("?", "");
    const type = words[i + 1]! as Type;
    const value = rest.delete(name) ? given[name]! : defaults[name];
    if (value === undefined) {
      if (words[i]!.endsWith("?")) continue;
      refuse(`the ${table} of the plan lacks the entry "${name}"`);
    }
    if (type in ENTRIES) {
      entries[name] = read(value, type as keyof typeof ENTRIES, defaultsOf(value));
      continue;
    }
    const typed = type === "f" && typeof value === "bigint" ? new Float(Number(value)) : value;
    if (!PRIMITIVE[type]!(typed)) refuse(`the entry "${name}" has another type`);
    entries[name] = typed;
  }
  for (const name of rest) refuse(`the ${table} of the plan has an unknown entry "${name}"`);
  return entries;
}

/** Entries that a file may lack, and the canonical plan never does. */
function defaultsOf(table: Json): Table {
  if (!isTable(table)) return {};
  const trust = table["mechanism"] === "skellam" ? "distributed" : "central";
  return "mechanism" in table ? { trust } : { largest_entry: 1n, noise: 0n };
}

function scheduleOf(text: Json | undefined, rounds: number): Schedule {
  if (text === "shared" || text === "fresh" || text === "hybrid") return { kind: text };
  const batches = Number(/^batched:([1-9]\d{0,6})$/.exec(String(text))?.[1]);
  if (!(batches <= rounds)) refuse(`the schedule ${String(text)} is unknown`);
  return { kind: "batched", batches };
}

function domainOf(table: Table): Domain {
  const {
    kind,
    size,
    first = 0n,
    last = 0n,
    sha256: digest = null,
  } = table as Record<string, Json>;
  const known = ["range", "integers", "dictionary", "strings", "grid"];
  if (typeof table["public"] !== "boolean") refuse("the domain does not say if it is public");
  if (!known.includes(String(kind)))
    refuse(`a client here reports no domain of kind ${String(kind)}`);
  const listed = kind !== "range" && kind !== "grid";
  if (listed && (digest !== null) !== table["public"]) {
    refuse("the domain has sha256 only and always if it is public");
  }
  if (digest !== null) fromHex(digest, 32, "sha256 of the domain");
  if (typeof size !== "bigint" || size < 1n || size > 2n ** 64n) refuse("the domain has no size");
  if (typeof first !== "bigint" || typeof last !== "bigint") refuse("the bounds are no integers");
  const [low, high] = [first, last];
  if (kind === "range") {
    const bounds = -(2n ** 63n) <= low && low <= high && high < 2n ** 63n;
    if (!bounds || high - low + 1n !== size) refuse("the bounds of the range do not fit its size");
  }
  return {
    kind: kind as Domain["kind"],
    size,
    first: low,
    isPublic: table["public"],
    sha256: digest as string | null,
  };
}

function checkPolicy(of: Parameters, length: number, privacy: Table | undefined, policy: Policy) {
  const { minHonest, corrupt = 0, maxBatch = 2 ** 20, maxLength = 2 ** 24, epsilon } = policy;
  if (!(minHonest >= 2)) refuse("minHonest must be at least 2");
  const honest = of.min_batch - of.corrupt;
  // each so that a bound that is no number refuses everything
  if (!(honest >= minHonest)) refuse(`a sum may have ${honest} honest clients: below ${minHonest}`);
  if (!(of.corrupt >= corrupt))
    refuse(`the plan allows for ${of.corrupt} corrupt clients, not ${corrupt}`);
  if (!(of.n_max <= maxBatch)) refuse(`a batch may have ${of.n_max} reports: above ${maxBatch}`);
  if (!(length <= maxLength)) refuse(`a vector has ${length} counters: above ${maxLength}`);
  if (epsilon === undefined) return;
  const planned =
    privacy?.["not_private"] === false ? (privacy["epsilon"] as Float).value : Infinity;
  if (!(planned <= epsilon)) refuse(`the plan's epsilon is ${planned}: above ${epsilon}`);
}

const worded = (value: Json): string => (typeof value === "string" ? value : canonical(value));

/** The plan's entries, and its fingerprint. */
export async function readEntries(json: string): Promise<[Table, Bytes]> {
  const given = parse(json);
  if (!isTable(given)) refuse("the plan is no table");
  const { schema = "fedtally-plan/1", fingerprint, ...rest } = given as Record<string, Json>;
  if (schema !== "fedtally-plan/1") refuse(`a plan of schema ${worded(schema)} is unknown here`);
  const { method = "none" } = isTable(rest["secure_sum"]) ? rest["secure_sum"] : {};
  if (method !== "two-server") refuse(`reports go to two servers, not to ${worded(method)}`);
  const entries = read(rest, "plan", {});
  const digest = await sha256(utf8("fedtally-plan/1\n"), utf8(canonical(entries)));
  if (fingerprint !== undefined && fingerprint !== toHex(digest)) {
    refuse("the fingerprint in the file is not that of the plan");
  }
  return [entries, digest];
}

/** Refuses plans of which a client here cannot make reports; says whether it is a histogram. */
function checkKind(entries: Table, sum: Table): boolean {
  if (sum["validity"] !== "proofs") refuse('the plan has no validity = "proofs"');
  if (entries["people"] !== undefined) refuse("a browser is one person, and the plan has silos");
  if (entries["spelling"] !== undefined) refuse("a client here reports no open domain");
  integer(entries, "max_items", 1, 1);
  integer(sum, "largest_entry", 1, 1);
  const encoding = entries["encoding"];
  if (encoding !== undefined && encoding !== "histogram") {
    refuse(`the encoding ${String(encoding)} is unknown`);
  }
  return encoding === "histogram";
}

function checkHistogram(rows: number, width: number, schedule: Schedule, domain: Domain): void {
  if (rows !== 1 || BigInt(width) !== domain.size || schedule.kind !== "shared") {
    refuse("the histogram does not have one counter for each candidate");
  }
  if (domain.kind === "integers" || domain.kind === "strings") {
    refuse(`a histogram has no domain of kind ${domain.kind}`);
  }
}

function checkPeople(entries: Table, sum: Table, rounds: number, releases: number): number {
  const people = integer(entries, "num_clients", 1, 2 ** 40);
  const most = integer(entries, "max_round_clients", 1, people);
  if (rounds * most < people) refuse("the rounds cannot hold num_clients");
  const together = Math.min(people, most * Math.ceil(rounds / releases));
  if (Number(sum["min_batch"]) > together) refuse(`no sum of the plan has min_batch clients`);
  return people;
}

/** Sums that are opened: of each round, or, where two parties add noise, of each batch of rounds. */
function releasesOf(schedule: Schedule, rounds: number, hasNoise: boolean): number {
  if (!hasNoise || schedule.kind === "hybrid" || schedule.kind === "fresh") return rounds;
  return schedule.kind === "batched" ? schedule.batches : 1;
}

/** The rounds that are in one release, as numbers: the first, and the first that is not. */
export function roundsOf(plan: Plan, release: number): [number, number] {
  const { num_rounds, releases } = plan;
  if (!Number.isInteger(release) || release < 0 || release >= releases) {
    refuse(`the plan has no release ${release}: releases are 0 to ${releases - 1}`);
  }
  const first = (number: number) =>
    number * Math.floor(num_rounds / releases) + Math.min(number, num_rounds % releases);
  return [first(release), first(release + 1)];
}

/** What the servers must agree about, as the plan says it. */
function parametersOf(
  sum: Table,
  privacy: Table | undefined,
  shape: Pick<Parameters, "widths" | "signed" | "fingerprint">,
): Parameters {
  const key = (name: string) =>
    fromHex(sum[name] ?? refuse(`the plan is not published: it lacks ${name}`), 32, name);
  const event = privacy?.["event"] as Table | undefined;
  return {
    ...shape,
    bits: Number(sum["bits"]),
    noise: Number(sum["noise"]),
    n_max: Number(sum["n_max"]),
    min_batch: Number(sum["min_batch"]),
    corrupt: Number(sum["corrupt"]),
    leader_key: key("leader_key"),
    helper_key: key("helper_key"),
    allow_list: key("allow_list"),
    abstain: privacy !== undefined,
    central: event?.["trust"] === "central",
  };
}

/**
 * Reads a plan (a file of JSON), and refuses one that no report can be made for.
 *
 * @param json the file's text
 * @param fingerprint of the plan, from a source that the client trusts
 * @param policy what the client allows
 * @throws InputError that names the entry
 */
export async function readPlan(json: string, fingerprint: string, policy: Policy): Promise<Plan> {
  if (json.length > 2 ** 20) refuse("a plan has at most 2^20 bytes");
  const [entries, digest] = await readEntries(json);
  if (toHex(digest) !== fingerprint) refuse("the plan is another one: its fingerprint differs");
  const sum = entries["secure_sum"] as Table;
  const privacy = entries["privacy"] as Table | undefined;
  const histogram = checkKind(entries, sum);
  const [rows, width] = [integer(entries, "rows", 1, 1024), integer(entries, "width", 1, 2 ** 24)];
  integer(sum, "length", rows * width, rows * width);
  const num_rounds = integer(entries, "num_rounds", 1, 2 ** 20);
  const schedule = scheduleOf(entries["schedule"], num_rounds);
  const releases = releasesOf(schedule, num_rounds, privacy !== undefined);
  const num_clients = checkPeople(entries, sum, num_rounds, releases);
  const domain = domainOf(entries["domain"] as Table);
  if (histogram) checkHistogram(rows, width, schedule, domain);
  const opened = { rows, counters: rows * width, histogram, num_clients, num_rounds, releases };
  const [noise, isPublic] = [Number(sum["noise"]), domain.isPublic];
  const mostReports = checkPrivacy(privacy, { ...opened, isPublic, noise });
  const widths = new Array<number>(rows).fill(width);
  const shape = { widths, signed: !histogram, fingerprint: digest };
  const parameters = parametersOf(sum, privacy, shape);
  const circuit = circuitOf(parameters);
  checkPolicy(parameters, rows * width, privacy, policy);
  const context = await contextOf(parameters, circuit);
  const seed = fromHex(entries["seed"], 32, "seed");
  const sketch = { seed, rows, width, schedule, num_rounds, histogram, domain };
  const opens = { releases, mostReports, parameters, circuit, context };
  return { fingerprint, entries, ...sketch, ...opens, signature: null };
}

/**
 * Reads a plan that a registrar signed, wherever its files come from.
 *
 * @param json the file's text
 * @param line the text of the signature's file
 * @param registrar the registrar's key, which the client pinned: 64 hexadecimal digits
 * @param purpose what the client is enrolled for, as the registrar words it
 * @param policy what the client allows
 * @throws InputError that names the entry, or what the signature lacks
 */
export async function readSignedPlan(
  json: string,
  line: string,
  registrar: string,
  purpose: string,
  policy: Policy,
): Promise<Plan> {
  const signature = await readSignature(line, registrar, purpose);
  return { ...(await readPlan(json, signature.plan, policy)), signature };
}

/** Bytes behind their number. */
const prefixed = (bytes: Bytes): Bytes => join(u64(bytes.length), bytes);

/** The candidates of a plan that does not say them itself, checked against what it does say. */
export async function checkCandidates(
  domain: Domain,
  candidates: readonly (string | bigint)[],
): Promise<void> {
  if (BigInt(candidates.length) !== domain.size) {
    refuse(`the plan has ${domain.size} candidates, not ${candidates.length}`);
  }
  const type = domain.kind === "integers" ? "bigint" : "string";
  if (candidates.some((each) => typeof each !== type)) refuse(`candidates must be of type ${type}`);
  if (domain.sha256 === null) return;
  const parts = candidates.map((each) =>
    typeof each === "string" ? prefixed(utf8(each)) : u64(BigInt.asUintN(64, each)),
  );
  if (toHex(await sha256(...parts)) !== domain.sha256) refuse("the candidates are not the plan's");
}
