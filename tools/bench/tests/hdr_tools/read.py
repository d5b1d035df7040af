"""Reads a .hlog file with the Python implementation of HdrHistogram and prints what it holds as JSON.

Needs `hdrhistogram` from PyPI. Usage: read.py FILE.hlog
"""

import json
import sys

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

LOWEST, HIGHEST, DIGITS = 100, 60_000_000_000, 3
PERCENTILES = [50, 90, 95, 99, 99.9, 99.99, 99.999, 100]

whole = HdrHistogram(LOWEST, HIGHEST, DIGITS)
reader = HistogramLogReader(sys.argv[1], whole)
intervals = []
while (interval := reader.get_next_interval_histogram()) is not None:
    intervals.append(
        {
            "start_ms": interval.get_start_time_stamp(),
            "end_ms": interval.get_end_time_stamp(),
            "count": interval.get_total_count(),
            "max": interval.get_max_value(),
        }
    )
    whole.add(interval)
reader.close()

json.dump(
    {
        "started_s": reader.get_start_time_sec(),
        "intervals": intervals,
        "count": whole.get_total_count(),
        "max": whole.get_max_value(),
        "mean": whole.get_mean_value(),
        "deviation": whole.get_stddev(),
        "buckets": whole.bucket_count,
        "sub_buckets": whole.sub_bucket_count,
        "percentiles": [whole.get_value_at_percentile(share) for share in PERCENTILES],
        "recorded": [
            [item.value_iterated_to, item.count_at_value_iterated_to]
            for item in whole.get_recorded_iterator()
        ],
    },
    sys.stdout,
)
