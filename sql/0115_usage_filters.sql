-- Events of a trigger, an action or a source among a million of their project: 300 ms through usage_events_project when they
-- are few, 2 this way. Ordinary events have none of the three and are in none of these. A model is in nearly all: what one
-- was used for is read from the roll-ups, and an index of it would cost every write.
create index usage_events_trigger on usage_events (project_id, trigger_id, created_at, id) where trigger_id is not null;
create index usage_events_action on usage_events (project_id, action_id, created_at, id) where action_id is not null;
create index usage_events_source on usage_events (project_id, source, created_at, id) where source is not null;
