-- Documents with their texts, versions and chunks, the vectors of chunks, and how files become documents.

create table documents (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  file_id text not null unique references files (id),
  -- `message`: the text of a conversation message, written by the platform; never chunked, listed or searched.
  kind text not null default 'document' check (kind in ('document', 'message')),
  status text not null check (status in ('pending', 'processing', 'ready', 'failed', 'withdrawn')),
  version integer not null default 1,
  -- The version that brought the text in document_texts; null while there is none.
  text_version integer,
  -- Copies of the file's, which nothing but the document changes while it backs one.
  path text collate "C",
  filename text not null,
  content_type text,
  size bigint not null,
  title text,
  metadata jsonb,
  tags jsonb not null default '{}',
  chunk_strategy text not null check (chunk_strategy in ('page', 'whole', 'size', 'auto')),
  -- What chunk_size and chunk_overlap count; all three null unless the strategy takes them.
  chunk_unit text check (chunk_unit in ('characters', 'tokens')),
  chunk_size integer,
  chunk_overlap integer,
  -- Chunks that are there, and how many of them have a vector in the space they were written in.
  chunk_count integer not null default 0,
  embedded_chunks integer not null default 0,
  -- Known once the text was extracted and cut.
  total_chunks integer,
  total_pages integer,
  error jsonb,
  -- Since when chunks lack a vector that is still tried for; null when none does.
  embed_since timestamptz(3),
  -- The embedding space its chunks were last embedded for, whether or not every one got a vector; 0 for none.
  space_id integer not null default 0,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now()
);
create index documents_project on documents (project_id, created_at desc, id desc) where kind = 'document';
-- Paths below a directory.
create index documents_path on documents (project_id, path);
create index documents_tags on documents using gin (tags jsonb_path_ops) where kind = 'document';
create index documents_metadata on documents using gin (metadata jsonb_path_ops) where kind = 'document';
create index documents_unsettled on documents (project_id, id) where status in ('pending', 'processing');
create index documents_embed_since on documents (embed_since) where embed_since is not null;
-- What is left of other spaces, newest first.
create index documents_space on documents (space_id, id) where chunk_count > 0;

create table document_texts (
  document_id text primary key references documents (id) on delete cascade,
  content text not null,
  -- [[number, first code point], ...] of the pages it was joined from; null without numbered pages.
  pages jsonb
);

-- Append-only: what a document was. Every text is stored once: a version has the text of its `text_version`, and that
-- one's `content` and `pages` are null for as long as the text is the live one in document_texts.
create table document_versions (
  document_id text not null references documents (id) on delete cascade,
  version integer not null,
  tombstone boolean not null default false,
  title text,
  path text,
  metadata jsonb,
  tags jsonb not null default '{}',
  chunk_strategy text not null,
  chunk_unit text,
  chunk_size integer,
  chunk_overlap integer,
  text_version integer,
  content text,
  pages jsonb,
  -- { type: user | api_key | system, id }
  created_by jsonb,
  created_at timestamptz(3) not null default now(),
  primary key (document_id, version)
);

-- What the lexical channel finds a text by: its words, and a lexeme of the project, which keeps a scan of the index inside
-- it. A tsvector holds 1 MiB of lexemes at most: of a text with more, as many halvings of its start as it takes.
create function search_tsv(config regconfig, content text, project text) returns tsvector
language plpgsql immutable parallel safe as $$
declare
  taken integer := 262144;
begin
  loop
    begin
      return to_tsvector(config, left(content, taken)) || array_to_tsvector(array['~p' || project]);
    exception when program_limit_exceeded then
      taken := taken / 2;
    end;
  end loop;
end
$$;

create table document_chunks (
  id text primary key,
  document_id text not null references documents (id) on delete cascade,
  project_id text not null references projects (id) on delete cascade,
  chunk_index integer not null,
  page_number integer,
  -- Unicode code points of the document's text, end exclusive.
  char_start integer not null,
  char_end integer not null,
  content text not null,
  -- Title and headings above the chunk; embedded with it, never shown as its text.
  context text,
  tsv tsvector not null,
  -- The text search configuration that made `tsv`.
  tsv_config text not null
);
create unique index document_chunks_document on document_chunks (document_id, chunk_index);
-- The newest chunks of a project: a word that most of them hold is looked for in this order, not in the index of words.
create index document_chunks_project on document_chunks (project_id, id);
-- Holds a lexeme of the project beside the words, so that a search stays inside the project.
create index document_chunks_tsv on document_chunks using gin (tsv);
-- What another configuration made.
create index document_chunks_config on document_chunks (tsv_config);

