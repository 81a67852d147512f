#!/bin/sh
# Makes the folders of a network whose members all belong to you: to try it, or inside one institution.
# Between institutions each member runs `peer init` itself; see docs/peers.md.
#   first-network.sh DIR RUN NAME=HOST:PORT NAME=HOST:PORT …
# METRICS=0.0.0.0:9400 serves metrics there, instead of on a free port of loopback.
set -eu
dir=$1 run=$2
shift 2
nodes=$# node=0
for member in "$@"; do
    name=${member%%=*} port=${member##*:}
    if [ -e "$dir/$name/peer.toml" ]; then
        echo "$dir/$name is there already; nothing is changed"
        exit 0
    fi
    clippedgossip peer init "$dir/$name" --name "$name" --bind "0.0.0.0:$port" --run "$run" >"$dir/.$name"
    sed -i.before -e "s/^nodes = .*/nodes = $nodes/" -e "s/^node = .*/node = $node/" "$dir/$name/peer.toml"
    if [ -n "${METRICS:-}" ]; then
        sed -i.before "s/^bind = /metrics = \"$METRICS\"\nbind = /" "$dir/$name/peer.toml"
    fi
    rm "$dir/$name/peer.toml.before"
    node=$((node + 1))
done
for member in "$@"; do
    for other in "$@"; do
        name=${other%%=*}
        if [ "$member" != "$other" ]; then
            mark=$(sed -n 's/^fingerprint //p' "$dir/.$name")
            clippedgossip peer add "$name" "${other#*=}" "$mark" --dir "$dir/${member%%=*}"
        fi
    done
done
for member in "$@"; do rm "$dir/.${member%%=*}"; done
