"""The paper's figures, one file each: run, check against what is published, draw."""
