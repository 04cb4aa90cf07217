# shellcheck shell=bash
# What the examples on Flower share: a federation of processes on this machine, in a new folder.
#
# A script sources this file, and is then in that folder. Each process has a group of its own and
# ends with the script. All waits are for events: a deadline only ends what would never happen.
#
# It needs fedtally[flower], openssl, ssh-keygen and curl. With nginx, nodes reach the Fleet API alone.
set -euo pipefail
umask 077 # the SuperLink's database holds frames, and Flower leaves it open to everybody
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d /tmp/fedtally-flower.XXXX)
cd "$work"
export FLWR_HOME="$work/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.1} # seconds
connection=example # the SuperLink's name in Flower's config.toml
deadline=${DEADLINE_SECONDS:-600} # for one event; a busy machine may need minutes for a quiet one's seconds
declare -A pids

step() { printf '\n=== %s (%ss)\n' "$1" "$SECONDS"; }

start() { # NAME COMMAND: start a process in a group of its own; NAME.log is what it prints
  setsid "${@:2}" >"$1.log" 2>&1 &
  pids[$1]=$!
}

stop() { # NAME [SIGNAL]: end a process, and all that it started
  kill "-${2:-TERM}" -- "-${pids[$1]}" 2>/dev/null || true
}

lives() { # NAME: whether a process has not ended
  kill -0 "${pids[$1]}" 2>/dev/null
}

wait_until() { # NAME COMMAND: wait until COMMAND succeeds, or the process NAME has ended
  local end=$((SECONDS + deadline)) why=
  until [[ $why ]]; do
    lives "$1" || why="$1 has ended" # asked first: what it did last counts
    "${@:2}" && return
    ((SECONDS < end)) || why="$deadline seconds are over"
    sleep 0.5
  done
  echo "$why, and still not: ${*:2}; this is the end of $1.log" >&2
  tail -n 40 "$1.log" >&2
  return 1
}

wait_for() { # NAME TEXT: wait until a process has printed a text
  wait_until "$1" grep -qF -- "$2" "$1.log"
}

finish() { # STATUS: end all processes; without an error, delete the folder
  local name end=$((SECONDS + 15))
  trap - EXIT
  for name in "${!pids[@]}"; do stop "$name"; done
  for name in "${!pids[@]}"; do
    while lives "$name" && ((SECONDS < end)); do sleep 0.2; done
    stop "$name" KILL # a group outlives its leader
  done
  wait 2>/dev/null || true
  if [[ $1 == 0 ]]; then rm -rf "$work"; else echo "the files are in $work" >&2; fi
}
trap 'finish $?' EXIT
trap 'exit 130' INT TERM

field() { # EXPRESSION: of the JSON document d that comes in
  python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"
}

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

answers() { # PORT: whether the SuperLink answers there
  curl -sf -o /dev/null --cacert ca.crt "https://127.0.0.1:$1/health"
}

start_superlink() { # sets control and fleet: the ports of the Control API, and of the Fleet API
  openssl genrsa -out ca.key 4096 2>/dev/null
  openssl req -x509 -new -key ca.key -sha256 -days 30 -subj /CN=example-ca -out ca.crt \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
  openssl genrsa -out superlink.key 2048 2>/dev/null
  openssl req -new -key superlink.key -subj /CN=localhost -out superlink.csr
  printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n' >extensions
  openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -sha256 \
    -extfile extensions -out superlink.pem 2>/dev/null
  control=$(free_port)
  start superlink flower-superlink --ssl-ca-certfile ca.crt --ssl-certfile superlink.pem \
    --ssl-keyfile superlink.key --enable-supernode-auth --database state.db \
    --host 127.0.0.1 --port "$control"
  wait_until superlink answers "$control"
  mkdir -p "$FLWR_HOME"
  cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "$connection"
[superlink.$connection]
address = "127.0.0.1:$control"
root-certificates = "$work/ca.crt"
END
  fleet=$control
  if ! command -v nginx >/dev/null; then
    echo "there is no nginx: here nodes could reach the Control API too"
    return
  fi
  fleet=$(free_port)
  sed "s#WORK#$work#g; s#FLEET#$fleet#; s#SUPERLINK#$control#" "$examples/nginx.conf" >nginx.conf
  start nginx nginx -c "$work/nginx.conf" -g 'daemon off;'
  wait_until nginx answers "$fleet"
  local code
  code=$(curl -s -o /dev/null -w '%{http_code}' --cacert ca.crt -X POST \
    "https://127.0.0.1:$fleet/v1/control/list-runs")
  [[ $code == 404 ]]
  echo "nodes reach the Fleet API on port $fleet, and the Control API stays on port $control"
}

enrol() { # NUMBER PURPOSE: the keys of server and registrar, agent1 to agentNUMBER, clients.allow
  local i
  fedtally keys new server --output server.key
  fedtally keys new registrar --output registrar.key
  for i in $(seq "$1"); do
    fedtally agent init "agent$i" >/dev/null 2>&1
    fedtally keys prove "agent$i/key/agent.key" --registrar registrar.key.pub \
      --purpose "$2" --output "client$i.proof" >/dev/null 2>&1
  done
  fedtally keys allow-list --registrar registrar.key.pub --purpose "$2" \
    --output clients.allow client*.proof
}

start_agent() { # I: the owner accepts plan.toml, signed as plan.sig; the agent listens
  fedtally agent accept plan.toml --allow-list clients.allow --signature plan.sig --yes \
    --agent "agent$1" >accepted.log 2>&1 || { cat accepted.log >&2; return 1; }
  start "fedtally-agent$1" fedtally agent run --agent "agent$1"
}

start_nodes() { # NUMBER: node1 to nodeNUMBER, each with a key that the operator registers
  local i
  for i in $(seq "$1"); do
    wait_until "fedtally-agent$i" test -S "agent$i/run/agent.sock"
    ssh-keygen -q -t ecdsa -b 384 -N "" -f "node$i"
    flwr supernode register "node$i.pub" "$connection" >/dev/null
  done
  fedtally flower check --superlink "127.0.0.1:$fleet" --root-certificates ca.crt --key node1 \
    --agent agent1/run/agent.sock
  for i in $(seq "$1"); do
    start "node$i" flower-supernode --root-certificates ca.crt --superlink "127.0.0.1:$fleet" \
      --port "$(free_port)" --auth-supernode-private-key "node$i" \
      --node-config "agent=\"$work/agent$i/run/agent.sock\""
  done
}
