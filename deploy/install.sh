#!/bin/sh
# Installs a node of EpicEpoch on this machine, from the directory that `epicepoch init` wrote for it:
#     sudo sh node-1/install.sh --found    the first installation, to found a NEW cluster
#     sudo sh node-1/install.sh            later, for changed files
# It replaces files of settings and certificates, and never touches data.
# With DESTDIR set, it only copies the files below that directory: it makes no user and starts nothing.
set -eu
from=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}
only_copies=${DESTDIR:+yes}
settings=$root/etc/epicepoch
data=/var/lib/epicepoch
# The unit reads this file at each start, and deletes it when the process ends. So one process founds, and no later one.
founding=$root/run/epicepoch-found
# The Debian package has brought the program and a unit. Copies in /usr/local and /etc would hide its upgrades.
packaged=
[ ! -e "$root/usr/lib/systemd/system/epicepoch.service" ] || packaged=yes

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

found=
case "$*" in
    '') ;;
    --found) found=yes ;;
    *) fail "$*: the only argument is --found" ;;
esac

secret='-m 400'
if [ -n "$only_copies" ]; then
    [ -z "$found" ] || fail '--found starts the node, but DESTDIR only copies files'
else
    [ "$(id -u)" = 0 ] || fail 'it needs root: run it with sudo'
    rm -f "$founding"
    if [ -n "$found" ] && [ -d "$root/run/systemd/system" ] && systemctl is-active --quiet epicepoch; then
        fail 'the node runs already; --found is for its first start. For changed files, run this without it'
    fi
    if ! id epicepoch >/dev/null 2>&1; then
        # The unit runs in the group of the same name. Not every system makes it without being asked.
        useradd --system --user-group --home-dir "$data" --shell /usr/sbin/nologin epicepoch
    fi
    # Only the user of the service reads keys and tokens.
    secret='-m 400 -o epicepoch'
    [ -n "$packaged" ] || [ -e "$from/epicepoch" ] || [ -x "$root/usr/local/bin/epicepoch" ] ||
        fail 'there is no binary: copy it to /usr/local/bin/epicepoch, then run this again'
fi

if [ -n "$packaged" ]; then
    echo 'The package epicepoch is installed: its program and its unit are used.'
elif [ -e "$from/epicepoch" ]; then
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
[ -n "$packaged" ] || install -D -m 644 "$from/epicepoch.service" "$root/etc/systemd/system/epicepoch.service"
[ -z "$only_copies" ] || exit 0

if [ -n "$found" ]; then
    echo 'This founds a NEW cluster, as soon as --found has started all its nodes. If a cluster has lost its data,'
    echo 'restore it instead: docs/operations/backup-and-restore.md'
else
    echo 'This founds no cluster: a node without data ends with exit code 4. Only for the first start of a NEW cluster:'
    echo "    sudo sh $from/install.sh --found"
    echo 'If the node has lost its data, replace it: docs/operations/members.md. If all have, restore the cluster:'
    echo 'docs/operations/backup-and-restore.md'
fi
if [ -d "$root/run/systemd/system" ]; then
    [ -z "$found" ] || echo BOOTSTRAP=1 >"$founding"
    systemctl daemon-reload
    systemctl enable epicepoch
    # The node waits for the others, so this does not wait for the node.
    systemctl start --no-block epicepoch
    echo 'Installed. The log: journalctl -u epicepoch. If the node ran before, changed settings need:'
    echo '    systemctl restart epicepoch'
else
    install -d -m 750 -o epicepoch "$root$data"
    echo 'The files are in place, but systemd does not run here. As user epicepoch, start the node with:'
    echo "    ${found:+BOOTSTRAP=1 }epicepoch serve --config /etc/epicepoch/epicepoch.toml"
fi
echo "$from has the node's key and the operators' token. Delete it: rm -r $from"
