// One report of a release, whatever dies, and whatever servers answer.

import "fake-indexeddb/auto";
import assert from "node:assert/strict";
import { test } from "node:test";

import type { Server } from "../src/frames.js";
import { NotOpenError, Outbox, type World } from "../src/outbox.js";
import { readPlan } from "../src/plan.js";
import { Record, SpentError } from "../src/record.js";
import { BASE, published } from "./given.js";

const PLAN = await readPlan(...(await published(BASE)), { minHonest: 2 });
const ADDRESSES = { helper: "https://helper", leader: "https://leader/" };
const NOW = 1_800_000_000;
const STATE = "application/vnd.fedtally.release+json";
const PROBLEM = "application/problem+json";
const WEEK = 7 * 86_400;
let made = 0;

type Said = [status: number, type: string] | null; // null: the connection broke

/** Two servers and a clock. */
class Servers implements World {
  time = NOW;
  state = "open";
  skew = 0;
  readonly slept: number[] = [];
  readonly sent: [Server, string][] = [];
  readonly said: { [server in Server]: Said[] } = { helper: [], leader: [] };
  private readonly waiting = new Map<string, Promise<unknown>>();

  async fetch(url: string, options: RequestInit): Promise<Response> {
    const server = new URL(url).hostname as Server;
    const path = `/v1/plans/${PLAN.fingerprint}/releases/0`;
    assert.equal(new URL(url).pathname, options.method === "PUT" ? `${path}/reports` : path);
    assert.equal(options.credentials, "omit");
    assert.equal(options.redirect, "error");
    const date = new Date(1000 * (this.time + this.skew)).toUTCString();
    let said: Said = [200, STATE];
    if (options.method === "PUT") {
      this.sent.push([server, Buffer.from(options.body as Uint8Array).toString("hex")]);
      const next = this.said[server].shift();
      said = next === undefined ? [201, STATE] : next;
    }
    if (said === null) throw new TypeError("the network failed");
    const headers = { "content-type": said[1], date, "retry-after": "7" };
    return new Response(JSON.stringify({ server, state: this.state }), { status: said[0], headers });
  }

  now = () => this.time;
  random = () => 0;
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

async function tab(servers: Servers, name: string, record?: Record) {
  const found = record ?? (await Record.open(name));
  const identity = await found.enrol();
  const outbox = new Outbox(found, PLAN, ADDRESSES, servers);
  const options = { round: 0, time: NOW };
  return { record: found, outbox, report: () => outbox.report(0, identity, 1, options) };
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

test("nothing is spent where a server does not let a client begin", async () => {
  const changes: ((servers: Servers) => void)[] = [
    (servers) => (servers.state = "closing"),
    (servers) => (servers.state = "closed"),
    (servers) => (servers.state = "unknown"),
    (servers) => (servers.skew = 86_400),
    (servers) => (servers.skew = -86_400),
    (servers) => (servers.fetch = async () => new Response("", { status: 404 })),
    (servers) => (servers.fetch = () => Promise.reject(new TypeError("no network"))),
  ];
  for (const change of changes) {
    const servers = new Servers();
    change(servers);
    const { record, report } = await tab(servers, fresh());
    await assert.rejects(report(), NotOpenError);
    assert.equal(await record.entry(`${PLAN.fingerprint}/0`), null);
  }
});

test("what a server answers ends a report, or lets the same bytes go again", async () => {
  for (const server of ["helper", "leader"] as const) {
    for (const status of [400, 403, 409, 410]) {
      const servers = new Servers();
      servers.said[server].push([status, PROBLEM]);
      assert.equal(await (await tab(servers, fresh())).report(), "not counted");
      assert.equal(servers.frames("leader"), server === "helper" ? 0 : 1);
    }
    const servers = new Servers();
    const again: Said[] = [null, [404, PROBLEM], [408, PROBLEM], [503, PROBLEM], [502, "text/html"]];
    again.push([201, "text/html"], [403, "text/html"], [200, STATE], [409, STATE], [410, "text/html"]);
    servers.said[server].push(...again);
    assert.equal(await (await tab(servers, fresh())).report(), "accepted");
    assert.equal(servers.sent.length, 12);
    assert.deepEqual([servers.frames("helper"), servers.frames("leader")], [1, 1]);
    assert.equal(servers.slept[0], 0.5); // nobody answered
    assert.ok(servers.slept.slice(1).every((seconds) => seconds >= 7)); // as Retry-After says
  }
});

test("who gives up says what is known", async () => {
  for (const [server, fate] of [["helper", "not counted"], ["leader", "unknown"]] as const) {
    const servers = new Servers();
    servers.said[server].push([410, STATE]);
    assert.equal(await (await tab(servers, fresh())).report(), fate);
    const away = new Servers();
    away.said[server].push(null);
    away.sleep = async () => void (away.time += WEEK);
    assert.equal(await (await tab(away, fresh())).report(), fate);
    assert.equal(away.sent.length, server === "helper" ? 1 : 2);
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
