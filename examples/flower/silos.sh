#!/usr/bin/env bash
# Six hospitals on a Flower federation, on this machine alone: bash examples/flower/silos.sh [EPSILON]
#
# Each hospital is a silo: an agent that reads a table of some thousand people, and sends their sum.
# Without EPSILON the sums are exact, and the table must equal that of the local engine on all
# tables together. With EPSILON the silos add noise, so that both tables are shown. docs/silos.md
# says what this protects, and federation.sh has the commands that start the parts.
source "$(dirname "$0")/federation.sh"
epsilon=${1:-none}
phase=${PHASE_SECONDS:-120}
silos=6

step "1. Certificates, and the SuperLink"
start_superlink

step "2. Keys of the server, the registrar and the silos"
enrol "$silos" "hospitals"

step "3. The people: of unequal numbers, and with diagnoses of their own frequencies in each silo"
python3 - <<'END'
import csv
import numpy as np
rng = np.random.default_rng(22)
codes = np.arange(1, 201)
with open("all.csv", "w") as everybody:
    together = csv.writer(everybody)
    together.writerow(["code", "patient", "hospital"])
    for silo, people in enumerate([4000, 900, 2500, 3100, 1200, 2000], start=1):
        weights = rng.gamma(2.0, 0.5, codes.size) / codes**1.1
        held = rng.choice(codes, people, p=weights / weights.sum())
        with open(f"agent{silo}/items/visits.csv", "w") as own:
            visits = csv.writer(own)
            visits.writerow(["code", "patient"])
            for person, code in enumerate(held.tolist()):
                visits.writerow([code, f"{silo}-{person}"])
                together.writerow([code, f"{silo}-{person}", f"hospital {silo}"])
END
wc -l all.csv

step "4. The plan, signed by the registrar"
private=()
[[ $epsilon == none ]] || private=(--epsilon "$epsilon" --trust distributed)
fedtally plan --clients "$silos" --people 4000 --expected-people 13700 --domain range:1..200 \
  --rows 5 --max-bytes 4kB "${private[@]}" --secure-sum secagg --adversary active \
  --max-dropout 0 --max-corrupt 0.1 --allow-list clients.allow --server-key server.key.pub \
  --output plan.toml
fedtally keys sign registrar.key plan.toml --allow-list clients.allow --purpose "hospitals" \
  --yes --output plan.sig

step "5. The agents: each hospital says where its table is, and accepts the plan"
for i in $(seq "$silos"); do
  demands="epsilon = \"none\"" once="once = \"example\""
  [[ $epsilon == none ]] || demands="epsilon = $epsilon\ndelta = 1e-5" once=
  sed -i -e 's|^# > registrar = .*|registrar = "../registrar.key.pub"|' \
    -e "s|^# > file = .*|file = \"items/visits.csv\"\ncolumn = \"code\"\npeople = \"patient\"\n$once|" \
    -e '/^# > /d' -e 's|^#   .*||' -e "s|^\[policy\]|[policy]\n$demands|" \
    -e 's|^min_honest = .*|min_honest = 3|' "agent$i/agent.toml"
  start_agent "$i"
done

step "6. The SuperNodes"
start_nodes "$silos"

step "7. The campaign"
granted=()
if [[ $epsilon != none ]]; then
  fedtally ledger grant --ledger ledger.db --population clients --epsilon "$epsilon" --delta 1e-5
  granted=(--ledger ledger.db)
fi
fedtally campaign init survey --plan plan.toml --server-key server.key --allow-list clients.allow \
  "${granted[@]}" --mark survey.mark --phase "$phase"
start campaign fedtally campaign run survey --engine flower --connection "$connection"
wait "${pids[campaign]}" || { cat campaign.log && exit 1; }
cat campaign.log

step "8. The same people in the local engine"
fedtally estimate all.csv --item code --client patient --silo hospital --domain range:1..200 \
  --plan plan.toml --top 10
[[ $epsilon == none ]] || exit 0
table='[(e["item"], e["frequency"], e["low"], e["high"]) for e in d["estimates"]]'
fedtally campaign result survey --json | field "$table" >federation.txt
fedtally estimate all.csv --item code --client patient --silo hospital --domain range:1..200 \
  --plan plan.toml --json | field "$table" >local.txt
cmp federation.txt local.txt
echo "the table of the federation is that of the local engine"
