-- Files and where their bytes are, upload tokens, declarations of metadata.

create table files (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Normalized, from the root. Null only under a document whose path was cleared.
  path text collate "C",
  filename text not null,
  content_type text,
  -- Stored bytes; declared ones while there is no content.
  size bigint check (size >= 0),
  -- Null without content.
  sha256 bytea,
  -- Where the bytes are, null while there are none: a backend of the deployment (postgres, local, s3), or `text`: they
  -- are the UTF-8 of document_texts of the document that this file backs.
  storage text check (storage in ('postgres', 'local', 's3', 'text')),
  -- What the backend finds them by; a blob's id for postgres.
  location text,
  metadata jsonb,
  tags jsonb not null default '{}',
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
  check ((storage is null) = (sha256 is null)),
  check ((storage in ('postgres', 'local', 's3')) is not true or location is not null)
);
-- One key space of paths a project; serves lists below a directory, in the order of bytes.
create unique index files_path on files (project_id, path);
-- The list; what the platform wrote is in none.
create index files_project on files (project_id, created_at desc, id desc)
  where path is null or not starts_with(path, '/.system/');
create index files_tags on files using gin (tags jsonb_path_ops)
  where path is null or not starts_with(path, '/.system/');
-- Which blobs still have a file.
create index files_location on files (location) where location is not null;

-- Bytes in the database. A blob is staged chunk by chunk, each in a transaction of its own, and committed with the row that
-- names it. No foreign keys: what is left behind is swept (staging blobs after an hour, committed ones nobody names).
create table file_blobs (
  id uuid primary key,
  state text not null default 'staging' check (state in ('staging', 'committed')),
  size bigint,
  sha256 bytea,
  created_at timestamptz(3) not null default now()
);
create index file_blobs_staging on file_blobs (created_at) where state = 'staging';

create table file_blob_chunks (
  blob_id uuid not null,
  seq integer not null,
  bytes bytea not null,
  primary key (blob_id, seq)
);
-- Files are mostly compressed already.
alter table file_blob_chunks alter column bytes set storage external;

create table upload_tokens (
  -- SHA-256 of the token; the token itself is nowhere.
  token_hash bytea primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Who asked for it: { type, id, via }.
  principal jsonb not null,
  prefix text,
  filename text,
  content_type text,
  max_bytes bigint,
  expires_at timestamptz(3) not null,
  used_at timestamptz(3),
  created_at timestamptz(3) not null default now()
);
create index upload_tokens_project on upload_tokens (project_id);
create index upload_tokens_ended on upload_tokens (least(expires_at, used_at));

create table metadata_schemas (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  resource_type text not null check (resource_type in ('document', 'file')),
  path_prefix text collate "C" not null,
  -- Text, as it was written.
  schema text not null,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create unique index metadata_schemas_selector on metadata_schemas (project_id, resource_type, path_prefix);
create index metadata_schemas_project on metadata_schemas (project_id, created_at, id);

-- What the content of a project takes, once a UTC day; storage_bytes quotas read the newest row.
create table storage_snapshots (
  project_id text not null references projects (id) on delete cascade,
  day date not null,
  bytes bigint not null,
  chunk_count bigint not null,
  created_at timestamptz(3) not null default now(),
  primary key (project_id, day)
);
