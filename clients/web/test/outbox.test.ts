// One report of a release, whatever dies, and whatever servers answer.

import "fake-indexeddb/auto";
import assert from "node:assert/strict";
import { test } from "node:test";

import type { Server } from "../src/frames.js";
import { Outbox, type World } from "../src/outbox.js";
import { readPlan } from "../src/plan.js";
import { Record, SpentError } from "../src/record.js";
import { BASE, changed, PRIVATE, published } from "./given.js";

const PLAN = await readPlan(...(await published(BASE)), { minHonest: 2 });
const ADDRESSES = { helper: "https://helper", leader: "https://leader/" };
const NOW = 1_800_000_000;
const STATE = "application/vnd.fedtally.release+json";
const PROBLEM = "application/problem+json";
const WEEK = 7 * 86_400;
let made = 0;

type Said = [status: number, type: string] | null; // null: the connection broke
type Both<T> = { [server in Server]: T };
const SERVERS = ["helper", "leader"] as const;

/** Two servers and a clock. */
class Servers implements World {
  time = NOW;
  readonly state: Both<unknown> = { helper: "open", leader: "open" };
  readonly skew: Both<number> = { helper: 0, leader: 0 };
  /** What else a server says of its state. */
  readonly instead: { [server in Server]?: (date: string) => Promise<Response> } = {};
  after = "7";
  drawn = 0;
  readonly slept: number[] = [];
  readonly asked: Server[] = [];
  readonly sent: [Server, string][] = [];
  readonly said: Both<Said[]> = { helper: [], leader: [] };
  private readonly waiting = new Map<string, Promise<unknown>>();

  async fetch(url: string, options: RequestInit): Promise<Response> {
    const server = new URL(url).hostname as Server;
    const path = /^\/v1\/plans\/[0-9a-f]{64}\/releases\/\d+(\/reports)?$/.exec(new URL(url).pathname);
    assert.equal(path![1] === undefined, options.method === undefined);
    assert.equal(options.referrerPolicy, "no-referrer");
    assert.equal(options.credentials, "omit");
    assert.equal(options.redirect, "error");
    const date = new Date(1000 * (this.time + this.skew[server])).toUTCString();
    let said: Said = [200, STATE];
    if (options.method === "PUT") {
      this.sent.push([server, Buffer.from(options.body as Uint8Array).toString("hex")]);
      const next = this.said[server].shift();
      said = next === undefined ? [201, STATE] : next;
    } else {
      this.asked.push(server);
      const instead = this.instead[server];
      if (instead) return instead(date);
    }
    if (said === null) throw new TypeError("the network failed");
    const headers = { "content-type": said[1], date, "retry-after": this.after };
    const body = JSON.stringify({ server, state: this.state[server] });
    const isEmpty = [204, 205, 304].includes(said[0]);
    return new Response(isEmpty ? null : body, { status: said[0], headers });
  }

  now = () => this.time;
  random = () => this.drawn;
  async sleep(seconds: number): Promise<void> {
    this.slept.push(seconds);
    this.time += seconds;
  }
  locked<T>(name: string, work: () => Promise<T>): Promise<T> {
    const mine = (this.waiting.get(name) ?? Promise.resolve()).then(work, work);
    this.waiting.set(name, mine);
    return mine;
  }

  /** How many different frames a server got. */
  frames(server: Server): number {
    return new Set(this.sent.filter(([to]) => to === server).map(([, bytes]) => bytes)).size;
  }
}

async function tab(servers: Servers, name: string, record?: Record, plan = PLAN) {
  const found = record ?? (await Record.open(name));
  const identity = await found.enrol();
  const outbox = new Outbox(found, plan, ADDRESSES, servers);
  const report = (release = 0, item = 1) => outbox.report(release, identity, item);
  return { record: found, outbox, identity, report };
}

const fresh = () => `record ${made++}`;

test("the key stays, and cannot be exported", async () => {
  const name = fresh();
  const [one, other] = await Promise.all([Record.open(name), Record.open(name)]);
  assert.equal(await one.identity(), null);
  const [first, second] = await Promise.all([one.enrol(), other.enrol()]);
  assert.deepEqual(first.publicKey, second.publicKey);
  const kept = await (await Record.open(name)).identity();
  assert.deepEqual(kept!.publicKey, first.publicKey);
  await assert.rejects(crypto.subtle.exportKey("pkcs8", kept!.privateKey));
});

