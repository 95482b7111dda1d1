-- Breadth of causation has a bound as well as depth: what an event, or a firing that no event caused, led to in all. A row is there
-- once what it led to fires a trigger in turn, or once it has led to too much.
create table trigger_fanouts (
  root_id text primary key,
  project_id text not null references projects (id) on delete cascade,
  firings integer not null,
  skipped integer not null default 0,
  created_at timestamptz(3) not null default now()
) with (fillfactor = 50);
create index trigger_fanouts_project on trigger_fanouts (project_id);
create index trigger_fanouts_created on trigger_fanouts (created_at);

-- What a firing counts to; null for one that is the root itself, or whose event is.
alter table trigger_firings add column root_id text;

-- `skipped`: the first firing of a trigger that a root was too broad for; the others are counted alone.
alter table trigger_firings drop constraint trigger_firings_state_check;
alter table trigger_firings add constraint trigger_firings_state_check
  check (state in ('queued', 'running', 'started', 'succeeded', 'failed', 'skipped')) not valid;
drop index trigger_firings_ended;
create index trigger_firings_ended on trigger_firings (completed_at) where state in ('succeeded', 'failed', 'skipped');
