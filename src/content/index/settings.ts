import { z } from 'zod'
import { integer, optional, setting, settings, text, type Values } from '#core/base/setting.ts'

export const indexSettings = settings('content', {
  INGESTION_LEASE_SECONDS: setting(integer(2), '60', 'Lease of an ingestion, renewed every third of it.'),
  INGESTION_MAX_TEXT_BYTES: setting(
    integer(1, 200_000_000),
    '52428800',
    'Maximum text of a document; its chunks, which repeat overlaps, may have twice as much in total.',
  ),
  INGESTION_MAX_CHUNKS: setting(integer(1), '20000', 'Maximum chunks per document.'),
  EMBEDDING_PROVIDER: setting(
    z.enum(['', 'openai', 'ollama', 'bedrock', 'local']).transform(value => (value === '' ? null : value)),
    '',
    'Embedding provider: openai, ollama, bedrock or local. If unset, there are no vectors and search is lexical.',
  ),
  EMBEDDING_MODEL: setting(optional, '', 'Embedding model; `local-hash-v1` for local.'),
  EMBEDDING_DIMENSIONS: setting(integer(32, 4096), '1024', 'Number of vector dimensions; must match the model.'),
  EMBEDDING_API_KEY: setting(optional, '', 'API key of the provider; default OPENAI_API_KEY for openai.', {
    secret: true,
  }),
  EMBEDDING_BASE_URL: setting(optional, '', "OpenAI-compatible endpoint to use instead of the provider's."),
  EMBEDDING_REGION: setting(optional, '', 'Region of bedrock; default AWS_REGION, then us-east-1.'),
  EMBEDDING_BATCH_SIZE: setting(integer(1, 2048), '64', 'Maximum texts per provider call.'),
  EMBEDDING_CONCURRENCY: setting(integer(1, 100), '5', 'Concurrent provider calls per process.'),
  EMBEDDING_TIMEOUT_MS: setting(integer(100), '30000', 'Timeout of a provider call.'),
  EMBEDDING_INLINE_TIMEOUT_MS: setting(
    integer(0),
    '5000',
    'Maximum time a document write waits for its vectors; a worker creates the remaining ones.',
  ),
  EMBEDDING_MAX_INPUT_CHARS: setting(integer(500, 32_000), '8000', 'Maximum characters per vector.'),
  KNOWLEDGE_VECTOR_INDEX: setting(
    z.enum(['auto', 'scan', 'pgvector']),
    'auto',
    'Vector index: auto uses pgvector if installed, pgvector requires it, scan does not use it.',
  ),
  KNOWLEDGE_CODE_CACHE_BYTES: setting(
    integer(0),
    '67108864',
    'Memory per process for vector codes of frequently searched projects and for recently read vectors; 0 disables caching.',
  ),
  KNOWLEDGE_CANDIDATE_FACTOR: setting(integer(1, 1000), '40', 'Candidates of the vector scan per requested result.'),
  KNOWLEDGE_TEXT_SEARCH_CONFIG: setting(text, 'simple', 'PostgreSQL text search configuration.'),
  KNOWLEDGE_QUERY_TIMEOUT_MS: setting(integer(10), '5000', 'Timeout of a search channel.'),
})

export const ollamaSettings = settings('workers', {
  OLLAMA_BASE_URL: setting(text, 'http://localhost:11434', 'Default endpoint of ollama providers.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof indexSettings>, Values<typeof ollamaSettings> {}
}
