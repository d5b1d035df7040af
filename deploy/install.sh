#!/bin/sh
# Installs a node of EpicEpoch on this machine, from the directory that `epicepoch init` wrote for it:
#     sudo sh node-1/install.sh
# It may run again, for changed files: it replaces files of settings and certificates, and never touches data.
# With DESTDIR set, it only copies the files below that directory: it makes no user and starts nothing.
set -eu
from=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}
settings=$root/etc/epicepoch
data=/var/lib/epicepoch

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

secret='-m 400'
if [ -z "$root" ]; then
    [ "$(id -u)" = 0 ] || fail 'it needs root: run it with sudo'
    if ! id epicepoch >/dev/null 2>&1; then
        useradd --system --home-dir "$data" --shell /usr/sbin/nologin epicepoch
    fi
    # Only the user of the service reads keys and tokens.
    secret='-m 400 -o epicepoch'
    [ -e "$from/epicepoch" ] || [ -x /usr/local/bin/epicepoch ] ||
        fail 'there is no binary: copy it to /usr/local/bin/epicepoch, then run this again'
fi

if [ -e "$from/epicepoch" ]; then
    install -D -m 755 "$from/epicepoch" "$root/usr/local/bin/epicepoch"
fi
install -d -m 755 "$settings"
# A running node reads changed files within seconds. Until key and certificate fit, it goes on with those that it has.
for file in node.key clients operators; do
    # shellcheck disable=SC2086 # The options are words.
    install $secret "$from/$file" "$settings/$file"
done
for file in node.pem ca.pem epicepoch.toml; do
    install -m 644 "$from/$file" "$settings/$file"
done
install -D -m 644 "$from/epicepoch.service" "$root/etc/systemd/system/epicepoch.service"
[ -z "$root" ] || exit 0

if [ ! -d /run/systemd/system ]; then
    install -d -m 700 -o epicepoch "$data"
    echo 'The files are in place, but systemd does not run here. Start the node as user epicepoch, the first time with:'
    echo '    BOOTSTRAP=1 epicepoch serve --config /etc/epicepoch/epicepoch.toml'
    exit 0
fi
if [ ! -e "$data" ] || [ -z "$(ls -A "$data")" ]; then
    # An empty node founds the cluster, together with the others. This file is gone after the next start of the machine,
    # so that disks that were all lost never found a second cluster.
    once=/run/systemd/system/epicepoch.service.d
    mkdir -p "$once"
    printf '[Service]\nEnvironment=BOOTSTRAP=1\n' >"$once/bootstrap.conf"
fi
systemctl daemon-reload
systemctl enable epicepoch
# The node waits for the others, so this does not wait for the node.
systemctl start --no-block epicepoch
echo 'Installed. Its log: journalctl -u epicepoch. If it ran before, changed settings need: systemctl restart epicepoch'
