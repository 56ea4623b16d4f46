"""Who may read from origins, of all servers that share a cluster: K slots, one cool-down.

    choose.py      from the settings to a Slots
    leased.py      K leases, whoever keeps them: acquire, check, release; renewed by background.py
    lease.py       the rules of a lease; throttle.py those of the cool-down. Both pure: records and a clock
    register.py    what they are kept in: a record that is read and compared-and-swapped
    kubernetes.py  such a record in a Lease object; files.py in a shared directory
    local.py       no cluster: a jitter and a cool-down for the node

Nothing is fenced at the store: what a holder publishes is verified by its digest, so one that was overtaken can waste
bandwidth but never publish a wrong file.
"""
