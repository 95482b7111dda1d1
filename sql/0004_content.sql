-- breaking: false

-- Files, documents, words and vectors, ingestion.

create table files (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Normalized, from the root. Null only for the file of a document whose path was cleared.
  path text collate "C",
  filename text not null, content_type text,
  -- Stored bytes; declared bytes while there is no content.
  size bigint check (size >= 0),
  -- Null without content.
  sha256 bytea,
  -- Backend of the deployment with the bytes, or `text`: the UTF-8 of document_texts of the document of this file. Null
  -- without content.
  storage text check (storage in ('postgres', 'local', 's3', 'text')),
  -- Key of the bytes in the backend; the ID of a blob in postgres.
  location text,
  metadata jsonb,
  tags jsonb not null default '{}',
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- End user who uploaded the file; references actors.
  actor_id text,
  check ((storage is null) = (sha256 is null)),
  check ((storage in ('postgres', 'local', 's3')) is not true or location is not null)
);
-- One key space of paths per project; serves lists of a directory in the order of bytes.
create unique index files_path on files (project_id, path);
-- Lists omit files of the platform.
create index files_project on files (project_id, created_at desc, id desc)
  where path is null or not starts_with(path, '/.system/');
create index files_tags on files using gin (tags jsonb_path_ops)
  where path is null or not starts_with(path, '/.system/');
-- Blobs in use.
create index files_location on files (location) where location is not null;
create index files_actor on files (actor_id) where actor_id is not null;

-- The path of a file of a trace contains the ID of the trace, which replaces a foreign key of traces: without its index,
-- the update that sets the file rewrites no index.
create function refuse_file_of_trace() returns trigger language plpgsql as $$
begin
  -- Paths have the collation C, the primary key has not.
  if exists (
    select from traces where id = split_part(split_part(old.path, '/', 4), '.', 1) collate "default" and file_id = old.id
  ) then
    raise exception 'file % is the one of a trace', old.id using errcode = 'foreign_key_violation';
  end if;
  return null;
end $$;
create trigger files_of_traces after delete on files for each row when (starts_with(old.path, '/.system/traces/'))
  execute function refuse_file_of_trace();

-- Bytes in the database. A blob is staged chunk by chunk, each in a separate transaction, and committed with the row that
-- refers to it. No foreign keys: a sweep deletes orphans (staged blobs after an hour, committed ones without a file).
create table file_blobs (
  id uuid primary key,
  state text not null default 'staging' check (state in ('staging', 'committed')),
  size bigint,
  sha256 bytea,
  created_at timestamptz(3) not null default now()
);
create index file_blobs_staging on file_blobs (created_at) where state = 'staging';

create table file_blob_chunks (
  blob_id uuid not null, seq integer not null, bytes bytea not null,
  primary key (blob_id, seq)
);
-- Most files are already compressed.
alter table file_blob_chunks alter column bytes set storage external;

create table upload_tokens (
  -- SHA-256 of the token, which is not stored.
  token_hash bytea primary key,
  project_id text not null references projects (id) on delete cascade,
  -- Principal that created it: { type, id, via }.
  principal jsonb not null,
  prefix text, filename text, content_type text, max_bytes bigint,
  expires_at timestamptz(3) not null, used_at timestamptz(3),
  created_at timestamptz(3) not null default now()
);
create index upload_tokens_project on upload_tokens (project_id);
create index upload_tokens_ended on upload_tokens (least(expires_at, used_at));

create table metadata_schemas (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  resource_type text not null check (resource_type in ('document', 'file')),
  path_prefix text collate "C" not null,
  -- Text, as written.
  schema text not null,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now()
);
create unique index metadata_schemas_selector on metadata_schemas (project_id, resource_type, path_prefix);
create index metadata_schemas_project on metadata_schemas (project_id, created_at, id);

