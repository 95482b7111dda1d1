import { constants } from 'node:fs'
import { access, stat } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { embedderOf } from '#content/index/embeddings/embedder.ts'
import type { CallFailure } from '#content/index/embeddings/providers.ts'
import { requireVectorIndex } from '#content/index/vectors/pgvector.ts'
import { hasTextSearch } from '#content/knowledge/text-search.ts'
import { storageBackends } from '#content/storage/backends.ts'
import { type Config, ConfigError } from '#core/base/config.ts'
import { silentLog } from '#core/base/log.ts'
import type { Services } from '#core/base/services.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { type Check, describeError } from './output.ts'

const TRIAL_MS = 15_000

/** Tries file storage, embeddings and searches once each, like a request. */
export async function checkContent(config: Config): Promise<Check[]> {
  // Failures are reported by the checks, not logged.
  const services = await openServices(config, { log: silentLog(), role: 'cli' })
  try {
    const [storage, embeddings, textSearch, vectorIndex] = await Promise.all([
      checkStorage(services),
      checkEmbeddings(services),
      checkTextSearch(services),
      checkVectorIndex(services),
    ])
    return [storage, embeddings, textSearch, ...vectorIndex]
  } finally {
    await services.close()
  }
}

async function checkStorage(services: Services): Promise<Check> {
  const name = 'file storage'
  const { FILES_S3_BUCKET, FILES_STORAGE_DIR, FILES_STORAGE_PROVIDER: provider } = services.config
  const problem = storageBackends(services).problem()
  if (problem) return { name, status: 'fail', detail: problem, fix: 'Set it; run muster settings for its meaning.' }
  if (provider === 'local') {
    const directory = FILES_STORAGE_DIR as string
    try {
      if (!(await stat(directory)).isDirectory()) throw new Error('not a directory')
      await access(directory, constants.R_OK | constants.W_OK | constants.X_OK)
    } catch (error) {
      return {
        name,
        status: 'fail',
        detail: `files cannot be stored in ${directory}: ${describeError(error)}`,
        fix: 'Create or mount it where every web and worker process can write it.',
      }
    }
    return { name, status: 'ok', detail: `in ${directory}` }
  }
  if (provider !== 's3') return { name, status: 'ok', detail: 'in the database' }
  try {
    await Promise.race([writeTrialObject(services), rejectAfterTimeout()])
  } catch (error) {
    return {
      name,
      status: 'fail',
      detail: `bucket ${FILES_S3_BUCKET} does not accept files: ${describeError(error)}`,
      fix: 'Check FILES_S3_*, the AWS credentials, and their permissions to put, get and delete objects.',
    }
  }
  return { name, status: 'ok', detail: `in bucket ${FILES_S3_BUCKET}` }
}

/** Puts an object and deletes it: permission to list a bucket does not imply these permissions. */
async function writeTrialObject(services: Services): Promise<void> {
  const target = { projectId: 'doctor', fileId: crypto.randomUUID(), maxBytes: 1 }
  const staged = await storageBackends(services).stage(Readable.from([Buffer.from('x')]), target)
  await staged.discard()
}

async function rejectAfterTimeout(): Promise<never> {
  await sleep(TRIAL_MS, undefined, { ref: false })
  throw new Error(`no answer within ${TRIAL_MS / 1000} s`)
}

async function checkEmbeddings(services: Services): Promise<Check> {
  const name = 'embeddings'
  const embedder = embedderOf(services)
  if (!embedder.model) {
    const incomplete = services.config.EMBEDDING_PROVIDER && 'EMBEDDING_PROVIDER is set, EMBEDDING_MODEL is not'
    return {
      name,
      status: 'warn',
      detail: `${incomplete || 'no model is set'}: searches use words only`,
      fix: 'Set EMBEDDING_PROVIDER and EMBEDDING_MODEL in every process.',
    }
  }
  const { provider, model, dimensions } = embedder.model
  try {
    await embedder.embed(['Connection test'], {
      project_id: null,
      purpose: { kind: 'api', ref: 'doctor' },
      timeoutMs: TRIAL_MS,
      retries: 0,
    })
  } catch (error) {
    const failure = (error as Error).cause as CallFailure | undefined
    return {
      name,
      status: 'fail',
      detail: [`${provider} ${model}: ${(error as Error).message}`, failure?.detail].filter(Boolean).join(': '),
      fix:
        failure?.class === 'dimensions'
          ? `Set EMBEDDING_DIMENSIONS, now ${dimensions}, to the vector length of the model.`
          : 'Check EMBEDDING_PROVIDER, EMBEDDING_MODEL, EMBEDDING_BASE_URL, the credentials, and that the model is running.',
    }
  }
  return { name, status: 'ok', detail: `${provider} ${model}, ${dimensions} dimensions` }
}

async function checkTextSearch(services: Services): Promise<Check> {
  const name = 'text search'
  const configuration = services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG
  if (await hasTextSearch(services)) return { name, status: 'ok', detail: `configuration ${configuration}` }
  return {
    name,
    status: 'fail',
    detail: `the database has no configuration ${configuration}: searches use meaning only`,
    fix: 'Set KNOWLEDGE_TEXT_SEARCH_CONFIG to a cfgname of pg_ts_config, or create the configuration.',
  }
}

/** Returns no check unless the extension is required: searches work without it. */
async function checkVectorIndex(services: Services): Promise<Check[]> {
  if (services.config.KNOWLEDGE_VECTOR_INDEX !== 'pgvector') return []
  const name = 'vector index'
  try {
    await requireVectorIndex(services)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    const fix = 'Run create extension vector as an administrator of the server, or set KNOWLEDGE_VECTOR_INDEX to auto.'
    return [{ name, status: 'fail', detail: error.message, fix }]
  }
  return [{ name, status: 'ok', detail: 'pgvector is installed' }]
}
