-- Who caused a message: an end user, a turn of an agent, an operator, the continuation after an approval, or the
-- platform. Null in rows of earlier releases, whose origin follows from the role.
alter table conversation_messages add column origin text
  check (origin in ('end_user', 'agent', 'operator', 'approval', 'system'));

-- Openings of continuations were written in one transaction with their turn.
update conversation_messages m set origin = 'approval'
from conversation_turns t
where t.conversation_id = m.conversation_id and t.kind = 'continuation' and t.created_at = m.created_at
  and m.role = 'user' and m.actor_id is null;