create table documents (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  file_id text not null unique references files (id),
  -- `message`: the text of a conversation message, written by the platform; never chunked, listed or searched.
  kind text not null default 'document' check (kind in ('document', 'message')),
  status text not null check (status in ('pending', 'processing', 'ready', 'failed', 'withdrawn')),
  version integer not null default 1,
  -- Version that introduced the text in document_texts; null without a text.
  text_version integer,
  -- Copies of the file, which only its document changes.
  path text collate "C",
  filename text not null, content_type text, size bigint not null, title text, metadata jsonb,
  tags jsonb not null default '{}',
  chunk_strategy text not null check (chunk_strategy in ('page', 'whole', 'size', 'auto')),
  -- Unit of chunk_size and chunk_overlap; the three are null unless the strategy uses them.
  chunk_unit text check (chunk_unit in ('characters', 'tokens')),
  chunk_size integer, chunk_overlap integer,
  -- Stored chunks, and how many have a vector in the space in which they were written.
  chunk_count integer not null default 0, embedded_chunks integer not null default 0,
  -- Null until the text is extracted and split.
  total_chunks integer,
  total_pages integer, error jsonb,
  -- Since when chunks lack a vector that is still attempted; null otherwise.
  embed_since timestamptz(3),
  -- Space of the last embedding of the chunks, whether or not each one got a vector; 0 for none.
  space_id integer not null default 0,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- Language of the ingestion rule, as in projects. Null: the project's.
  search_language text,
  -- Charset that was detected in a text file without one.
  charset text,
  -- `partial`: searches by meaning find it only in part, or not at all, because the embedding model refused its texts.
  embedding text check (embedding = 'partial')
);
create index documents_project on documents (project_id, created_at desc, id desc) where kind = 'document';
create index documents_path on documents (project_id, path);
create index documents_tags on documents using gin (tags jsonb_path_ops) where kind = 'document';
create index documents_metadata on documents using gin (metadata jsonb_path_ops) where kind = 'document';
create index documents_unsettled on documents (project_id, id) where status in ('pending', 'processing');
create index documents_embedding on documents (project_id) where embedding is not null;
create index documents_embed_since on documents (embed_since) where embed_since is not null;
-- Documents in earlier spaces, newest first.
create index documents_space on documents (space_id, id) where chunk_count > 0;

create table document_texts (
  document_id text primary key references documents (id) on delete cascade,
  content text not null,
  -- [[number, first code point], ...] of the joined pages; null without numbered pages.
  pages jsonb
);

-- Append-only. Every text is stored once: a version has the text of its `text_version`, whose `content` and `pages` are
-- null while document_texts has the text.
create table document_versions (
  document_id text not null references documents (id) on delete cascade,
  version integer not null, tombstone boolean not null default false, title text, path text,
  metadata jsonb,
  tags jsonb not null default '{}',
  chunk_strategy text not null, chunk_unit text, chunk_size integer, chunk_overlap integer,
  text_version integer, content text, pages jsonb,
  -- { type: user | api_key | system, id }
  created_by jsonb,
  created_at timestamptz(3) not null default now(),
  primary key (document_id, version)
);

-- Returns a text search configuration by name, `simple` if it does not exist.
create function search_config(name text) returns regconfig language sql stable parallel safe as $$
  select coalesce(
    (select t.oid::regconfig
     from pg_ts_config t join pg_namespace n on n.oid = t.cfgnamespace
     where (t.cfgname = lower(name) and pg_ts_config_is_visible(t.oid)) or n.nspname || '.' || t.cfgname = lower(name)
     limit 1),
    'pg_catalog.simple')
$$;

-- Returns the words of a text with a lexeme of the project, which keeps an index scan within the project. Each line of
-- `words` is a weight, a configuration or `-`, a space, and words by their position; `zqxj` is none. Configurations of lines
-- apply if the language is `auto`. A tsvector holds at most 1 MiB of lexemes: larger lines are halved until they fit.
create function words_tsv(words text, language text, fallback text, project text) returns tsvector
language plpgsql stable parallel safe as $$
declare
  characters integer := 1048576;
  line text;
  named text;
  config regconfig;
  content text;
  part tsvector;
  result tsvector;
