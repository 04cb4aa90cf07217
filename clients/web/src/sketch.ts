// The cells of an item: docs/protocol.md, and docs/plan.md for histograms.

import { shake256 } from "@noble/hashes/sha3.js";

import { type Bytes, join, toInteger, u32, u8, utf8 } from "./bytes.js";

function shake(name: string, size: number, ...parts: Bytes[]): Bytes {
  return join(shake256(join(utf8(`fedtally/1/${name}`), u8(0), ...parts), { dkLen: size }));
}

/** The word of an id: simple tabulation, whose tables are 8 x 256 integers of 32 bits. */
function word(seed: Bytes, row: number, group: number, id: bigint): number {
  const tables = shake("tabulation", 8 * 256 * 4, seed, u8(0), u32(row), u32(group));
  const view = new DataView(tables.buffer);
  let result = 0;
  for (let c = 0; c < 8; c++, id >>= 8n) {
    result ^= view.getUint32(4 * (256 * c + Number(id & 255n)), true);
  }
  return result >>> 0;
}

export type Schedule =
  | { readonly kind: "shared" | "fresh" | "hybrid" }
  | { readonly kind: "batched"; readonly batches: number };

/** The batch of a round, if rounds are cut into batches and the larger ones come first. */
export function batchOf(round: number, rounds: number, batches: number): number {
  const small = Math.floor(rounds / batches);
  const large = rounds % batches;
  const inLarge = large * (small + 1);
  return round < inLarge
    ? Math.floor(round / (small + 1))
    : large + Math.floor((round - inLarge) / small);
}

/** In each row the location of an id in [0, width), and its sign in a round, +1 or -1. */
export function cellsOf(
  sketch: { seed: Bytes; rows: number; width: number; schedule: Schedule; num_rounds: number },
  id: bigint,
  round: number,
): (readonly [number, number])[] {
  const { schedule, width } = sketch;
  const seed =
    schedule.kind === "fresh" ? shake("round", 32, sketch.seed, u32(round)) : sketch.seed;
  const turn =
    schedule.kind === "hybrid"
      ? round
      : schedule.kind === "batched"
        ? batchOf(round, sketch.num_rounds, schedule.batches)
        : 0;
  const group = Math.floor(turn / 8);
  return Array.from({ length: sketch.rows }, (_, row) => {
    const first = word(seed, row, 0, id);
    const signs = group === 0 ? first : word(seed, row, group, id);
    const location = Math.floor(((first >>> 8) * width) / 2 ** 24);
    return [location, (signs >>> turn % 8) & 1 ? -1 : 1] as const;
  });
}

const MERSENNE = 2n ** 61n - 1n;

/** The id of a string: a keyed fingerprint of its UTF-8 bytes. */
export function fingerprint(seed: Bytes, text: string): bigint {
  const drawn = shake("fingerprint", 32, seed);
  const [k, k2] = [toInteger(drawn.slice(0, 16)) % MERSENNE, toInteger(drawn.slice(16)) % MERSENNE];
  const bytes = utf8(text);
  let h = BigInt(bytes.length + 1);
  for (let at = 0; at < bytes.length; at += 7) {
    h = (h * k + toInteger(bytes.slice(at, at + 7))) % MERSENNE;
  }
  return (h * k2) % MERSENNE;
}
