"""Who may use how much: tenants, quotas, members, tokens and the usage ledger."""