begin
  loop
    begin
      result := '';
      foreach line in array string_to_array(words, e'\n') loop
        named := split_part(substr(line, 2), ' ', 1);
        content := left(substr(line, length(named) + 3), characters);
        config := search_config(case when language <> 'auto' then language when named = '-' then fallback else named end);
        part := to_tsvector(config, content);
        if strpos(content, 'zqxj') > 0 then
          part := ts_delete(part, tsvector_to_array(to_tsvector(config, 'zqxj')));
        end if;
        if left(line, 1) <> 'D' then
          part := setweight(part, left(line, 1)::"char");
        end if;
        -- Concatenation would move the positions of the second tsvector.
        result := case when result = '' then part else (result::text || ' ' || part::text)::tsvector end;
      end loop;
      return result || array_to_tsvector(array['~p' || project]);
    exception when program_limit_exceeded then
      characters := characters / 2;
    end;
  end loop;
end
$$;

-- Returns the query for the forms of a search, separated by form feeds, of which one must match. A form consists of lines that
-- must all match: a command, a configuration, a tab and a text. Immutable, so that the planner evaluates it.
create function search_query(forms text) returns tsquery language plpgsql immutable parallel safe as $$
declare
  form text;
  line text;
  name text;
  config regconfig;
  content text;
  part tsquery;
  lines tsquery;
  result tsquery := '';
begin
  foreach form in array string_to_array(forms, e'\f') loop
    lines := '';
    foreach line in array string_to_array(form, e'\n') loop
      name := substr(split_part(line, e'\t', 1), 2);
      content := substr(line, length(name) + 3);
      config := case when name like '!%' then substr(name, 2)::regconfig else search_config(name) end;
      part := case left(line, 1)
        when 'q' then to_tsquery(config, content)
        when 'w' then websearch_to_tsquery(config, content)
        else phraseto_tsquery(config, content)
      end;
      lines := case when lines = '' then part else lines && part end;
    end loop;
    if lines <> '' and lines <> result then
      result := case when result = '' then lines else result || lines end;
    end if;
  end loop;
  return result;
end
$$;

create table document_chunks (
  id text primary key,
  document_id text not null references documents (id) on delete cascade,
  project_id text not null references projects (id) on delete cascade,
  chunk_index integer not null, page_number integer,
  -- Unicode code points of the text of the document, end exclusive.
  char_start integer not null,
  char_end integer not null,
  content text not null,
  -- Title and headings above the chunk; embedded with it, never presented as its text.
  context text,
  tsv tsvector not null,
  -- Text search configuration of `tsv`.
  tsv_config text not null
);
create unique index document_chunks_document on document_chunks (document_id, chunk_index);
-- Newest chunks of a project: a search for a word in most of them reads this order, not the index of words.
create index document_chunks_project on document_chunks (project_id, id);
create index document_chunks_tsv on document_chunks using gin (tsv);
-- Tags of words in use, and the rows of a project with one of them.
create index document_chunks_words on document_chunks (tsv_config, project_id);

create table embedding_spaces (
  id integer generated always as identity primary key,
  provider text not null, model text not null, dimensions integer not null,
  code_version integer not null,
  created_at timestamptz(3) not null default now(),
  unique (provider, model, dimensions, code_version)
);

-- One row: settings of the worker that started last. Documents are converted to them, so that concurrent workers with an
-- earlier configuration do not convert them back.
create table retrieval_settings (
  singleton boolean primary key default true check (singleton),
  -- Null until a worker with an embedding model starts.
  space_id integer references embedding_spaces (id),
  text_search_config text not null
);