test("an open record holds no deletion up, and what is on its way stops there", async () => {
  const servers = new Servers();
  const name = fresh();
  const { record, report } = await tab(servers, name);
  servers.said.helper.push([503, PROBLEM]); // then the helper would accept
  servers.sleep = () =>
    new Promise((resolve, reject) => {
      const asked = indexedDB.deleteDatabase(name);
      asked.onsuccess = () => resolve();
      asked.onblocked = () => reject(new Error("the deletion waits"));
    });
  await assert.rejects(report(), /the record is closed, or was deleted: open it again/);
  assert.deepEqual([servers.frames("helper"), servers.frames("leader")], [1, 0]);
  await assert.rejects(record.identity(), /open it again/);
  assert.equal(await (await Record.open(name)).identity(), null);
});

test("the helper's frame leaves first, and each only once where all goes well", async () => {
  const servers = new Servers();
  const { record, report } = await tab(servers, fresh());
  assert.equal(await report(), "accepted");
  assert.deepEqual(servers.sent.map(([server]) => server), ["helper", "leader"]);
  const entry = await record.entry(`${PLAN.fingerprint}/0`);
  assert.deepEqual([entry!.fate, entry!.frames], ["accepted", null]);
  await assert.rejects(report(), SpentError);
  assert.equal(servers.sent.length, 2);
});

/** A state as a server would say it, but for changes. */
const stated =
  (body: unknown, status = 200, type = STATE) =>
  async (date: string) =>
    new Response(typeof body === "string" ? body : JSON.stringify(body), {
      status,
      headers: { "content-type": type, date },
    });

test("nothing is spent where either server does not let a client begin", async () => {
  const changes: [RegExp, (servers: Servers, server: Server) => void][] = [
    [/release is "closing"/, ({ state }, server) => (state[server] = "closing")],
    [/release is "closed"/, ({ state }, server) => (state[server] = "closed")],
    [/release is "OPEN"/, ({ state }, server) => (state[server] = "OPEN")],
    [/release is "undefined"/, ({ state }, server) => (state[server] = undefined)],
    [/another time/, ({ skew }, server) => (skew[server] = 86_400)],
    [/another time/, ({ skew }, server) => (skew[server] = -86_400)],
    [/another time/, ({ skew }, server) => (skew[server] = 3601)],
    [/another time/, ({ skew }, server) => (skew[server] = -3601)],
    [
      /another time/,
      ({ instead }, server) =>
        (instead[server] = () => stated({ server, state: "open" })("no date")),
    ],
    [/that it is the one/, ({ instead }, server) => (instead[server] = stated({ state: "open" }))],
    [/that it is the one/, ({ instead }, server) => (instead[server] = stated("{"))],
    [/that it is the one/, ({ instead }, server) => (instead[server] = stated(null))],
    [
      /that it is the one/, // as where the page has exchanged the two addresses
      ({ instead }, server) =>
        (instead[server] = stated({ server: SERVERS.find((s) => s !== server), state: "open" })),
    ],
    ...[200, 404, 410, 429, 500, 503].map((status): (typeof changes)[number] => [
      RegExp(`answers with HTTP ${status}`),
      ({ instead }, server) =>
        (instead[server] = stated({ server, state: "open" }, status, PROBLEM)),
    ]),
    [
      /cannot be reached/,
      ({ instead }, server) => (instead[server] = () => Promise.reject(new TypeError())),
    ],
  ];
  for (const server of SERVERS) {
    for (const [why, change] of changes) {
      const servers = new Servers();
      change(servers, server);
      const { record, report } = await tab(servers, fresh());
      await assert.rejects(report(), ({ name, message }: Error) => {
        assert.deepEqual([name, message.slice(0, 10)], ["NotOpenError", `the ${server}`]);
        return why.test(message);
      });
      assert.equal(await record.entry(`${PLAN.fingerprint}/0`), null);
      assert.deepEqual(servers.asked, server === "helper" ? ["helper"] : ["helper", "leader"]);
      assert.equal(servers.sent.length, 0);
    }
    const servers = new Servers();
    servers.skew[server] = 3600;
    assert.equal(await (await tab(servers, fresh())).report(), "accepted");
  }
});

