package io.github.epicepoch;

/**
 * A node of the cluster.
 *
 * @param node the node's id, never 0
 * @param address its client address, host:port
 */
record Member(long node, String address) {}