create table knowledge_vectors (
  id bigint generated always as identity primary key,
  project_id text not null references projects (id) on delete cascade,
  -- 1 chunk of a document, 2 memory
  source smallint not null,
  -- Document or memory store.
  container_id text not null,
  -- Owner of the row within its container, empty for none.
  owner_id text not null default '',
  -- Chunk or memory.
  ref_id text not null,
  -- Window of a text that exceeds one embedding.
  segment integer not null,
  space_id integer not null references embedding_spaces (id),
  -- Signs of the rotated vector.
  code bit varying(4096) not null,
  -- L2-normalized vector as little-endian float32.
  vec bytea not null,
  -- Transaction that wrote the code: processes with cached codes find later ones by it.
  written_in xid8 not null default pg_current_xact_id()
);
alter table knowledge_vectors alter column vec set storage external;
-- ref_id is first, so that the planner never uses it to scan a source and a space.
create unique index knowledge_vectors_ref on knowledge_vectors (ref_id, source, segment, space_id);
create index knowledge_vectors_container on knowledge_vectors (container_id, owner_id);
-- All codes of a project in one index-only scan. Without ref_id, which only candidates need: the index is a tenth smaller
-- (41 MB for 100,000 codes).
create index knowledge_vectors_scan on knowledge_vectors (project_id, space_id, source, written_in)
  include (id, container_id, owner_id, code);
-- Index-only scans need the visibility map.
alter table knowledge_vectors set (autovacuum_vacuum_insert_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0.02);

create table ingestion_rules (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  enabled boolean not null default true,
  -- Lower case.
  content_type_glob text not null,
  path_prefix text collate "C",
  -- Loose, both: they may be shared by another project. A delete of an agent of the project finds its rules under the
  -- lock that their writers take.
  tool_id text,
  agent_id text, action text, preset_parameters jsonb,
  native_extraction text not null default 'first' check (native_extraction in ('first', 'skip')),
  file_delivery text not null default 'base64' check (file_delivery in ('base64', 'download_url')),
  chunk_strategy text check (chunk_strategy in ('page', 'whole', 'size', 'auto')),
  chunk_unit text check (chunk_unit in ('characters', 'tokens')),
  chunk_size integer, chunk_overlap integer, metadata jsonb, author jsonb,
  created_at timestamptz(3) not null default now(), updated_at timestamptz(3) not null default now(),
  -- As in projects. Null: the project's.
  search_language text,
  check ((tool_id is null) <> (agent_id is null))
);
create unique index ingestion_rules_glob on ingestion_rules (project_id, content_type_glob, path_prefix) nulls not distinct;
create index ingestion_rules_project on ingestion_rules (project_id, created_at desc, id desc);
create index ingestion_rules_tool on ingestion_rules (tool_id) where tool_id is not null;
create index ingestion_rules_agent on ingestion_rules (agent_id) where agent_id is not null;
create index ingestion_rules_author on ingestion_rules ((author ->> 'id'));

-- The active attempt to ingest a document, deleted when it settles. Writers for a document lock the row of the document and
-- check the attempt: a superseded attempt finds no row.
create table ingestion_attempts (
  document_id text primary key references documents (id) on delete cascade,
  id text not null unique,
  -- `awaiting`: a converter has promised to post the text.
  state text not null default 'queued' check (state in ('queued', 'running', 'awaiting')),
  -- When a queued attempt is due, claim of a running one, or deadline of a callback.
  due_at timestamptz(3) not null default now(),
  -- Claims by workers: the number fences late writers.
  claims integer not null default 0,
  -- Claims whose worker was silent for a lease.
  losses integer not null default 0,
  -- Failed attempts without a specific reason.
  failures integer not null default 0,
  -- Principal that requested it: { type, id, via }.
  principal jsonb not null,
  allow_deferral boolean not null,
  -- Settings of chunks in the request, and in a document that was ingested before.
  settings jsonb not null,
  -- Posted by a converter.
  pages jsonb,
  created_at timestamptz(3) not null default now()
);
create index ingestion_attempts_due on ingestion_attempts (due_at);