/** What ends a report, as docs/protocol.md has it, "Over HTTPS". */
const ENDS = new Set([
  `201 ${STATE}`,
  `410 ${STATE}`,
  ...[400, 403, 409, 410].map((status) => `${status} ${PROBLEM}`),
]);

const BATCHED = await readPlan(
  ...(await published(changed(PRIVATE, { num_rounds: 5, schedule: "batched:2" }))),
  { minHonest: 2 },
);

test("a report is of a round of its release, and of the present time", async () => {
  const rounds = new Set<number>();
  for (let i = 0; rounds.size < 2; i++) {
    assert.ok(i < 200, "one of two rounds is never drawn");
    const servers = new Servers();
    const { identity, outbox } = await tab(servers, fresh(), undefined, BATCHED);
    const given: object = { round: 0, time: 1 }; // of a script that knows no better
    assert.equal(await outbox.report(1, identity, 1, given), "accepted");
    const [[, frame]] = servers.sent as [[Server, string]];
    const found = Buffer.from(frame, "hex");
    rounds.add(found.readUInt32LE(64));
    assert.equal(found.readBigUInt64LE(100), BigInt(NOW));
  }
  assert.deepEqual([...rounds].sort(), [3, 4]);
  const servers = new Servers();
  const { record, outbox, report } = await tab(servers, fresh(), undefined, BATCHED);
  for (const release of [-1, 2, 0.5, NaN]) {
    await assert.rejects(report(release), /has no release/);
    await assert.rejects(outbox.resume(release), /has no release/);
  }
  assert.deepEqual([servers.asked, await record.entry(`${BATCHED.fingerprint}/2`)], [[], null]);
});

test("a client reports in as many releases as its epsilon counts on", async () => {
  const two = changed(PRIVATE, { num_rounds: 4, schedule: "hybrid", event: { participations: 2 } });
  const plan = await readPlan(...(await published(two)), { minHonest: 2 });
  const [servers, name] = [new Servers(), fresh()];
  const tabs = await Promise.all([1, 2, 3].map(() => tab(servers, name, undefined, plan)));
  const ends = await Promise.allSettled(tabs.map(({ report }, release) => report(release)));
  assert.equal(ends.filter((end) => end.status === "fulfilled").length, 2);
  const [lost] = ends.filter((end) => end.status === "rejected");
  assert.match(lost!.reason.message, /allows a client 2 reports/);
  assert.ok(lost!.reason instanceof SpentError);
  assert.equal(servers.sent.length, 4);
  const others = [plan, BATCHED]; // each plan counts for itself, wherever its fingerprint stands
  for (const order of [others, [...others].reverse()]) {
    const [record, outside] = [await Record.open(fresh()), new Servers()];
    for (const each of [...order, PLAN]) {
      const { report } = await tab(outside, "", record, each);
      const releases = Math.min(each.mostReports, 3);
      for (let i = 0; i < releases; i++) assert.equal(await report(i), "accepted");
    }
  }
});

