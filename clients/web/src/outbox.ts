// Reporting once: both servers are asked, the release is spent, and both frames are sent until
// both servers have them. The rules are those of docs/protocol.md, "Over HTTPS".

import { type Bytes, join, refuse, toInteger } from "./bytes.js";
import type { Server } from "./frames.js";
import type { Identity } from "./identity.js";
import { quote } from "./json.js";
import { type Plan, roundsOf } from "./plan.js";
import { type Entry, type Fate, type Record, SpentError } from "./record.js";
import { drawn, type Item, type Options, report } from "./report.js";

const STATE = "application/vnd.fedtally.release+json";
const PROBLEM = "application/problem+json";
const FRAME = "application/vnd.fedtally.frame";
const MOST_STATE = 4096; // bytes of what a server says of a release
const MOST_SKEW = 3600; // seconds between a server's clock and this one
const GIVE_UP = 7 * 86_400; // seconds after the release was spent: servers take no older report
const PAUSES = [0.5, 600] as const; // seconds between two attempts
const SLOWEST = 10; // bytes a millisecond of a frame that leaves
const MOST_WAIT = 60_000; // milliseconds more until a server has answered

/** What the outside world gives; tests give their own. */
export interface World {
  fetch(url: string, options: RequestInit): Promise<Response>;
  /** Seconds since 1970. */
  now(): number;
  sleep(seconds: number): Promise<void>;
  /** A number from 0 to 1, for pauses alone. */
  random(): number;
  /** Runs work while no other tab has the same lock. */
  locked<T>(name: string, work: () => Promise<T>): Promise<T>;
}

export const browser: World = {
  fetch: (url, options) => fetch(url, options),
  now: () => Date.now() / 1000,
  sleep: (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds)),
  random: Math.random,
  locked: (name, work) => navigator.locks.request(name, work) as never,
};

/** The base addresses of both servers, such as `https://helper.example.net`. */
export type Addresses = { readonly [server in Server]: string };

/** A server does not let this client begin; nothing is spent. */
export class NotOpenError extends Error {
  override readonly name = "NotOpenError";
}

/** How a server is asked. One that never answers would hold the tab, and its lock, for ever. */
const asking = (frame?: Bytes): RequestInit => ({
  credentials: "omit",
  redirect: "error",
  cache: "no-store",
  referrerPolicy: "no-referrer", // the address of a page may tell who reads it
  signal: AbortSignal.timeout(MOST_WAIT + Math.ceil((frame?.length ?? 0) / SLOWEST)),
  ...(frame && { method: "PUT", headers: { "content-type": FRAME }, body: frame }),
});
/** Leaves a body unread: it would hold a connection until it ends. */
const drop = (said: Response | null): void => void said?.body?.cancel().catch(() => null);

/** What a short body of JSON says; null: nothing, or it is too long. */
async function read(said: Response): Promise<{ server?: unknown; state?: unknown } | null> {
  const parts: Uint8Array[] = [];
  const reader = said.body!.getReader();
  for (let size = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return JSON.parse(new TextDecoder().decode(join(...parts)));
    parts.push(value);
    if ((size += value.length) > MOST_STATE) {
      void reader.cancel().catch(() => null);
      return null;
    }
  }
}

const kind = (said: Response) => said.headers.get("content-type")?.split(";")[0]?.trim();

/** Without TLS anybody on the way could say that a server took a report. */
function checkAddress(address: string, server: Server): void {
  const { protocol, hostname, host, pathname } = URL.canParse(address)
    ? new URL(address)
    : refuse(`the ${server} has no address: give https://HOST`);
  const plain = `${protocol}//${host}${pathname}`; // an error tells no password
  const isHere = ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
  if (protocol !== "https:" && !(protocol === "http:" && isHere)) {
    refuse(`the ${server}'s address must begin with https://, or be on this machine, not ${plain}`);
  }
  if (plain !== address && plain !== `${address}/`) {
    refuse(`the ${server}'s address must be ${plain}, without a user, a query or more`);
  }
}

export class Outbox {
  constructor(
    private readonly record: Record,
    private readonly plan: Plan,
    private readonly addresses: Addresses,
    private readonly world: World = browser,
  ) {
    for (const server of ["helper", "leader"] as const) checkAddress(addresses[server], server);
    const [helper, leader] = [addresses.helper, addresses.leader].map((each) => new URL(each).href);
    if (helper === leader) refuse("both servers have one address: each has an operator of its own");
  }

