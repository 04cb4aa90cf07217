// Enrols who opens the page, and reports one item; shows each request that leaves the machine.
// The same files are an extension, if make.py adds a manifest.

import { Outbox, Record, readPlan, register } from "./fedtally.js";
import { survey } from "./survey.js";

const RELEASE = 0;
const FATES = {
  accepted: "Both servers have your report.",
  "not counted": "A server refused your report: it is not counted, and no other can be sent.",
  unknown: "The last answer was lost: your report may be counted or not.",
};
const part = (id) => document.getElementById(id);
const say = (text) => {
  part("said").textContent = text;
};

// The library sends by this function alone, and the policy lets requests go to two servers alone.
const send = globalThis.fetch;
globalThis.fetch = (url, options = {}) => {
  const line = document.createElement("li");
  const bytes = options.body?.length ?? 0;
  line.textContent = `${options.method ?? "GET"} ${url}, ${bytes} bytes`;
  part("sent").append(line);
  return send(url, options);
};

async function enrol(record) {
  const identity = await record.enrol();
  part("proof").textContent = await register(identity, survey.registrar, survey.purpose);
  const next = "Hand the line below to the registrar, and come back once the survey is open.";
  say(next);
  // Firefox answers once its user has, so nothing waits for it
  const isKept = await Record.persist();
  if (!isKept) say(`${next} This browser may clear the key by itself.`);
}

async function begin(record) {
  const identity = await record.identity();
  if (identity === null) {
    say("This browser has no key: it did not enrol, or it cleared its record.");
    return; // a new key is not on the list of clients
  }
  part("proof").textContent = await register(identity, survey.registrar, survey.purpose);
  const plan = await readPlan(survey.plan, survey.fingerprint, { minHonest: survey.minHonest });
  const outbox = new Outbox(record, plan, survey.servers);
  for (const each of survey.candidates) part("item").append(new Option(each));
  part("report").onclick = () => {
    part("report").disabled = true; // until the next visit
    const { candidates } = survey;
    attempt(async () => {
      say("Sending; if you close this page, it goes on at your next visit.");
      say(FATES[await outbox.report(RELEASE, identity, part("item").value, { candidates })]);
    });
  };
  const fate = await outbox.resume(RELEASE); // of a page that was closed while it sent
  if (fate !== null) return say(FATES[fate]);
  part("item").disabled = part("report").disabled = false;
  say("Choose an item. Neither server learns it.");
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    say(`${error.name}: ${error.message}`);
  }
}

await attempt(async () => {
  const record = await Record.open();
  await (survey.plan === null ? enrol(record) : begin(record));
});
