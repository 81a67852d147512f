"""Where data sets come from: what there is, how it is fetched, checked, decoded and kept."""