  /**
   * Reports once in a release, or goes on with the report that is on its way. The report is of the
   * present time and of any round of the release, all of which are in one sum.
   *
   * @returns what became of the report
   * @throws NotOpenError, or InputError of the report, before the release is spent
   * @throws SpentError if the release was spent before, with what became of it, or as many
   *   releases as the plan allows
   */
  async report(
    release: number,
    identity: Identity,
    item: Item,
    options: Pick<Options, "candidates"> = {},
  ): Promise<Fate> {
    return this.alone(release, async (name) => {
      const found = await this.record.entry(name);
      if (found !== null) {
        if (found.fate !== null) throw new SpentError(`${name} is spent: ${found.fate}`);
        return this.send(release, found);
      }
      const [first, end] = roundsOf(this.plan, release);
      const round = first + Number(toInteger(drawn(16)) % BigInt(end - first));
      const time = Math.floor(this.world.now());
      // before a server hears of this client: how long it takes tells nobody what the item is
      const frames = await report(this.plan, identity, item, { ...options, round, time });
      for (const server of ["helper", "leader"] as const) await this.ask(server, release);
      if (this.plan.signature !== null) await this.record.accept(this.plan.signature);
      const spent = await this.record.spend(name, frames, time, this.plan.mostReports);
      return this.send(release, spent);
    });
  }

  /** Goes on with a report whose tab died; null: none is on its way. */
  async resume(release: number): Promise<Fate | null> {
    return this.alone(release, async (name) => {
      const found = await this.record.entry(name);
      return found === null || found.fate !== null ? null : this.send(release, found);
    });
  }

  private alone<T>(release: number, work: (name: string) => Promise<T>): Promise<T> {
    roundsOf(this.plan, release); // it refuses what is no release
    const name = `${this.plan.fingerprint}/${release}`;
    return this.world.locked(`fedtally ${name}`, () => work(name));
  }

  private url(server: Server, release: number): string {
    const base = this.addresses[server].replace(/\/$/, "");
    return `${base}/v1/plans/${this.plan.fingerprint}/releases/${release}`;
  }

  /** Checks that a server takes reports, and that its clock fits, before anything is spent. */
  private async ask(server: Server, release: number): Promise<void> {
    const no = (why: string): never => {
      throw new NotOpenError(`the ${server} ${why}: nothing was spent`);
    };
    const url = this.url(server, release);
    const said = await this.world.fetch(url, asking()).catch(() => no("cannot be reached"));
    if (said.status !== 200 || kind(said) !== STATE) {
      drop(said);
      no(`answers with HTTP ${said.status}`);
    }
    const state = await read(said).catch(() => null);
    if (state?.server !== server) no("does not say that it is the one");
    if (state?.state !== "open") no(`says that the release is ${quote(String(state?.state).slice(0, 40))}`);
    const time = Date.parse(said.headers.get("date") ?? "") / 1000;
    if (!(Math.abs(time - this.world.now()) <= MOST_SKEW)) no("has another time than this clock");
  }

  private async send(release: number, entry: Entry): Promise<Fate> {
    let sending = entry;
    if (!sending.hasHelper) {
      const fate = await this.deliver("helper", release, sending);
      if (fate !== "accepted") return this.record.end(sending, fate);
      sending = await this.record.note(sending);
    }
    return this.record.end(sending, await this.deliver("leader", release, sending));
  }

  /**
   * Sends the same bytes until a server says what ends the report, or there is no time left. It
   * sends them once even then: this clock may be wrong, and a server that has them says so.
   */
  private async deliver(server: Server, release: number, entry: Entry): Promise<Fate> {
    const lost: Fate = server === "helper" ? "not counted" : "unknown";
    const url = `${this.url(server, release)}/reports`;
    for (let pause: number = PAUSES[0]; ; ) {
      const isLast = this.world.now() >= entry.spent + GIVE_UP;
      const said = await this.world.fetch(url, asking(entry.frames![server])).catch(() => null);
      drop(said);
      if (said?.status === 201 && kind(said) === STATE) return "accepted";
      if (said !== null && [400, 403, 409, 410].includes(said.status)) {
        if (kind(said) === PROBLEM) return "not counted";
        if (said.status === 410 && kind(said) === STATE) return lost;
      }
      if (isLast) return lost;
      const after = Number(said?.headers.get("retry-after") ?? 0) || 0;
      pause = Math.min(2 * pause, PAUSES[1]);
      const drawn = PAUSES[0] + this.world.random() * (pause - PAUSES[0]);
      await this.world.sleep(Math.max(drawn, Math.min(after, 3600)));
    }
  }
}
