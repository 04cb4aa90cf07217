// Real servers that do what no server should: what a client sends, keeps and says.

import "fake-indexeddb/auto";
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";

import { browser, NotOpenError, Outbox } from "../src/outbox.js";
import { readPlan } from "../src/plan.js";
import { Record } from "../src/record.js";
import { BASE, published } from "./given.js";

const PLAN = await readPlan(...(await published(BASE)), { minHonest: 2 });
const STATE = { "content-type": "application/vnd.fedtally.release+json" };
const PROBLEM = { "content-type": "application/problem+json" };
const WEEK = 7 * 86_400;

type Answer = (asked: IncomingMessage, answer: ServerResponse) => void;
const running: Server[] = [];
after(() => running.forEach((each) => each.close().closeAllConnections()));

/** A server, with what it heard, and what it says next; else it is as it should be. */
async function serve(side: string) {
  const heard: string[] = [];
  const next: { [method: string]: Answer[] } = { GET: [], PUT: [] };
  const server = createServer((asked, answer) => {
    heard.push(`${asked.method} ${asked.headers["content-type"] ?? ""}`);
    asked.resume().on("end", () => {
      const special = next[asked.method!]?.shift();
      if (special) return special(asked, answer);
      answer.writeHead(asked.method === "PUT" ? 201 : 200, STATE);
      answer.end(JSON.stringify({ server: side, state: "open" }));
    });
  });
  running.push(server);
  await once(server.listen(0, "127.0.0.1"), "listening");
  return { address: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, heard, next };
}

let made = 0;

async function world() {
  const [helper, leader, stranger] = [
    await serve("helper"),
    await serve("leader"),
    await serve("helper"),
  ];
  const record = await Record.open(`hostile ${made++}`);
  const identity = await record.enrol();
  let time = browser.now();
  const outside = {
    ...browser,
    locked: <T>(_: string, work: () => Promise<T>) => work(),
    now: () => time,
    sleep: async (seconds: number) => void (time += Math.max(seconds, 3600)), // to be done soon
  };
  const addresses = { helper: helper.address, leader: leader.address };
  const outbox = new Outbox(record, PLAN, addresses, outside);
  const report = () => outbox.report(0, identity, 1);
  const entry = () => record.entry(`${PLAN.fingerprint}/0`);
  return { helper, leader, stranger, report, entry, outbox };
}

const redirect =
  (to: string, status: number): Answer =>
  ({ url }, answer) =>
    answer.writeHead(status, { ...STATE, location: `${to}${url}` }).end();

test("no redirect is followed: nothing comes to another origin", async () => {
  for (const status of [301, 302, 303, 307, 308]) {
    const { helper, stranger, report, entry } = await world();
    helper.next["GET"]!.push(redirect(stranger.address, status));
    await assert.rejects(report(), NotOpenError);
    assert.equal(await entry(), null);
    helper.next["PUT"]!.push(redirect(stranger.address, status));
    assert.equal(await report(), "accepted");
    assert.deepEqual(stranger.heard, []);
    assert.deepEqual(helper.heard, [
      "GET ",
      "GET ",
      "PUT application/vnd.fedtally.frame",
      "PUT application/vnd.fedtally.frame",
    ]);
  }
});

test("who answers nonsense for ever gets the same frame for a week, and the leader none", async () => {
  const wrong: Answer[] = [
    (_, answer) => answer.writeHead(500).end(),
    (_, answer) => answer.writeHead(413, PROBLEM).end(),
    (_, answer) => answer.writeHead(404, PROBLEM).end(),
    (_, answer) => answer.writeHead(200, STATE).end("{}"),
    (_, answer) => answer.writeHead(503, { "retry-after": "999999999" }).end(),
    (asked) => asked.socket.destroy(),
    (_, answer) => answer.socket!.end("nonsense\r\n\r\n"),
  ];
  for (const each of wrong) {
    const { helper, leader, report, entry, outbox } = await world();
    helper.next["PUT"]!.push(...Array<Answer>(200).fill(each));
    assert.equal(await report(), "not counted");
    assert.deepEqual(leader.heard, ["GET "]);
    const tries = helper.heard.length - 1;
    assert.ok(tries > 1 && tries <= 1 + WEEK / 3600, `${tries}`);
    const kept = await entry();
    assert.deepEqual([kept!.fate, kept!.frames], ["not counted", null]);
    assert.equal(await outbox.resume(0), null);
    await assert.rejects(report(), /is spent: not counted/);
  }
});

test("an answer that never ends holds no connection: more frames come through", async () => {
  const { helper, report } = await world();
  let open = 0;
  const endless: Answer = (_, answer) => {
    open += 1;
    answer.on("close", () => (open -= 1));
    answer.writeHead(503, PROBLEM).write("x".repeat(65_536));
  };
  helper.next["PUT"]!.push(...Array<Answer>(20).fill(endless));
  assert.equal(await report(), "accepted");
  for (let i = 0; open > 0 && i < 200; i++) await browser.sleep(0.01);
  assert.equal(open, 0);
});

test("a state that is too long, no state or another server's lets nobody begin", async () => {
  const wrong: Answer[] = [
    (_, answer) => answer.writeHead(200, STATE).end("{"),
    (_, answer) => answer.writeHead(200, STATE).end('{"server":"leader","state":"open"}'),
    (_, answer) => answer.writeHead(200, STATE).end('{"server":"helper","state":["open"]}'),
    (_, answer) => answer.writeHead(200, STATE).end(`{"state":"${"x".repeat(2 ** 20)}"}`),
    (_, answer) =>
      answer.writeHead(200, STATE).end(`{"server":"helper","state":"open"}${" ".repeat(2 ** 20)}`),
    (asked) => asked.socket.destroy(),
  ];
  for (const each of wrong) {
    const { helper, leader, report, entry } = await world();
    helper.next["GET"]!.push(each);
    await assert.rejects(report(), NotOpenError);
    assert.equal(await entry(), null);
    assert.deepEqual([helper.heard, leader.heard], [["GET "], []]);
  }
});
