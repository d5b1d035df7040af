#!/bin/sh
# Installs a node of EpicEpoch on this machine, from the directory that `epicepoch init` wrote for it:
#     sudo sh node-1/install.sh --found    the first installation, to found a NEW cluster
#     sudo sh node-1/install.sh            later, for new certificates
#     ... --settings                       also for changed settings, tokens, authorities (ca.pem) and unit
#     ... --program                        also for another program
# It never touches data. Only the first run on a machine, and --found, start the node: one that has ended may have to
# stay so, until an operator knows why. Without --settings and --found, it keeps a file of settings that differs from
# the new one, because an operator may have changed it on this machine.
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
program=$root/usr/local/bin/epicepoch
unit=$root/etc/systemd/system/epicepoch.service

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

found='' with_settings='' with_program='' kept=''
for argument; do
    case $argument in
        --found) found=yes with_settings=yes ;;
        --settings) with_settings=yes ;;
        --program) with_program=yes ;;
        *) fail "$argument: the only arguments are --found, --settings and --program" ;;
    esac
done

is_other() { [ -e "$2" ] && ! cmp -s "$1" "$2"; }

# Installs a file of settings. One that differs is kept, or with --settings or --found saved first.
put() {
    new=$1 old=$2
    shift 2
    if is_other "$new" "$old"; then
        if [ -z "$with_settings" ]; then
            kept="$kept ${old#"$root"}"
            return
        fi
        cp -pf "$old" "$old.before"
        echo "${old#"$root"} is replaced. The former file is $old.before"
    fi
    install "$@" "$new" "$old"
}

# What a program says about itself.
version() { "$1" --version 2>/dev/null | head -n 2 | tr "\n" " "; }

# A node that joins waits until it is added. It founds nothing.
joins() { grep -q '^[[:space:]]*join[[:space:]]*=' "$1"; }
[ -z "$found" ] || ! joins "$from/epicepoch.toml" ||
    fail 'the settings have "join": this node joins a cluster and founds none. Run this without --found'

# Key and settings are of one node.
id_of() { sed -n 's/^[[:space:]]*node_id[[:space:]]*=[[:space:]]*\([0-9]*\).*/\1/p' "$1" 2>/dev/null | head -n 1; }
id=$(id_of "$from/epicepoch.toml") id_here=$(id_of "$settings/epicepoch.toml")
[ -z "$id" ] || [ -z "$id_here" ] || [ "$id" = "$id_here" ] ||
    fail "$from is for node $id, but $settings/epicepoch.toml is of node $id_here: nothing is installed.
If node $id_here was removed from its cluster for ever, delete $settings and its data in $data first"
[ -e "$settings/epicepoch.toml" ] && first='' || first=yes

# A certificate of another authority would be refused by the nodes that this one trusts.
[ -n "$with_settings" ] || ! is_other "$from/ca.pem" "$settings/ca.pem" ||
    fail "$from/ca.pem has other authorities than $settings/ca.pem, so the certificate may not fit.
Compare them. Then copy node.key and node.pem by hand, or run this with --settings"

secret='-m 400'
if [ -n "$only_copies" ]; then
    [ -z "$found" ] || fail '--found starts the node, but DESTDIR only copies files'
else
    [ "$(id -u)" = 0 ] || fail 'it needs root: run it with sudo'
    rm -f "$founding"
    if [ -n "$found" ] && [ -d "$root/run/systemd/system" ] && systemctl is-active --quiet epicepoch; then
        fail 'the node runs already; --found is for its first start. For new certificates, run this without it; for other changed files, with --settings'
    fi
    if ! id epicepoch >/dev/null 2>&1; then
        # The unit runs in the group of the same name. Not every system makes it without being asked.
        useradd --system --user-group --home-dir "$data" --shell /usr/sbin/nologin epicepoch
    fi
    # Only the user of the service reads keys and tokens.
    secret='-m 400 -o epicepoch'
    [ -n "$packaged" ] || [ -e "$from/epicepoch" ] || [ -x "$program" ] ||
        fail 'there is no binary: copy it to /usr/local/bin/epicepoch, then run this again'
