#!/bin/sh
# The entry of the container (deploy/Containerfile): the first start runs the campaign $CAMPAIGN, and
# later ones resume it, so that the container may be restarted at any time. Its arguments are further
# options of `fedtally campaign run`.
set -eu
: "${CAMPAIGN:?name the folder of the campaign, as by podman run -e CAMPAIGN=survey}"
trap "" HUP  # a reload while it starts ends nothing
verb=run
[ ! -s "$CAMPAIGN/campaign.db" ] || verb=resume
exec fedtally campaign "$verb" "$CAMPAIGN" --engine https --listen "unix:/run/fedtally/$CAMPAIGN.sock" \
  --operate "unix:/run/fedtally/$CAMPAIGN.operate.sock" --log info --quiet "$@"
