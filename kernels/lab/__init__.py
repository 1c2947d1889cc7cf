"""The instruments: ledgers of bytes, the bench, the profiler, the plots."""
