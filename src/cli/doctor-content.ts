import { constants } from 'node:fs'
import { access, stat } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Config, ConfigError } from '../config.ts'
import { embedderOf } from '../content/embeddings/embedder.ts'
import type { CallFailure } from '../content/embeddings/providers.ts'
import { hasTextSearch } from '../content/knowledge/text-search.ts'
import { storageBackends } from '../content/storage/backends.ts'
import { requireVectorIndex } from '../content/vectors/pgvector.ts'
import { silentLog } from '../core/process/log.ts'
import type { Services } from '../core/process/services.ts'
import { openServices } from '../core/process/services-lifecycle.ts'
import { type Check, describeError } from './output.ts'

const TRIAL_MS = 15_000

/** What files, embeddings and searches need: each is tried once, as a request would. */
export async function checkContent(config: Config): Promise<Check[]> {
  // What fails is said in the checks.
  const services = await openServices(config, { log: silentLog(), role: 'cli' })
  try {
    const [storage, embeddings, textSearch, vectorIndex] = await Promise.all([
      examineStorage(services),
      examineEmbeddings(services),
      examineTextSearch(services),
      examineVectorIndex(services),
    ])
    return [storage, embeddings, textSearch, ...vectorIndex]
  } finally {
    await services.close()
  }
}

async function examineStorage(services: Services): Promise<Check> {
  const name = 'file storage'
  const { FILES_S3_BUCKET, FILES_STORAGE_DIR, FILES_STORAGE_PROVIDER: provider } = services.config
  const problem = storageBackends(services).problem()
  if (problem) return { name, status: 'fail', detail: problem, fix: 'Set it; muster settings says what it means.' }
  if (provider === 'local') {
    const directory = FILES_STORAGE_DIR as string
    try {
      if (!(await stat(directory)).isDirectory()) throw new Error('it is no directory')
      await access(directory, constants.R_OK | constants.W_OK | constants.X_OK)
    } catch (error) {
      return {
        name,
        status: 'fail',
        detail: `files cannot be kept in ${directory}: ${describeError(error)}`,
        fix: 'Make or mount it where every process sees it, writable for the user they run as.',
      }
    }
    return { name, status: 'ok', detail: `in ${directory}` }
  }
  if (provider !== 's3') return { name, status: 'ok', detail: 'in the database' }
  try {
    await Promise.race([trialObject(services), late()])
  } catch (error) {
    return {
      name,
      status: 'fail',
      detail: `the bucket ${FILES_S3_BUCKET} does not take files: ${describeError(error)}`,
      fix: 'Check FILES_S3_*, the AWS credentials, and that they may put, get and delete objects.',
    }
  }
  return { name, status: 'ok', detail: `in the bucket ${FILES_S3_BUCKET}` }
}

/** Puts an object and deletes it: the right to list a bucket says nothing about those. */
async function trialObject(services: Services): Promise<void> {
  const target = { projectId: 'doctor', fileId: crypto.randomUUID(), maxBytes: 1 }
  const staged = await storageBackends(services).stage(Readable.from([Buffer.from('x')]), target)
  await staged.discard()
}

async function late(): Promise<never> {
  await sleep(TRIAL_MS, undefined, { ref: false })
  throw new Error(`no answer within ${TRIAL_MS / 1000} s`)
}

async function examineEmbeddings(services: Services): Promise<Check> {
  const name = 'embeddings'
  const embedder = embedderOf(services)
  if (!embedder.model) {
    const half = services.config.EMBEDDING_PROVIDER && 'EMBEDDING_PROVIDER is set, EMBEDDING_MODEL is not'
    return {
      name,
      status: 'warn',
      detail: `${half || 'no model is set'}: searches go by words alone`,
      fix: 'Set EMBEDDING_PROVIDER and EMBEDDING_MODEL in every process.',
    }
  }
  const { provider, model, dimensions } = embedder.model
  try {
    await embedder.embed(['Is anybody there?'], {
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
          ? `Set EMBEDDING_DIMENSIONS, now ${dimensions}, to the length that the model gives.`
          : 'Check EMBEDDING_PROVIDER, EMBEDDING_MODEL, EMBEDDING_BASE_URL and the credentials, and that it runs.',
    }
  }
  return { name, status: 'ok', detail: `${provider} ${model} gives vectors of ${dimensions}` }
}

async function examineTextSearch(services: Services): Promise<Check> {
  const name = 'text search'
  const wanted = services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG
  if (await hasTextSearch(services)) return { name, status: 'ok', detail: `by the configuration ${wanted}` }
  return {
    name,
    status: 'fail',
    detail: `the database has no configuration ${wanted}: searches go by meaning alone`,
    fix: 'Set KNOWLEDGE_TEXT_SEARCH_CONFIG to one of those that select cfgname from pg_ts_config lists, or create it.',
  }
}

/** Nothing where the extension is not demanded: searches do without it. */
async function examineVectorIndex(services: Services): Promise<Check[]> {
  if (services.config.KNOWLEDGE_VECTOR_INDEX !== 'pgvector') return []
  const name = 'vector index'
  try {
    await requireVectorIndex(services)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    const fix = 'Install it (create extension vector) as an administrator of the server, or set it to auto.'
    return [{ name, status: 'fail', detail: error.message, fix }]
  }
  return [{ name, status: 'ok', detail: 'pgvector is there' }]
}