fi

if [ -n "$packaged" ] && [ -e "$unit" ]; then
    echo "The package epicepoch is installed, but $unit hides its unit. If an earlier install.sh"
    echo "made that file, delete it and $program. Then: systemctl daemon-reload; systemctl restart epicepoch"
elif [ -n "$packaged" ]; then
    echo 'The package epicepoch is installed: its program and its unit are used.'
elif [ -z "$with_program" ] && [ -e "$from/epicepoch" ] && is_other "$from/epicepoch" "$program"; then
    echo "$program is kept, because it is another program than the one in $from:"
    echo "    installed: $(version "$program")"
    echo "    there:     $(version "$from/epicepoch")"
    echo 'An older program may not read the data of a newer one. To replace it all the same, run this with --program.'
elif [ -e "$from/epicepoch" ]; then
    install -D -m 755 "$from/epicepoch" "$program"
fi
install -d -m 755 "$settings"
# A running node reads changed files within seconds. Until key and certificate fit, it goes on with those that it has.
# shellcheck disable=SC2086 # The options are words.
install $secret "$from/node.key" "$settings/node.key"
install -m 644 "$from/node.pem" "$settings/node.pem"
for file in clients operators; do
    # shellcheck disable=SC2086
    put "$from/$file" "$settings/$file" $secret
done
for file in ca.pem epicepoch.toml; do
    put "$from/$file" "$settings/$file" -m 644
done
[ -n "$packaged" ] || put "$from/epicepoch.service" "$unit" -D -m 644
if [ -n "$kept" ]; then
    echo "Kept, because they differ from those in $from:$kept"
    echo 'If they should be as there, run this with --settings.'
fi
[ -z "$only_copies" ] || exit 0

if [ -n "$found" ]; then
    echo 'This founds a NEW cluster, as soon as --found has started all its nodes. If a cluster has lost its data,'
    echo 'restore it instead: docs/operations/backup-and-restore.md'
elif joins "$settings/epicepoch.toml"; then
    echo 'This node joins a cluster. Without data, it waits until an operator adds it: docs/operations/members.md'
else
    echo 'This founds no cluster: a node without data ends with exit code 4. Only for the first start of a NEW cluster:'
    echo "    sudo sh $from/install.sh --found"
    echo 'If the node has lost its data, replace it: docs/operations/members.md. If all have, restore the cluster:'
    echo 'docs/operations/backup-and-restore.md'
fi
if [ -d "$root/run/systemd/system" ]; then
    [ -z "$found" ] || echo BOOTSTRAP=1 >"$founding"
    systemctl daemon-reload
    if [ -n "$found$first" ]; then
        systemctl enable epicepoch
        # The node waits for the others, so this does not wait for the node.
        systemctl start --no-block epicepoch
        echo 'Installed and started. The log: journalctl -u epicepoch'
    else
        case $(systemctl is-active epicepoch || true) in
            inactive | failed | unknown | '')
                echo 'Installed. The node does not run, and this does not start it. If it has run before, see why it'
                echo 'ended: systemctl status epicepoch'
                echo 'If it may run: systemctl enable --now epicepoch'
                ;;
            *)
                echo 'Installed. The node runs on, and reads a new certificate and new tokens within seconds.'
                echo 'Other settings and another program need: systemctl restart epicepoch'
                ;;
        esac
    fi
else
    install -d -m 750 -o epicepoch "$root$data"
    echo 'The files are in place, but systemd does not run here. As user epicepoch, start the node with:'
    echo "    ${found:+BOOTSTRAP=1 }epicepoch serve --config /etc/epicepoch/epicepoch.toml"
fi
echo "$from has the node's key and the operators' token. Delete it: rm -r $from"
