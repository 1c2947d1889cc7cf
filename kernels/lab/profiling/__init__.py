"""What profilers see: launches, and the bytes that DRAM moved."""
