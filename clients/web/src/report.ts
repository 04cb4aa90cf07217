// One report of one item.

import { checkAlgorithms } from "./algorithms.js";
import { type Bytes, refuse } from "./bytes.js";
import { type Frames, makeFrames, oneHot, type Secrets, type Server } from "./frames.js";
import { seal } from "./hpke.js";
import { type Identity, sign } from "./identity.js";
import { checkCandidates, type Plan } from "./plan.js";
import { cellsOf, fingerprint } from "./sketch.js";

/**
 * An integer, a text, the number of a grid's cell, or null for nothing. Under a plan with epsilon
 * what is no candidate counts as nothing: no refusal may tell what a client holds.
 */
export type Item = number | bigint | string | null;

export interface Options {
  /** The round that the report is for, from 0. */
  readonly round: number;
  /** The candidates, in the plan's order: unless the plan has a range or a grid. */
  readonly candidates?: readonly (string | bigint)[];
  /** Seconds since 1970: by default by the clock. */
  readonly time?: number;
}

/** The id of an item, and its place among the candidates; null for what is no candidate. */
async function locate(
  { domain, seed }: Plan,
  item: Item,
  candidates: Options["candidates"],
): Promise<{ id: bigint; place: bigint } | null> {
  const isListed = domain.kind !== "range" && domain.kind !== "grid";
  if (isListed) {
    // whatever the item is: who holds nothing is refused like everybody
    if (candidates === undefined) refuse(`a domain of kind ${domain.kind} needs its candidates`);
    await checkCandidates(domain, candidates);
  }
  if (item === null) return null;
  const isText = domain.kind === "dictionary" || domain.kind === "strings";
  if (isText !== (typeof item === "string")) {
    refuse(`items of a domain of kind ${domain.kind} are ${isText ? "texts" : "integers"}`);
  }
  if (typeof item === "number" && !Number.isSafeInteger(item)) return null;
  const exact = typeof item === "string" ? item : BigInt(item);
  if (!isListed) {
    const first = domain.kind === "range" ? domain.first : 0n;
    const place = (exact as bigint) - first;
    return place < 0n || place >= domain.size ? null : { id: idOf(exact as bigint), place };
  }
  const place = BigInt(candidates!.indexOf(exact));
  if (place < 0n) return null;
  if (typeof exact === "bigint") return { id: idOf(exact), place };
  return { id: domain.kind === "strings" ? fingerprint(seed, exact) : place, place };
}

const idOf = (value: bigint): bigint => BigInt.asUintN(64, value);
export const drawn = (size: number): Bytes => crypto.getRandomValues(new Uint8Array(size));

/**
 * Makes both frames of a report. Each call draws everything anew: keep the frames, and send
 * the same ones again, since servers take one report of an identity in a release.
 *
 * @throws InputError before anything is drawn, if the item or the round is not the plan's
 * @throws MissingAlgorithmError before anything is drawn, if the browser lacks an algorithm
 */
export async function report(
  plan: Plan,
  identity: Identity,
  item: Item,
  options: Options,
): Promise<Frames> {
  await checkAlgorithms();
  const { round, candidates, time = Math.floor(Date.now() / 1000) } = options;
  const { circuit, context, parameters } = plan;
  if (!Number.isInteger(round) || round < 0 || round >= plan.num_rounds) {
    refuse(`the plan has no round ${round}: rounds are 0 to ${plan.num_rounds - 1}`);
  }
  if (!Number.isSafeInteger(time) || time < 0) refuse(`${time} is no time in seconds`);
  if (time >= (plan.signature?.end ?? Infinity)) refuse("the plan's last day is over");
  const found = await locate(plan, item, candidates);
  if (found === null && !circuit.abstain) refuse("the item is outside the plan's domain");
  const cells =
    found &&
    (plan.histogram ? [[Number(found.place), 1] as const] : cellsOf(plan, found.id, round));
  const vector = oneHot(circuit, cells);
  const secrets: Secrets = {
    nonce: drawn(16),
    seed: drawn(32),
    salt: drawn(32),
    proveSeed: drawn(32),
  };
  const keys = { leader: parameters.leader_key, helper: parameters.helper_key };
  const sealFor = (server: Server, info: Bytes, plaintext: Bytes) =>
    seal(keys[server], info, plaintext);
  const making = { circuit, context, round, identity: identity.publicKey, time, sealFor };
  try {
    return await makeFrames({ ...making, sign: (text) => sign(identity, text) }, vector, secrets);
  } finally {
    for (const each of [secrets.seed, secrets.salt, secrets.proveSeed]) each.fill(0);
    vector.words.fill(0);
  }
}
