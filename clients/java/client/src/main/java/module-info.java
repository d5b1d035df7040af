/** The Java client of EpicEpoch, a replicated timestamp oracle. */
module io.github.epicepoch {
    exports io.github.epicepoch;
}
