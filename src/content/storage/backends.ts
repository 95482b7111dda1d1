import { createHash, type Hash } from 'node:crypto'
import { Readable } from 'node:stream'
import { setFlagsFromString } from 'node:v8'
import { z } from 'zod'
import { AppError, raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/writer.ts'
import { queueMessage, workQueue } from '../../core/jobs/queue.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import {
  BACKENDS,
  type BackendName,
  type ByteRange,
  type Location,
  type StagedBytes,
  type StorageBackend,
} from './backend.ts'
import { localBackend } from './local.ts'
import { postgresBackend } from './postgres.ts'
import { s3Backend } from './s3.ts'
import { deleteBlobs, isReferenced, listExternalLocations } from './store.ts'

const Locations = z.object({
  objects: z.array(z.object({ storage: z.enum(BACKENDS), location: z.string() })),
})

/** Bytes outside of the database whose file is gone. */
export const deleteQueue = workQueue('storage.delete_bytes', {
  message: Locations,
  concern: 'ingestion',
  retry: { limit: 7, delaySeconds: 5, backoff: true, maxDelaySeconds: 640 },
})

/** Bytes outside of the database whose project is gone. */
export const projectDeleteQueue = workQueue('storage.delete_project', {
  message: Locations,
  concern: 'ingestion',
  retry: { limit: 19, delaySeconds: 5, backoff: true, maxDelaySeconds: 3600 },
  leaseSeconds: 300,
})

/** Bytes that were being written outside of the database: dropped after a while unless a file has them. */
export const stagedQueue = workQueue('storage.delete_staged', {
  message: z.object({ storage: z.enum(BACKENDS), location: z.string() }),
  concern: 'ingestion',
  retry: { limit: 7, delaySeconds: 5, backoff: true, maxDelaySeconds: 640 },
})

/** How long bytes may be staged before they count as lost with their process. */
export const STAGED_FOR_MS = 3_600_000

const HEAD_BYTES = 4100
const OBJECTS_A_JOB = 1000
/** More is not held for a commit: a batch of traces goes into one statement. */
const HELD_BYTES = 64 * 1024

export type StagedUpload = StagedBytes & {
  /** Drops the bytes unless they were committed. */
  discard(): Promise<void>
}

export type Backends = {
  /**
   * Writes a stream of at most `maxBytes` bytes to the backend for new bytes.
   * Raises REQUEST_REJECTED 413 beyond them and FILE_STORAGE_MISCONFIGURED; throws what the stream throws.
   */
  stage(source: Readable, target: { projectId: string; fileId: string; maxBytes: number }): Promise<StagedUpload>
  /** The same for bytes at hand. Few bytes that go into the database are written there when they are committed. */
  stageBytes(bytes: Buffer, target: { projectId: string; fileId: string }): Promise<StagedUpload>
  /** Makes staged bytes permanent with the row that names them. */
  commit(tx: Tx, ...staged: StagedUpload[]): Promise<void>
  /** Bytes, or some of them; null when they are lost. Raises FILE_STORAGE_MISCONFIGURED for a backend that is not set up. */
  read(location: Location, range?: ByteRange): Promise<Readable | null>
  /** Drops bytes outside of any transaction; nothing when they are gone. Raises FILE_STORAGE_MISCONFIGURED. */
  remove(location: Location): Promise<void>
  /** Drops what was staged and never named. */
  abandon(location: Location): Promise<void>
  /** Why new bytes cannot be stored; null when they can. */
  problem(): string | null
}

/** Refuses bytes beyond a limit. */
export const raiseTooLarge = (maxBytes: number): AppError =>
  new AppError('REQUEST_REJECTED', {
    status: 413,
    message: `The file is larger than ${maxBytes} bytes`,
    meta: { max_bytes: maxBytes },
  })

type Measured = { size: number; hash: Hash; head: Buffer }

async function* measured(source: Readable, maxBytes: number, facts: Measured): AsyncGenerator<Buffer> {
  for await (const piece of source as AsyncIterable<Buffer>) {
    facts.size += piece.length
    if (facts.size > maxBytes) throw raiseTooLarge(maxBytes)
    facts.hash.update(piece)
    if (facts.head.length < HEAD_BYTES)
      facts.head = Buffer.concat([facts.head, piece.subarray(0, HEAD_BYTES - facts.head.length)])
    yield piece
  }
}

/** Codes of a directory that is not there or not ours, and names of S3 errors that say the same of a bucket. */
const MISCONFIGURED = new Set<unknown>([
  'EACCES',
  'EPERM',
  'EROFS',
  'ENOTDIR',
  'ENOENT',
  'NoSuchBucket',
  'InvalidBucketName',
  'AccessDenied',
  'InvalidAccessKeyId',
  'SignatureDoesNotMatch',
  'CredentialsProviderError',
])

/** Raises FILE_STORAGE_MISCONFIGURED for a failure that only the operator can fix; the cause is logged, not answered. */
async function explained<T>(services: Services, storage: BackendName, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof AppError || storage === 'postgres') throw error
    const { code, name, message } = error as { code?: unknown; name?: unknown; message?: unknown }
    if (!MISCONFIGURED.has(code) && !MISCONFIGURED.has(name) && message !== 'Region is missing') throw error
    services.log.error({ err: error, storage }, 'file storage is misconfigured')
    throw new AppError('FILE_STORAGE_MISCONFIGURED', { cause: error })
  }
}

/**
 * By default young buffers cause a collection of the young only when there are 128 MiB of them, so most of a large file
 * lay about until a full collection: 70 MiB and fifteen of these for an upload of 200 MB. This makes it 8 MiB and none,
 * which is faster too. An engine that does not know the flag says so on stderr and goes on without it.
 */
