-- Paused turns, by the tool calls that they wait for. The condition reads a column that only pauses change: with one on the status,
-- each of the two updates of every turn would write all indexes of the table.
drop index generations_paused;
create index generations_paused on generations (agent_id, project_id) where required_action is not null;