test("no server hears of a client before its report is made", async () => {
  const servers = new Servers();
  const { report } = await tab(servers, fresh());
  await assert.rejects(report(0, 99), /outside the plan's domain/);
  assert.deepEqual(servers.asked, []);
});

test("what a server says goes into no error as it is", async () => {
  const servers = new Servers();
  servers.state.helper = `\u202e${"x".repeat(3000)}`;
  await assert.rejects((await tab(servers, fresh())).report(), ({ message }: Error) => {
    assert.match(message, /^[ -~]{1,120}$/);
    return true;
  });
});

test("what a server answers ends a report, or lets the same bytes go again", async () => {
  for (const server of SERVERS) {
    for (const status of [400, 403, 409, 410]) {
      const servers = new Servers();
      servers.said[server].push([status, `${PROBLEM}; charset=utf-8`]);
      assert.equal(await (await tab(servers, fresh())).report(), "not counted");
      assert.equal(servers.frames("leader"), server === "helper" ? 0 : 1);
    }
    const servers = new Servers();
    const again: Said[] = [null];
    for (let status = 200; status < 600; status++) {
      for (const type of [STATE, PROBLEM, "text/html", ""]) {
        if (!ENDS.has(`${status} ${type}`)) again.push([status, type]);
      }
    }
    servers.said[server].push(...again);
    assert.equal(await (await tab(servers, fresh())).report(), "accepted");
    assert.equal(servers.said[server].length, 0);
    assert.equal(servers.sent.length, again.length + 2);
    assert.deepEqual([servers.frames("helper"), servers.frames("leader")], [1, 1]);
    assert.equal(servers.slept[0], 0.5); // nobody answered
    assert.ok(servers.slept.slice(1).every((seconds) => seconds >= 7)); // as Retry-After says
  }
});

test("addresses are of https, or of this machine, and nothing but addresses", async () => {
  const record = await Record.open(fresh());
  const made = (helper: string, leader = "https://leader") =>
    new Outbox(record, PLAN, { helper, leader }, new Servers());
  for (const address of [
    "https://helper.example.net",
    "https://helper.example.net/",
    "https://helper.example.net:8443/sums/",
    "http://localhost:8080",
    "http://127.0.0.1:8080/a",
    "http://[::1]:8080",
  ]) {
    made(address);
  }
  for (const leader of ["https://h.example.net", "https://h.example.net/"]) {
    assert.throws(() => made("https://h.example.net/", leader), /both servers have one address/);
  }
  for (const [address, message] of [
    ["http://helper.example.net", /must begin with https/],
    ["http://localhost.example.net", /must begin with https/],
    ["ftp://localhost", /must begin with https/],
    ["data:text/plain,a", /must begin with https/],
    ["helper.example.net", /no address/],
    ["", /no address/],
    ["http://user:secret@helper.example.net", /must begin with https/],
    ["https://user:secret@helper.example.net", /must be https:\/\/helper.example.net\/, /],
    ["https://helper.example.net/?a=b", /without a user/],
    ["https://helper.example.net/#a", /without a user/],
    ["https://helper.example.net/a/../b", /must be https:\/\/helper.example.net\/b, /],
    ["https://HELPER.example.net", /must be https:\/\/helper.example.net\/, /],
  ] as const) {
    assert.throws(() => made(address), { name: "InputError", message }, address);
    assert.throws(
      () => made("https://helper", address),
      (e: Error) => e.message.includes("the leader") && !e.message.includes("secret"),
    );
  }
});

test("pauses double up to ten minutes, begin anew at the leader, and are drawn", async () => {
  const broken = (times: number): Said[] => Array<Said>(times).fill(null);
  const doubled = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600];
  for (const [drawn, pauses] of [
    [1, doubled],
    [0, doubled.map(() => 0.5)],
    [0.5, doubled.map((most) => (0.5 + most) / 2)],
  ] as const) {
    const servers = new Servers();
    servers.drawn = drawn;
    servers.said.helper.push(...broken(12));
    servers.said.leader.push(...broken(3));
    assert.equal(await (await tab(servers, fresh())).report(), "accepted");
    assert.deepEqual(servers.slept, [...pauses, ...pauses.slice(0, 3)]);
  }
  for (const [after, pause] of [
    ["120", 120],
    ["999999", 3600],
    ["Infinity", 3600],
    ["-1", 0.5],
    ["NaN", 0.5],
    ["Fri, 15 Jan 2027 08:00:00 GMT", 0.5],
  ] as const) {
    const servers = new Servers();
    servers.after = after;
    servers.said.helper.push([503, PROBLEM]);
    assert.equal(await (await tab(servers, fresh())).report(), "accepted");
    assert.deepEqual(servers.slept, [pause], after);
  }
});

