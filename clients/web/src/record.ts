// The record of one browser: its key, which releases are spent, and frames that are on their way.

import { refuse } from "./bytes.js";
import type { Frames } from "./frames.js";
import { type Identity, makeIdentity } from "./identity.js";
import type { Revocation, Signature } from "./signature.js";

/** The stores, and where each keeps its keys. */
const STORES = {
  identity: {},
  releases: { keyPath: "name" },
  registrars: { keyPath: "registrar" },
} satisfies { [store: string]: IDBObjectStoreParameters };
type Store = keyof typeof STORES;
/** What became of a report: docs/protocol.md, "The outbox". */
export type Fate = "accepted" | "not counted" | "unknown";

/** A release that is spent; its frames are kept until its fate is known. */
export interface Entry {
  /** Fingerprint of the plan and number of the release. */
  readonly name: string;
  /** The time at which it was spent, seconds since 1970. */
  readonly spent: number;
  readonly frames: Frames | null;
  readonly hasHelper: boolean;
  readonly fate: Fate | null;
}

/** What a registrar said of plans. */
interface Said {
  readonly registrar: string;
  readonly accepted: readonly Signature[];
  /** Fingerprints of plans that were replaced or revoked. */
  readonly ended: readonly string[];
}

export class SpentError extends Error {
  override readonly name = "SpentError";
}

const done = <T>(asked: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });

/** Waits until a transaction is on disk; only then anything may leave the machine. */
const ended = (transaction: IDBTransaction): Promise<void> =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the record was not written"));
  });

export class Record {
  private constructor(private readonly database: IDBDatabase) {
    // a person, or a newer page, may always delete or change the record: nothing here holds it up
    database.onversionchange = () => database.close();
  }

  /** Opens the record of this origin, or makes it. */
  static async open(name = "fedtally"): Promise<Record> {
    const asked = indexedDB.open(name, 2);
    asked.onupgradeneeded = () => {
      const { objectStoreNames: known } = asked.result; // none, or those of version 1
      for (const [store, options] of Object.entries(STORES)) {
        if (!known.contains(store)) asked.result.createObjectStore(store, options);
      }
    };
    return new Record(await done(asked));
  }

  /**
   * Asks the browser to keep the record; false: it may clear it, and the key with it.
   * Firefox asks its user, and answers once the user has: let nothing else wait for it.
   */
  static async persist(): Promise<boolean> {
    return (await globalThis.navigator?.storage?.persist?.()) ?? false;
  }

  close(): void {
    this.database.close();
  }

  private async get<T>(store: Store, key: string): Promise<T | null> {
    const [, found] = this.begin(store, "readonly");
    return (await done<T | undefined>(found.get(key))) ?? null;
  }

  private begin(
    store: Store,
    mode: IDBTransactionMode = "readwrite",
  ): [IDBTransaction, IDBObjectStore] {
    try {
      const transaction = this.database.transaction(store, mode, { durability: "strict" });
      return [transaction, transaction.objectStore(store)];
    } catch (cause) {
      throw new Error("the record is closed, or was deleted: open it again", { cause });
    }
  }

  /** The key of this browser, which cannot be exported; null: there is none, or it was cleared. */
  async identity(): Promise<Identity | null> {
    return this.get("identity", "key");
  }

  /** Makes the key, unless there is one: of two tabs that make one, both get the first. */
  async enrol(): Promise<Identity> {
    const made = await makeIdentity();
    if (made.privateKey.extractable) refuse("the key could be exported");
    const [transaction, store] = this.begin("identity");
    const written = ended(transaction);
    const found: Identity | undefined = await done(store.get("key"));
    if (found === undefined) store.add(made, "key");
    await written;
    return found ?? made;
  }

  /**
   * Notes that a client runs a plan that its registrar signed, and which plans end with it.
   *
   * @throws InputError if the plan was ended, or another one has its number or a higher one
   */
  async accept(signature: Signature): Promise<void> {
    const { registrar, plan, purpose, number, replaces } = signature;
    await this.hear(registrar, ({ accepted, ended }) => {
      if (ended.includes(plan)) refuse(`plan ${plan} was replaced or revoked by its registrar`);
      if (accepted.some((each) => each.plan === plan && each.number === number)) return null;
      const last = accepted.find((each) => each.purpose === purpose && each.number >= number);
      if (last) refuse(`plan ${last.plan} has the number ${last.number}, and this one ${number}`);
      return { accepted: [...accepted, signature], ended: [...ended, ...replaces] };
    });
  }

  /** Notes which plans a registrar ended: no report of these is made any more. */
  async revoke({ registrar, revoked }: Revocation): Promise<void> {
    await this.hear(registrar, ({ ended }) => ({ ended: [...ended, ...revoked] }));
  }

  private async hear(registrar: string, news: (said: Said) => Partial<Said> | null): Promise<void> {
    const [transaction, store] = this.begin("registrars");
    const written = ended(transaction);
    const found: Said | undefined = await done(store.get(registrar));
    const said = found ?? { registrar, accepted: [], ended: [] };
    try {
      const more = news(said);
      if (more) store.put({ ...said, ...more });
    } finally {
      await written;
    }
  }

  async entry(name: string): Promise<Entry | null> {
    return this.get("releases", name);
  }

  /**
   * Spends a release and keeps both frames, in one transaction: both or neither are on disk.
   *
   * @param name fingerprint of the plan and number of the release
   * @param spent seconds since 1970
   * @param most the most releases of the plan that may be spent
   * @throws SpentError if the release was spent before, or as many as may be; nothing changes then
   */
  async spend(name: string, frames: Frames, spent: number, most: number): Promise<Entry> {
    const [transaction, store] = this.begin("releases");
    const written = ended(transaction);
    const plan = name.split("/")[0]!;
    const ofPlan = IDBKeyRange.bound(`${plan}/`, `${plan}0`); // "0" is the sign after "/"
    const known = await done(store.getAllKeys(ofPlan));
    const entry: Entry = { name, spent, frames, hasHelper: false, fate: null };
    const isSpent = known.includes(name);
    const may = !isSpent && known.length < most;
    if (may) store.add(entry);
    await written;
    if (isSpent) throw new SpentError(`${name} is spent: no second report of it is made`);
    if (!may) throw new SpentError(`the plan allows a client ${most} reports: all are spent`);
    return entry;
  }

  /** Notes that the helper accepted; only then the leader's frame may leave. */
  async note(entry: Entry): Promise<Entry> {
    return this.put({ ...entry, hasHelper: true });
  }

  /** Notes for ever what became of a report; its frames are forgotten. */
  async end(entry: Entry, fate: Fate): Promise<Fate> {
    await this.put({ ...entry, frames: null, fate });
    return fate;
  }

  private async put(entry: Entry): Promise<Entry> {
    const [transaction, store] = this.begin("releases");
    const written = ended(transaction);
    store.put(entry);
    await written;
    return entry;
  }
}
