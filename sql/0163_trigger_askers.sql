-- Who made a trigger stays on record when it acts as somebody else, who changed it.
alter table triggers add column created_by jsonb;
update triggers set created_by = jsonb_build_object('kind', authority ->> 'type', 'id', authority ->> 'id');
alter table triggers alter column created_by set not null;

-- Who fired it by hand, with what narrows them: their firing goes no further than they may.
alter table trigger_firings add column asked_by jsonb;

-- The users who had a part in starting what an approval is about, where they may not decide it themselves.
alter table approvals add column starters text[] not null default '{}';
update approvals set starters = array[started_by] where started_by is not null;
alter table approvals drop column started_by;
