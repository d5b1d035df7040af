package io.github.epicepoch;

/**
 * Names a cluster and its history.
 *
 * @param id 32 hexadecimal digits, drawn at random when the cluster was founded
 * @param history changes when the cluster is restored from a backup; unsigned
 */
public record Cluster(String id, long history) {
    @Override
    public String toString() {
        return id + "." + Long.toUnsignedString(history);
    }
}