create table embedding_spaces (
  id integer generated always as identity primary key,
  provider text not null,
  model text not null,
  dimensions integer not null,
  code_version integer not null,
  created_at timestamptz(3) not null default now(),
  unique (provider, model, dimensions, code_version)
);

-- One row: the settings of the worker that started last. Documents are brought to these, so that workers of an older
-- configuration, which run beside it for a while, do not turn them back.
create table retrieval_settings (
  singleton boolean primary key default true check (singleton),
  -- Null: no worker came with an embedding model yet.
  space_id integer references embedding_spaces (id),
  text_search_config text not null
);

create table knowledge_vectors (
  id bigint generated always as identity primary key,
  project_id text not null references projects (id) on delete cascade,
  -- 1 chunk of a document, 2 memory
  source smallint not null,
  -- The document or the memory store.
  container_id text not null,
  -- The chunk or the memory.
  ref_id text not null,
  -- Window of a text that is longer than one embedding takes.
  segment integer not null,
  space_id integer not null references embedding_spaces (id),
  -- Signs of the rotated vector.
  code bit varying(4096) not null,
  -- The vector, L2-normalized, as little-endian float32.
  vec bytea not null,
  -- The transaction that wrote the code: how a process that keeps codes finds those it has not seen.
  written_in xid8 not null default pg_current_xact_id()
);
alter table knowledge_vectors alter column vec set storage external;
-- By ref_id first, so that it never looks like a way to the rows of a source and a space.
create unique index knowledge_vectors_ref on knowledge_vectors (ref_id, source, segment, space_id);
create index knowledge_vectors_container on knowledge_vectors (container_id);
-- All codes of a project in one index-only scan. Without ref_id: it is read for the candidates alone, and the index is a
-- tenth smaller (41 MB for 100,000 codes).
create index knowledge_vectors_scan on knowledge_vectors (project_id, space_id, source, written_in)
  include (id, container_id, code);
-- Index-only scans need the visibility map.
alter table knowledge_vectors set (autovacuum_vacuum_insert_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0.02);

create table ingestion_rules (
  id text primary key,
  project_id text not null references projects (id) on delete cascade,
  enabled boolean not null default true,
  -- Lower case.
  content_type_glob text not null,
  path_prefix text collate "C",
  -- Without a foreign key until tools have a table; judged on every write.
  tool_id text,
  agent_id text references agents (id),
  action text,
  preset_parameters jsonb,
  native_extraction text not null default 'first' check (native_extraction in ('first', 'skip')),
  file_delivery text not null default 'base64' check (file_delivery in ('base64', 'download_url')),
  chunk_strategy text check (chunk_strategy in ('page', 'whole', 'size', 'auto')),
  chunk_unit text check (chunk_unit in ('characters', 'tokens')),
  chunk_size integer,
  chunk_overlap integer,
  metadata jsonb,
  created_at timestamptz(3) not null default now(),
  updated_at timestamptz(3) not null default now(),
  check ((tool_id is null) <> (agent_id is null))
);
create unique index ingestion_rules_glob on ingestion_rules (project_id, content_type_glob, path_prefix) nulls not distinct;
create index ingestion_rules_project on ingestion_rules (project_id, created_at desc, id desc);
create index ingestion_rules_tool on ingestion_rules (tool_id) where tool_id is not null;
create index ingestion_rules_agent on ingestion_rules (agent_id) where agent_id is not null;

-- The live attempt to ingest a document; gone once it has settled. Who writes for a document holds the document's row and
-- finds the attempt it was given here; an attempt that was superseded finds nothing.
create table ingestion_attempts (
  document_id text primary key references documents (id) on delete cascade,
  id text not null unique,
  -- `awaiting`: a converter has promised to post the text.
  state text not null default 'queued' check (state in ('queued', 'running', 'awaiting')),
  -- When somebody has to look: the next try of a queued one, the end of a running one's lease, the last moment for an
  -- awaited callback.
  due_at timestamptz(3) not null default now(),
  -- Claims by workers: the number that fences a late writer.
  claims integer not null default 0,
  -- Claims whose worker was not heard of until its lease was over.
  losses integer not null default 0,
  -- Tries that failed without a name.
  failures integer not null default 0,
  -- Who asked for it: { type, id, via }.
  principal jsonb not null,
  allow_deferral boolean not null,
  -- What the request, and a document that was ingested before, say of its chunks.
  settings jsonb not null,
  -- What a converter posted.
  pages jsonb,
  heartbeat_at timestamptz(3),
  created_at timestamptz(3) not null default now()
);
create index ingestion_attempts_due on ingestion_attempts (due_at);
