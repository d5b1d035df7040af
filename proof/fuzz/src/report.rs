//! Reports of the load generator, and the histograms in them. Every input is parsed or refused. A
//! parsed value must be equal after it is written and parsed again.

use epicepoch_bench::encoded;
use epicepoch_bench::record::Run;
use hdrhistogram::Histogram;

/// The first byte selects: a histogram as text, an uncompressed histogram, or a report.
pub(crate) fn report(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    if which % 3 == 0 {
        if let Ok(histogram) = encoded::parse(bytes) {
            histogram_comes_back(&histogram);
        }
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if which % 3 == 1 {
        if let Ok(histogram) = encoded::decode(text) {
            histogram_comes_back(&histogram);
        }
    } else if let Ok(run) = Run::parse(text) {
        let again = Run::parse(&run.to_json()).expect("what was written is read");
        assert_eq!(again, run, "a report comes back");
    }
}

fn histogram_comes_back(histogram: &Histogram<u64>) {
    let again = encoded::decode(&encoded::encode(histogram)).expect("what was written is read");
    assert_eq!(again, *histogram, "a histogram comes back");
    assert_eq!((again.len(), again.max()), (histogram.len(), histogram.max()));
}
