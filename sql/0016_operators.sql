-- People take over sessions from their agent, and end users resolve approvals of their sessions.

-- Name that end users see.
alter table users add column display_name text;

alter table sessions
  add column control text not null default 'agent' check (control in ('agent', 'operator')),
  add column assigned_to text references users (id) on delete set null,
  -- Request for a person: { reason, urgency, since, by }.
  add column attention jsonb,
  add column takeover_timeout_seconds integer check (takeover_timeout_seconds between 1 and 31536000),

  -- Never on the wire.
  -- Takeover or latest operator message, plus the timeout; null without either.
  add column operator_until timestamptz(3),
  -- Of the turn that answers after the handback: { authority, permission }. Null under the agent.
  add column reply_permit jsonb;
create index sessions_assigned on sessions (assigned_to) where assigned_to is not null;
create index sessions_operated on sessions (project_id, created_at desc, id desc) where control = 'operator';
create index sessions_attention on sessions (project_id, created_at desc, id desc) where attention is not null;
create index sessions_operator_until on sessions (operator_until, id) where operator_until is not null;

-- Loose: user who wrote an operator message.
alter table conversation_messages add column operator_id text;

alter table approvals
  add column approver text not null default 'operator' check (approver in ('operator', 'end_user')),
  -- What the end user sees: a title, null for an operator, and the names of the arguments.
  add column title text,
  add column end_user_arguments text[] not null default '{}',
  -- Loose: end user who resolved the item.
  add column resolved_by_actor_id text;
