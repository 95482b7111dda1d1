-- breaking: false

-- Receivers of the spans of projects.
create table telemetry_targets (
  project_id text primary key references projects (id) on delete cascade,
  endpoint text not null,
  -- Sealed JSON of headers, whose values may have references to secrets.
  sealed_headers text not null, header_names text[] not null,
  sample_ratio double precision not null check (sample_ratio between 0 and 1),
  content text not null check (content in ('none', 'full')),
  -- Empty for all kinds of spans.
  kinds text[] not null,
  -- Principal of the last write, whose permissions limit the content that is sent.
  author jsonb not null,
  last_exported_at timestamptz(3),
  dropped bigint not null default 0,
  -- Consecutive failures, and the reason of the last one.
  failures integer not null default 0, last_error text,
  next_attempt_at timestamptz(3) not null default now(),
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);

-- Spans of settled work until their receiver has them, a row for each unit of work.
create table span_outbox (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Compressed JSON of the spans in the form of OTLP.
  spans bytea not null, span_count integer not null, bytes integer not null,
  -- Sealed JSON of content by span, of a turn that keeps its content.
  sealed_content text, generation_id text, trace_id text,
  created_at timestamptz(3) not null default now()
);
alter table span_outbox alter column spans set storage external;
create index span_outbox_project on span_outbox (project_id, id);
create index span_outbox_content on span_outbox (generation_id) where sealed_content is not null;

-- With a turn goes its content, whatever deletes the turn.
create function erase_span_content() returns trigger language plpgsql as $$
begin
  update span_outbox set sealed_content = null
  where sealed_content is not null and generation_id in (select id from gone);
  return null;
end $$;
create trigger generations_span_content after delete on generations referencing old table as gone
  for each statement execute function erase_span_content();
