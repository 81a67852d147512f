#!/bin/sh
# Makes the folders of a network whose members all belong to you: to try it, or inside one institution.
# Between institutions each member runs `peer init` itself; see docs/peers.md.
#   first-network.sh DIR RUN NAME=HOST:PORT NAME=HOST:PORT …
# METRICS=0.0.0.0:9400 serves metrics there, instead of on a free port of loopback. They have no password: do so
# only where nobody but your own Prometheus reaches that port, as in the network of compose.yaml.
# The folders appear when all are complete, so that a member that is started too early finds none.
set -eu
dir=$1 run=$2 new=$1/.new
shift 2
nodes=$# node=0
rm -rf "$new"
for member in "$@"; do
    name=${member%%=*} port=${member##*:}
    if [ -e "$dir/$name/peer.toml" ]; then
        echo "$dir/$name is there already; nothing is changed"
        exit 0
    fi
    mkdir -p "$new"
    clippedgossip peer init "$new/$name" --name "$name" --bind "0.0.0.0:$port" --run "$run" >"$new/.$name"
    sed -i.before -e "s/^nodes = .*/nodes = $nodes/" -e "s/^node = .*/node = $node/" "$new/$name/peer.toml"
    if [ -n "${METRICS:-}" ]; then
        sed -i.before "s/^bind = /metrics = \"$METRICS\"\nbind = /" "$new/$name/peer.toml"
    fi
    rm "$new/$name/peer.toml.before"
    node=$((node + 1))
done
for member in "$@"; do
    for other in "$@"; do
        name=${other%%=*}
        if [ "$member" != "$other" ]; then
            mark=$(sed -n 's/^fingerprint //p' "$new/.$name")
            clippedgossip peer add "$name" "${other#*=}" "$mark" --dir "$new/${member%%=*}"
        fi
    done
done
for member in "$@"; do mv "$new/${member%%=*}" "$dir/"; done
rm -r "$new"
