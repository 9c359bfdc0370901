"""Define the status of a GPU, in SQL: busy, held_idle, free or unavailable.

A held GPU is idle only if readings show it idle for a minute and since it was allocated; without a reading it is busy.
Readings older than 30 seconds at the node's last message do not count."""

GPU_STATUSES = ("busy", "held_idle", "free", "unavailable")
# Over devices d, their nodes n, readings r (if any) and holders h.
HOLDERS = """LEFT JOIN (SELECT device_id, min(since) AS since FROM nodes_allocation GROUP BY device_id) h
              ON h.device_id = d.id"""
IS_HELD = "(d.held_whole > 0 OR d.held_mb > 0)"
# Over devices d and their nodes n: an online node has not read the device for a minute, and another device has its PCI
# address: the GPU was repartitioned (MIG) or swapped. Its row stays for its history alone.
IS_REPLACED = f"""(d.health <> 'ok' AND NOT {IS_HELD} AND d.pci_bus_id <> '' AND NOT EXISTS (
    SELECT 1 FROM nodes_reading e WHERE e.device_id = d.id AND e.read_at > n.last_seen_at - interval '1 minute')
    AND EXISTS (SELECT 1 FROM nodes_device o JOIN nodes_reading e ON e.device_id = o.id
                 WHERE o.node_id = d.node_id AND o.pci_bus_id = d.pci_bus_id AND o.id <> d.id
                   AND e.read_at > n.last_seen_at - interval '1 minute'))"""
GPU_STATUS = f"""
    CASE WHEN {IS_HELD}
         THEN CASE WHEN n.last_seen_at - r.read_at < interval '30 seconds'
                    AND r.idle_since IS NOT NULL AND h.since IS NOT NULL
                    AND r.read_at - greatest(r.idle_since, h.since) >= interval '1 minute'
                   THEN 'held_idle' ELSE 'busy' END
         WHEN d.health IN ('ok', 'hot') AND n.state = 'online' AND n.intent = 'open' THEN 'free'
         ELSE 'unavailable' END
"""
