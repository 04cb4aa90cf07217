// A report and its two frames: docs/protocol.md, "The report to two servers" and "Messages of proofs".

import { type Bytes, hkdf, join, label, sha256, u32, u64, u8, utf8 } from "./bytes.js";
import type { OneHot, RowSums } from "./circuit.js";
import type { Element } from "./field.js";

/** What a client draws anew for each report. */
export interface Secrets {
  readonly nonce: Bytes; // 16 bytes, and the others 32
  readonly seed: Bytes;
  readonly salt: Bytes;
  readonly proveSeed: Bytes;
}

/** What a vector is: its words, and what the circuit sums of each row, for (r1, r2). */
export interface Vector {
  /** All words of the vector, also the checksum words and e. */
  readonly words: Float64Array;
  readonly e: number;
  rows(r1: Element, r2: Element): RowSums[];
}

/** Where a report goes, and how the outside world takes part in it. */
export interface Making {
  readonly circuit: OneHot;
  readonly context: Bytes;
  readonly round: number;
  readonly identity: Bytes;
  /** Seconds since 1970. */
  readonly time: number;
  sealFor(server: Server, info: Bytes, plaintext: Bytes): Promise<Bytes>;
  sign(text: Bytes): Promise<Bytes>;
}

export type Server = "helper" | "leader";
export type Frames = { readonly [server in Server]: Bytes };

const LEADER_REPORT = 32;
const HELPER_REPORT = 33;

function frame(type: number, context: Bytes, body: Bytes): Bytes {
  const start = join(utf8("FTSA"), u8(1), u8(type), u8(0), u8(0));
  return join(start, context, u32(2 ** 32 - 1), u32(body.length), body);
}

function subtract(circuit: OneHot, words: ArrayLike<number>, mask: ArrayLike<number>) {
  const share = new Float64Array(words.length);
  for (let i = 0; i < share.length; i++) share[i] = circuit.field.minus(words[i]!, mask[i]!);
  return share;
}

/** The leader's share of the proof; all of its randomness depends on both parts. */
async function proofShare(circuit: OneHot, vector: Vector, secrets: Secrets, joint: Bytes) {
  const { field } = circuit;
  const [r1, r2, r3] = await field.elements(joint, 3);
  const products = circuit.multiply(vector.rows(r1!, r2!), vector.e, r3!);
  const proveKey = await hkdf(secrets.proveSeed, joint, label("two-server prove"));
  const proof = circuit.prove(products, await field.elements(proveKey, 2 * circuit.c)).flat();
  const maskKey = await hkdf(secrets.seed, joint, label("two-server proof mask"));
  const share = subtract(circuit, proof, await field.words(maskKey, proof.length));
  proveKey.fill(0);
  maskKey.fill(0);
  proof.fill(0);
  return field.encode(share);
}

/** Both frames of a report, for secrets that serve no other report. */
export async function makeFrames(
  making: Making,
  vector: Vector,
  secrets: Secrets,
): Promise<Frames> {
  const { circuit, context, identity } = making;
  const { nonce, seed, salt } = secrets;
  const after = join(nonce, u32(making.round), identity, u64(making.time));
  const bound = join(context, after);
  const id = (await sha256(label("two-server id"), bound)).slice(0, 16);
  const sealed = await making.sealFor("helper", join(label("two-server seed"), bound), seed);
  const maskKey = await hkdf(seed, join(context, id), label("two-server mask"));
  const mask = await circuit.field.words(maskKey, circuit.length);
  const words = circuit.field.encode(subtract(circuit, vector.words, mask));
  maskKey.fill(0);
  mask.fill(0);
  const dL = await sha256(label("two-server part"), u8(LEADER_REPORT), salt, words);
  const dH = await sha256(label("two-server part"), u8(HELPER_REPORT), sealed);
  const joint = await sha256(label("two-server joint randomness"), bound, dL, dH);
  const proof = await proofShare(circuit, vector, secrets, joint);
  const dP = await sha256(label("two-server proof share"), salt, proof);
  const signature = await making.sign(join(label("two-server report"), bound, dL, dH, dP));
  const part = join(salt, words, proof);
  const sealedPart = await making.sealFor("leader", join(label("two-server share"), bound), part);
  const body = (digest: Bytes, ...rest: Bytes[]) => join(after, digest, signature, ...rest);
  return {
    helper: frame(HELPER_REPORT, context, body(dL, sealed, dP)),
    leader: frame(LEADER_REPORT, context, body(dH, sealedPart)),
  };
}

/** A vector with one entry in each row, or, without cells, with none. */
export function oneHot(
  circuit: OneHot,
  cells: readonly (readonly [number, number])[] | null,
): Vector {
  const { field, widths } = circuit;
  const words = new Float64Array(circuit.length);
  words.fill(1, circuit.counters, circuit.counters + circuit.checksumWords);
  const e = cells === null ? 0 : 1;
  if (circuit.abstain) words[circuit.length - 1] = e;
  const residue = (value: number) => (value < 0 ? value + field.p : value);
  let start = 0;
  widths.forEach((width, row) => {
    if (cells !== null) words[start + cells[row]![0]] = residue(cells[row]![1]);
    start += width;
  });
  const rows = (r1: Element, r2: Element): RowSums[] =>
    widths.map((_, row) => {
      if (cells === null) return { z: field.zero, y: field.zero, s: field.zero };
      const [cell, value] = cells[row]!;
      const weight = circuit.weight(cell, r1, r2);
      const sum = (element: Element) => field.scale(element, residue(value));
      return { z: sum(weight), y: sum(field.multiply(weight, weight)), s: sum(field.one) };
    });
  return { words, e, rows };
}
