"""The same work on roost, on its peers and on bare sockets, side by side in one run.

    python -m benchmarks                  # all of it; a table, a plot and the raw numbers in out/benchmarks
    python -m benchmarks --only mesh --peers roost,monarch

Each group of workloads of each peer runs in a process of its own, the peers one after the other and the whole
several times over, so that what the machine does meanwhile falls on all alike. Compare ratios within one run.
"""
