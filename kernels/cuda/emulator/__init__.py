"""CUDA C++ on a CPU: every thread a fiber, every access checked and counted."""