test("a server that never answers is left after a time, and asked again", async () => {
  const servers = new Servers();
  const { fetch } = servers;
  const patience: number[] = [];
  const own = AbortSignal.timeout;
  AbortSignal.timeout = (milliseconds) => {
    patience.push(milliseconds);
    return AbortSignal.abort();
  };
  const never = (_: string, { signal }: RequestInit) =>
    new Promise<Response>((_, reject) => {
      if (signal?.aborted) reject(signal.reason); // else it waits for ever
    });
  try {
    servers.fetch = never;
    const { report, outbox } = await tab(servers, fresh());
    await assert.rejects(report(), /the helper cannot be reached/);
    servers.fetch = fetch;
    servers.sleep = async () => void (servers.fetch = fetch);
    const asked = report();
    servers.fetch = (url, options) => (options.method ? never : fetch).call(servers, url, options);
    assert.equal(await asked, "accepted");
    assert.equal(await outbox.resume(0), null);
  } finally {
    AbortSignal.timeout = own;
  }
  assert.deepEqual(patience.slice(0, 3), [60_000, 60_000, 60_000]);
  assert.ok(patience.slice(3).every((each) => each > 60_000)); // a frame takes its time
  assert.equal(patience.length, 6); // of which the helper's frame was sent twice
});

test("who gives up says what is known", async () => {
  for (const [server, fate] of [["helper", "not counted"], ["leader", "unknown"]] as const) {
    const servers = new Servers();
    servers.said[server].push([410, STATE]);
    assert.equal(await (await tab(servers, fresh())).report(), fate);
    const away = new Servers();
    away.said[server].push(null, null); // the second one when a week is over
    away.sleep = async () => void (away.time += WEEK);
    assert.equal(await (await tab(away, fresh())).report(), fate);
    assert.equal(away.sent.length, server === "helper" ? 2 : 3);
    const jumped = new Servers(); // to the servers it is not late
    jumped.said[server].push(null);
    jumped.sleep = async () => void (jumped.time += WEEK);
    assert.equal(await (await tab(jumped, fresh())).report(), "accepted");
    assert.equal(jumped.sent.length, 3);
  }
});

class Killed extends Error {}

test("a tab that dies before or after a write makes no second report, and loses none", async () => {
  for (const write of ["spend", "note", "end"] as const) {
    for (const isAfter of [false, true]) {
      const servers = new Servers();
      const name = fresh();
      const real = await Record.open(name);
      const dying = new Proxy(real, {
        get(target, key) {
          const found = Reflect.get(target, key);
          if (key !== write) return typeof found === "function" ? found.bind(target) : found;
          return async (...given: unknown[]) => {
            if (isAfter) await found.apply(target, given);
            throw new Killed();
          };
        },
      });
      await assert.rejects((await tab(servers, name, dying)).report(), Killed);
      const { outbox, report, record } = await tab(servers, name);
      const isSpent = (await record.entry(`${PLAN.fingerprint}/0`)) !== null;
      assert.equal(isSpent, write !== "spend" || isAfter);
      const isOver = write === "end" && isAfter;
      assert.equal(await outbox.resume(0), isSpent && !isOver ? "accepted" : null);
      if (isSpent) await assert.rejects(report(), SpentError);
      else assert.equal(await report(), "accepted");
      assert.deepEqual([servers.frames("helper"), servers.frames("leader")], [1, 1]);
    }
  }
});

test("of two tabs one reports, with locks and without", async () => {
  for (const hasLocks of [true, false]) {
    const servers = new Servers();
    if (!hasLocks) servers.locked = (_, work) => work();
    const name = fresh();
    const tabs = [await tab(servers, name), await tab(servers, name)];
    const ends = await Promise.allSettled(tabs.map(({ report }) => report()));
    const [lost] = ends.filter((end) => end.status === "rejected");
    assert.ok(lost!.reason instanceof SpentError);
    assert.equal(ends.filter((end) => end.status === "fulfilled").length, 1);
    assert.deepEqual([servers.frames("helper"), servers.frames("leader")], [1, 1]);
  }
});

test("whose record was cleared hears that the second report is not counted", async () => {
  const servers = new Servers();
  assert.equal(await (await tab(servers, fresh())).report(), "accepted");
  servers.said.helper.push([409, PROBLEM]); // as a server answers another report of a key
  assert.equal(await (await tab(servers, fresh())).report(), "not counted");
  assert.equal(servers.frames("leader"), 1);
});
