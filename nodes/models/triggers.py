"""Triggers that write incidents, whatever changes the health of a device or the state of a node."""

import pgtrigger

from nodes.redaction import AUTO_CORDON_NOTE

# In the database, because many statements change the health of devices, and none must be forgotten.
_OF_DEVICE = """
    UPDATE nodes_incident SET until = clock_timestamp() WHERE device_id = NEW.id AND until IS NULL;
    IF NEW.health <> 'ok' THEN
        INSERT INTO nodes_incident (node_id, device_id, kind, cause, since)
        VALUES (NEW.node_id, NEW.id, NEW.health, NEW.health_note, clock_timestamp());
    END IF;
    RETURN NULL;
"""


# A new note of an admin replaces the cause; the audit log has the former one. If an admin takes over a cordon of the
# system, that ends its incident and opens another.
_OF_NODE = f"""
    IF OLD.state <> NEW.state THEN
        UPDATE nodes_incident SET until = clock_timestamp()
         WHERE node_id = NEW.id AND device_id IS NULL AND kind = 'node_lost' AND until IS NULL;
        IF NEW.state = 'lost' THEN
            INSERT INTO nodes_incident (node_id, kind, cause, since)
            VALUES (NEW.id, 'node_lost', 'silent since ' || coalesce(
                        to_char(NEW.last_seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), 'it joined'),
                    clock_timestamp());
        END IF;
    END IF;
    IF OLD.intent <> NEW.intent
       OR starts_with(OLD.intent_note, '{AUTO_CORDON_NOTE}') <> starts_with(NEW.intent_note, '{AUTO_CORDON_NOTE}') THEN
        UPDATE nodes_incident SET until = clock_timestamp()
         WHERE node_id = NEW.id AND device_id IS NULL AND kind IN ('cordoned', 'draining') AND until IS NULL;
        IF NEW.intent <> 'open' THEN
            INSERT INTO nodes_incident (node_id, kind, cause, since)
            VALUES (NEW.id, NEW.intent, NEW.intent_note, clock_timestamp());
        END IF;
    ELSIF OLD.intent_note <> NEW.intent_note THEN
        UPDATE nodes_incident SET cause = NEW.intent_note
         WHERE node_id = NEW.id AND device_id IS NULL AND kind = NEW.intent AND until IS NULL;
    END IF;
    RETURN NULL;
"""


OF_DEVICES = pgtrigger.Trigger(
    name="device_incidents",
    when=pgtrigger.After,
    operation=pgtrigger.UpdateOf("health"),  # type: ignore[no-untyped-call]
    condition=pgtrigger.Condition("OLD.health IS DISTINCT FROM NEW.health"),
    func=_OF_DEVICE,
)


OF_NODES = pgtrigger.Trigger(
    name="node_incidents",
    when=pgtrigger.After,
    operation=pgtrigger.UpdateOf("state", "intent", "intent_note"),  # type: ignore[no-untyped-call]
    condition=pgtrigger.Condition(
        "OLD.state <> NEW.state OR OLD.intent <> NEW.intent OR OLD.intent_note <> NEW.intent_note"
    ),
    func=_OF_NODE,
)
