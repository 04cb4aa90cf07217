#!/usr/bin/env bash
# A whole campaign over HTTPS on one machine: nginx with TLS, seven clients with an agent and a token
# each, and a server that is killed in the middle and goes on. docs/serving.md explains each step.
# It needs nginx and openssl.
#
#   examples/https/run.sh [FOLDER]       FOLDER keeps the files; by default they are deleted
set -euo pipefail
umask 077
PATH=$PATH:/usr/sbin  # where nginx is
for program in fedtally nginx openssl; do
  command -v "$program" > /dev/null || { echo "install $program first" >&2; exit 1; }
done

folder=${1:-$(mktemp -d)}
if [[ -n $(ls -A "$folder" 2>/dev/null) ]]; then
  echo "$folder has files: name an empty folder" >&2; exit 1
fi
mkdir -p "$folder"/{sockets,clients,nginx} && cd "$folder"
folder=$PWD
port=$((20000 + RANDOM % 10000))
running=()
end() {  # no process outlives the script
  ((${#running[@]} == 0)) || kill "${running[@]}" 2>/dev/null || true
  wait
  [[ -n ${1:-} ]] || rm -rf "$folder"
}
trap 'end "${1:-}"' EXIT
people=(ada ben cleo dan eva finn gus)
fruits=(apple apple apple pear apple pear plum)
printf '%s\n' apple pear plum quince > fruits.txt

echo "== The operator makes a key, a plan and the campaign, and a token for each client."
fedtally keys new server --output server.key
fedtally plan --clients 7 --domain fruits.txt --tau 0.2 --secure-sum secagg --cohort 7 \
  --cohort-min 7 --server-key server.key.pub --output plan.toml
fingerprint=$(fedtally campaign init fruit --plan plan.toml --server-key server.key \
  --candidates fruits.txt --mark fruit.mark --phase 20)
fedtally campaign tokens mint fruit --count 7 --output tokens

echo "== nginx ends TLS. Its conf is made from the plan; the rest is for this folder alone."
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost -keyout tls.key -out tls.pem 2>/dev/null
fedtally campaign nginx fruit --host localhost --address "127.0.0.1:$port" --sockets sockets \
  --certificate "$folder/tls.pem" --certificate-key "$folder/tls.key" \
  --errors "$folder/nginx/errors.log" --output fruit.conf
[[ $(id -u) != 0 ]] || user="user root;"  # else its worker may not enter this folder
cat > nginx.conf <<END
${user:-} daemon off; pid $folder/nginx/pid; error_log $folder/nginx/main.log;
events {}
http {
  client_body_temp_path $folder/nginx/body; proxy_temp_path $folder/nginx/proxy;
  fastcgi_temp_path $folder/nginx/f; uwsgi_temp_path $folder/nginx/u; scgi_temp_path $folder/nginx/s;
  include $folder/fruit.conf;
}
END
nginx -c "$folder/nginx.conf" 2> nginx/start.log &
running+=($!)
until [[ -s nginx/pid ]]; do  # it listens
  kill -0 "${running[0]}" || { cat nginx/start.log >&2; exit 1; }
  sleep 0.05
done

echo "== Each owner accepts the plan. The agent guards the items, and join carries its bytes."
tokens=(tokens/*.token)
for i in "${!people[@]}"; do
  name=${people[i]}
  fedtally agent init "clients/$name" > /dev/null 2>&1
  echo "${fruits[i]}" > "clients/$name/items/items.txt"
  cat > "clients/$name/agent.toml" <<END
[items]
file = "items/items.txt"
candidates = ["../../fruits.txt"]
once = "2026-11"           # a label of these items, which an agent without an epsilon needs
[policy]
epsilon = "none"
adversary = "semi-honest"
min_honest = 5
END
  fedtally agent accept plan.toml --agent "clients/$name" --yes > /dev/null 2>&1
  fedtally agent run --agent "clients/$name" 2> "clients/$name/log" &
  running+=($!)
  fedtally agent join --url "https://localhost:$port/v1/campaigns/$fingerprint" \
    --token-file "${tokens[i]}" --ca tls.pem --socket "clients/$name/run/agent.sock" \
    2> "clients/$name/join.log" &
  running+=($!)
  joins+=($!)
done

echo "== The operator runs the campaign. The server is killed, and goes on: nobody is lost."
places=(--engine https --listen unix:sockets/fruit.sock --operate unix:sockets/fruit.operate.sock
  --linger 60)
fedtally campaign run fruit "${places[@]}" 2> run.log &
server=$!
until grep -qs "for their items" run.log; do
  kill -0 "$server" || { cat run.log >&2; exit 1; }
  sleep 0.05
done
{ kill -9 "$server"; wait "$server"; } 2> /dev/null || true  # bash would say "Killed"
fedtally campaign resume fruit "${places[@]}" &
server=$!

echo "== Each client hears that the campaign is over, and ends."
wait "${joins[@]}"
tail -qn 1 clients/*/join.log | sort | uniq -c
kill "$server"
wait "$server"
fedtally campaign status fruit
# 410 for ever, from now on; the other options are those of the first time
fedtally campaign nginx fruit --ended --host localhost --address "127.0.0.1:$port" \
  --certificate "$folder/tls.pem" --certificate-key "$folder/tls.key" --output fruit.conf
