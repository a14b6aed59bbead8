"""Operations of which torch has only slow or greedy versions on a CPU, each beside its plain version."""
