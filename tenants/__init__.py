"""Tenants, quotas, members, tokens and the usage ledger."""
