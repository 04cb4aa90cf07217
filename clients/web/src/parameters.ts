// What a report is made for, and its context: docs/protocol.md.

import {
  type Bytes,
  checkPoint,
  equal,
  join,
  label,
  refuse,
  sha256,
  toInteger,
  u32,
  u64,
  u8,
} from "./bytes.js";
import { OneHot } from "./circuit.js";
import { FIELDS } from "./field.js";

export interface Parameters {
  /** Widths of the rows of a vector. */
  readonly widths: readonly number[];
  /** Bits of a counter, which say the field: 16, 24 or 32. */
  readonly bits: number;
  /** The most that the noise of both servers adds to a counter. */
  readonly noise: number;
  readonly n_max: number;
  readonly min_batch: number;
  readonly corrupt: number;
  readonly leader_key: Bytes;
  readonly helper_key: Bytes;
  readonly allow_list: Bytes;
  readonly fingerprint: Bytes;
  /** Whether a client may hold nothing. */
  readonly abstain: boolean;
  /** Whether counters may be negative: in a sketch. */
  readonly signed: boolean;
  /** Whether one party is trusted with the exact sum: sums then have twice the room. */
  readonly central: boolean;
}

/** The x-coordinates of points of low order on the curve and its twist, beside 0, 1 and -1. */
const LOW_ORDER = [
  0x00b8495f16056286fdb1329ceb8d09da6ac49ff1fae35616aeb8413b7c7aebe0n,
  0x57119fd0dd4e22d8868e1c58c45c44045bef839c55b1d0b1248c50a3bc959c5fn,
];

const within = (value: number, low: number, high: number, what: string): void => {
  if (!Number.isSafeInteger(value) || value < low || value > high) {
    refuse(`${what} must be an integer from ${low} to ${high}, not ${value}`);
  }
};

/** Refuses what no report may be made for, and gives the circuit. */
export function circuitOf(of: Parameters): OneHot {
  const field = FIELDS.get(of.bits) ?? refuse(`no field has ${of.bits} bits: 16, 24 or 32`);
  if (of.widths.length === 0) refuse("a vector needs a row");
  for (const width of of.widths) within(width, 1, 2 ** 24, "the width of a row");
  within(of.n_max, 2, 2 ** 20, "n_max");
  within(of.corrupt, 0, of.n_max - 2, "corrupt");
  within(of.min_batch, of.corrupt + 2, of.n_max, "min_batch");
  within(of.noise, 0, 2 ** 32, "noise");
  const range = (of.signed ? 2 : 1) * (of.central ? 2 : 1) * of.n_max + 3 * of.noise;
  if (range >= field.p) refuse(`counters of ${of.bits} bits cannot hold the sums`);
  checkPoint(toInteger(of.leader_key), LOW_ORDER, "the leader's key");
  checkPoint(toInteger(of.helper_key), LOW_ORDER, "the helper's key");
  if (equal(of.leader_key, of.helper_key)) refuse("both servers have one key");
  const circuit = new OneHot(field, of.widths, of.abstain, of.signed);
  const lane = field.size === 2 ? 2 : 4;
  if ((circuit.counters + circuit.checksumWords) * lane > 2 ** 30) refuse("the vector is too long");
  return circuit;
}

/** The context of the parameters, and then of the circuit. */
export async function contextOf(of: Parameters, circuit: OneHot): Promise<Bytes> {
  const { field, widths, abstain, signed } = circuit;
  const parameters = await sha256(
    label("two-server context"),
    join(u8(1), u64(circuit.counters), u8(of.bits), u64(1), u64(of.noise)),
    join(u32(of.n_max), u32(of.min_batch), u32(of.corrupt)),
    join(of.leader_key, of.helper_key, of.allow_list, of.fingerprint),
    join(u32(widths.length), ...widths.map(u32)),
  );
  return sha256(
    label("two-server circuit"),
    join(parameters, u64(field.p), u8(field.K), u64(field.g)),
    join(u8(Number(abstain)), u8(Number(signed)), u8(circuit.checksumWords)),
  );
}
