"""Times: how they are taken, checked, compared and judged, cell by cell of a suite."""
