"""What a CPU is good at: compiled attention over paged memory, linears, threads."""
