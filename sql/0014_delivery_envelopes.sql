-- A delivery refers to the envelope of its event instead of holding a copy: 200 webhooks made 32 MB of deliveries out of
-- 150 KB of changes. Null means that the text is the event's. A delivery without an event (webhooks.test) holds its text,
-- and those from before keep their copies.
alter table webhook_deliveries alter column envelope drop not null;

-- Texts of events that went before their deliveries: EVENT_RETENTION_DAYS may be shorter than that of deliveries.
create table retained_envelopes (
  event_id text primary key,
  project_id text not null references projects (id) on delete cascade,
  resource_type text not null,
  resource_id text not null,
  envelope text not null
);
create index retained_envelopes_project on retained_envelopes (project_id);
create index retained_envelopes_resource on retained_envelopes (resource_id);

-- A worker of the release before reads the text from the row that it claims, and counts claims up by one. Workers that
-- know where the text is count up by two.
create function delivery_envelope() returns trigger language plpgsql as $$
begin
  new.envelope := coalesce(
    (select e.envelope from events e where e.id = new.event_id),
    (select k.envelope from retained_envelopes k where k.event_id = new.event_id));
  return new;
end $$;
create trigger delivery_envelope before update of claim on webhook_deliveries for each row
  when (new.envelope is null and new.claim = old.claim + 1) execute function delivery_envelope();