const COLLECT_BUFFERS_EARLY = '--scavenger-max-new-space-capacity-mb=2'

function openStores(services: Services): Backends {
  setFlagsFromString(COLLECT_BUFFERS_EARLY)
  const { config, log, pool, queues } = services
  const opened = new Map<BackendName, StorageBackend>()
  /** Staged bytes whose commit is known. */
  const committed = new WeakSet<StagedUpload>()

  /** What a backend lacks; null when it is set up. */
  const lacking = (storage: BackendName): string | null => {
    if (storage === 'local' && !config.FILES_STORAGE_DIR) return 'FILES_STORAGE_DIR is not set'
    if (storage === 's3' && !config.FILES_S3_BUCKET) return 'FILES_S3_BUCKET is not set'
    return null
  }
  const open = (storage: BackendName): StorageBackend => {
    if (storage === 'local') return localBackend(config.FILES_STORAGE_DIR as string)
    if (storage === 's3') return s3Backend(config, config.FILES_S3_BUCKET as string)
    return postgresBackend(services)
  }
  const backend = (storage: BackendName): StorageBackend => {
    const problem = lacking(storage)
    if (problem) raise('FILE_STORAGE_MISCONFIGURED', { message: `Storage backend misconfigured: ${problem}` })
    let found = opened.get(storage)
    if (!found) {
      found = open(storage)
      opened.set(storage, found)
    }
    return found
  }
  const provider = BACKENDS.find(name => name === config.FILES_STORAGE_PROVIDER)
  const problem = provider ? lacking(provider) : `FILES_STORAGE_PROVIDER is none of ${BACKENDS.join(', ')}`
  if (problem) log.error({ problem }, 'file storage is misconfigured')

  /** Where new bytes go. */
  const placeFor = (target: { projectId: string; fileId: string }) => {
    if (!provider || problem)
      return raise('FILE_STORAGE_MISCONFIGURED', { message: `Storage backend misconfigured: ${problem}` })
    const store = backend(provider)
    return { store, provider, place: { storage: provider, location: store.place(target) } as Location }
  }

  return {
    async stage(source, { maxBytes, ...target }) {
      const { store, provider, place } = placeFor(target)
      // Blobs are swept; of what lies elsewhere only this message would know.
      if (provider !== 'postgres')
        await queues.send([queueMessage(stagedQueue, place, { startAfter: new Date(Date.now() + STAGED_FOR_MS) })])
      const facts: Measured = { size: 0, hash: createHash('sha256'), head: Buffer.alloc(0) }
      await explained(services, provider, () => store.write(measured(source, maxBytes, facts), place.location))
      const staged: StagedUpload = {
        ...place,
        size: facts.size,
        sha256: facts.hash.digest(),
        head: facts.head,
        async discard() {
          if (committed.has(staged)) return
          // A commit whose answer was lost has happened all the same.
          if (provider === 'postgres') await store.abandon(place.location)
          else if (!(await isReferenced(pool, place))) await store.delete(place.location)
        },
      }
      return staged
    },
    async stageBytes(bytes, target) {
      if (provider !== 'postgres' || bytes.length > Math.min(HELD_BYTES, config.FILE_BLOB_CHUNK_BYTES))
        return this.stage(Readable.from([bytes]), { ...target, maxBytes: Number.POSITIVE_INFINITY })
      return {
        ...placeFor(target).place,
        size: bytes.length,
        sha256: createHash('sha256').update(bytes).digest(),
        head: bytes.subarray(0, HEAD_BYTES),
        held: bytes,
        async discard() {},
      }
    },
    async commit(tx, ...staged) {
      for (const [storage, its] of Map.groupBy(staged, each => each.storage)) await backend(storage).commit(tx, its)
      tx.afterCommit(() => {
        for (const each of staged) committed.add(each)
      })
    },
    read: (location, range) =>
      explained(services, location.storage, () => backend(location.storage).read(location.location, range)),
    remove: ({ storage, location }) => explained(services, storage, () => backend(storage).delete(location)),
    async abandon(place) {
      if (!(await isReferenced(pool, place))) await backend(place.storage).abandon(place.location)
    },
    problem: () => problem,
  }
}

/** Drops bytes with the row that named them: blobs in the transaction, others by a message after it. */
export const deleteBytes = (tx: Tx, location: Location): Promise<void> => deleteAllBytes(tx, [location])

/** The same for many rows. */
export async function deleteAllBytes(tx: Tx, locations: readonly Location[]): Promise<void> {
  const blobs = locations.filter(({ storage }) => storage === 'postgres')
  if (blobs.length > 0)
    await deleteBlobs(
      tx,
      blobs.map(({ location }) => location),
    )
  const objects = locations
    .filter(({ storage }) => storage !== 'postgres')
    .map(({ storage, location }): Location => ({ storage, location }))
  for (let at = 0; at < objects.length; at += OBJECTS_A_JOB)
    tx.send(deleteQueue, { objects: objects.slice(at, at + OBJECTS_A_JOB) })
}

/** The stores of a process. */
export const storageBackends = processSingleton(openStores)

/** Sends for the bytes of a project outside of the database, in the transaction that deletes it. */
export async function enqueueProjectBytes(tx: Tx, projectId: string): Promise<void> {
  let after = ''
  for (;;) {
    const found = await listExternalLocations(tx, projectId, after, OBJECTS_A_JOB)
    if (found.length === 0) return
    const objects = found.map(({ storage, location }): Location => ({ storage, location }))
    tx.send(projectDeleteQueue, { objects })
    after = found[found.length - 1].id
  }
}
