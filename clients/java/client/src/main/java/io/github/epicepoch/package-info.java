/**
 * The Java client of EpicEpoch, a replicated timestamp oracle that gives unique, strictly increasing
 * 16-byte timestamps. Begin with {@link io.github.epicepoch.EpicEpochClient}.
 *
 * <p>It speaks the native protocol (docs/protocol.md of the project) and needs nothing but the JDK.
 * clients/README.md states the contract of every client.
 */
package io.github.epicepoch;
