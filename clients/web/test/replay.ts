// A report of the vectors, made once more.

import assert from "node:assert/strict";

import { type Bytes, toHex } from "../src/bytes.js";
import { makeFrames, type Server, type Vector } from "../src/frames.js";
import { sign } from "../src/identity.js";
import { circuitOf, contextOf, type Parameters } from "../src/parameters.js";
import { hex, identityOf, open } from "./given.js";

export function parametersOf(given: any): Parameters {
  const { bits, n_max, min_batch, corrupt, noise } = given.parameters;
  const { leader_key, helper_key, allow_list, fingerprint } = given.parameters;
  return {
    widths: given.widths,
    bits,
    n_max,
    min_batch,
    corrupt,
    noise,
    leader_key: hex(leader_key),
    helper_key: hex(helper_key),
    allow_list: hex(allow_list),
    fingerprint: hex(fingerprint),
    abstain: given.abstain,
    signed: given.signed,
    central: false,
  };
}

/** The cells of an honest vector, null of an empty one. */
export function cellsIn(given: any): [number, number][] | null {
  let start = 0;
  const cells = given.widths.map((width: number) => {
    const row: number[] = given.vector.slice(start, (start += width));
    const cell = row.findIndex((each) => each !== 0);
    return [cell, row[cell]];
  });
  return cells.some(([cell]: number[]) => cell === -1) ? null : cells;
}

/** Frames of the vector's secrets, with its seals, of which each must hold what is sealed now. */
export async function replay(given: any, vector: Vector) {
  const parameters = parametersOf(given);
  const circuit = circuitOf(parameters);
  const context = await contextOf(parameters, circuit);
  if (given.context !== undefined) assert.equal(toHex(context), given.context);
  const identity = await identityOf(hex(given.identity));
  const sealFor = async (server: Server, info: Bytes, plaintext: Bytes) => {
    const sealed = hex(server === "leader" ? given.sealed_leader_part : given.sealed);
    const secret = given[`${server}_secret`];
    if (secret !== undefined) {
      const opened = await open(hex(secret), info, sealed);
      assert.deepEqual(plaintext, opened, `what is sealed to the ${server}`);
    }
    return sealed;
  };
  const { round, time } = given;
  const making = { circuit, context, round, time, identity: identity.publicKey, sealFor };
  const secrets = {
    nonce: hex(given.nonce),
    seed: hex(given.seed),
    salt: hex(given.salt),
    proveSeed: hex(given.prove_seed),
  };
  return makeFrames({ ...making, sign: (text) => sign(identity, text) }, vector, secrets);
}
