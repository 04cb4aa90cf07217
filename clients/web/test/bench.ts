// The CPU of a report: a plan on stdin, microseconds on stdout.

import { readFileSync } from "node:fs";

import { makeIdentity } from "../src/identity.js";
import { readPlan } from "../src/plan.js";
import { report } from "../src/report.js";

const EACH = 20;

const given = JSON.parse(readFileSync(0, "utf8"));
const plan = await readPlan(given.plan, given.fingerprint, { minHonest: 2 });
const identity = await makeIdentity();
const times: number[] = [];
let bytes = 0;
for (let turn = 0; turn < given.turns; turn++) {
  const before = process.cpuUsage();
  for (let i = 0; i < EACH; i++) {
    const item = plan.domain.first + BigInt(turn * EACH + i);
    const { helper, leader } = await report(plan, identity, item, { round: 0 });
    bytes = helper.length + leader.length;
  }
  const { user, system } = process.cpuUsage(before); // of all threads
  times.push((user + system) / EACH);
}
console.log(JSON.stringify({ microseconds: Math.min(...times), bytes }));
