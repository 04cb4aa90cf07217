/** Reports to two servers from a browser: see docs/library.md. */
export { checkAlgorithms, MissingAlgorithmError } from "./algorithms.js";
export { type Bytes, InputError } from "./bytes.js";
export type { Frames } from "./frames.js";
export { type Identity, makeIdentity, register } from "./identity.js";
export { type Addresses, NotOpenError, Outbox } from "./outbox.js";
export { type Plan, type Policy, readPlan, readSignedPlan } from "./plan.js";
export { type Entry, type Fate, Record, SpentError } from "./record.js";
export { type Item, type Options, report } from "./report.js";
export { type Revocation, readRevocation, type Signature } from "./signature.js";
