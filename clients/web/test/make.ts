// Makes reports for the servers in Python, which judge them: JSON on stdin, a report a line.

import { readFileSync } from "node:fs";

import { InputError, toHex } from "../src/bytes.js";
import { OneHot } from "../src/circuit.js";
import type { Element } from "../src/field.js";
import { type Frames, makeFrames, type Vector } from "../src/frames.js";
import { seal } from "../src/hpke.js";
import { type Identity, register, sign } from "../src/identity.js";
import { type Plan, readPlan } from "../src/plan.js";
import { type Item, report } from "../src/report.js";
import { anyVector } from "./cheats.js";
import { hex } from "./given.js";

interface Wanted {
  plan: string;
  fingerprint: string;
  /** Secret and public keys: a report each. */
  identities: [string, string][];
  round: number;
  time: number;
  candidates?: string[];
  /** Names in LIES: every client reports each of them. */
  cheats?: string[];
  registrar?: string;
  purpose?: string;
  /** Texts and fingerprints: of each plan it prints why it is refused, or nothing. */
  plans?: [string, string][];
}

/** A key pair; importing a secret key alone takes a millisecond. */
async function identityOf([secret, known]: [string, string]): Promise<Identity> {
  const [d, x] = [secret, known].map((key) => Buffer.from(key, "hex").toString("base64url"));
  const jwk = { kty: "OKP", crv: "Ed25519", d: d!, x: x! };
  const privateKey = await crypto.subtle.importKey("jwk", jwk, "Ed25519", false, ["sign"]);
  return { publicKey: hex(known), privateKey };
}

const drawn = (size: number) => crypto.getRandomValues(new Uint8Array(size));
const below = (bound: number) => new DataView(drawn(4).buffer).getUint32(0) % bound;

function randomItem(plan: Plan, candidates: string[] | undefined): Item {
  if (plan.circuit.abstain && below(4) === 0) return null;
  const place = below(Number(plan.domain.size));
  return candidates?.[place] ?? plan.domain.first + BigInt(place);
}

/** A circuit whose client changes a word of its proof. */
class Changed extends OneHot {
  override prove(...given: Parameters<OneHot["prove"]>): Element[] {
    const proof = super.prove(...given);
    const last = proof.pop()!;
    return [...proof, this.field.add(last, this.field.one)];
  }
}

/** The vector of a lie: entries of the first row, with one +1 in each other row. */
function lie(circuit: OneHot, first: readonly number[]): Vector {
  const rows = circuit.widths.map((width, row) => {
    const counters = new Array<number>(width).fill(0);
    return [...(row === 0 ? first : [1]), ...counters].slice(0, width);
  });
  return anyVector(circuit, rows.flat(), 1);
}

const LIES: Record<string, readonly number[]> = {
  "twice as much": [2],
  "two in a row": [1, 1],
  "minus 1": [-1],
  "nothing, e is 1": [],
  "proof changed": [1],
  "another digest": [1],
  "one in each row": [1], // which is none: this client is honest
};

async function cheat(
  plan: Plan,
  identity: Identity,
  kind: string,
  wanted: Wanted,
): Promise<Frames> {
  const { field, widths, abstain, signed } = plan.circuit;
  const circuit = new (kind === "proof changed" ? Changed : OneHot)(field, widths, abstain, signed);
  const { leader_key: leader, helper_key: helper } = plan.parameters;
  const secrets = { nonce: drawn(16), seed: drawn(32), salt: drawn(32), proveSeed: drawn(32) };
  const making = {
    circuit,
    context: plan.context,
    round: wanted.round,
    time: wanted.time,
    identity: identity.publicKey,
    sealFor: (server: string, info: Parameters<typeof seal>[1], plaintext: typeof info) =>
      seal(server === "leader" ? leader : helper, info, plaintext),
    sign: (text: Parameters<typeof sign>[1]) => sign(identity, text),
  };
  const vector = lie(circuit, LIES[kind]!);
  const made = await makeFrames(making, vector, secrets);
  if (kind !== "another digest") return made;
  const again = await makeFrames(making, vector, secrets); // whose seals are others
  return { helper: made.helper, leader: again.leader };
}

const wanted = JSON.parse(readFileSync(0, "utf8")) as Wanted;
const identities = await Promise.all(wanted.identities.map(identityOf));
if (wanted.plans !== undefined) {
  for (const [text, print] of wanted.plans) {
    const found = await readPlan(text, print, { minHonest: 2 }).catch((error) => error);
    process.stdout.write(`${found instanceof InputError ? found.message : ""}\n`);
  }
} else if (wanted.registrar !== undefined) {
  for (const each of identities) {
    process.stdout.write(await register(each, wanted.registrar, wanted.purpose!));
  }
} else {
  const plan = await readPlan(wanted.plan, wanted.fingerprint, { minHonest: 2 });
  const { candidates, round, time } = wanted;
  const print = (item: Item, { helper, leader }: Frames) => {
    const shown = typeof item === "bigint" ? Number(item) : item;
    const line = { item: shown, helper: toHex(helper), leader: toHex(leader) };
    process.stdout.write(`${JSON.stringify(line)}\n`);
  };
  for (const kind of wanted.cheats ?? []) {
    for (const each of identities) print(null, await cheat(plan, each, kind, wanted));
  }
  if (wanted.cheats === undefined) {
    for (const each of identities) {
      const item = randomItem(plan, candidates);
      const options = { round, time, ...(candidates && { candidates }) };
      print(item, await report(plan, each, item, options));
    }
  }
}
