import { createHash, type Hash } from 'node:crypto'
import { Readable } from 'node:stream'
import { setFlagsFromString } from 'node:v8'
import { z } from 'zod'
import { timeIn } from '#core/base/clock.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { queueMessage, workQueue } from '#core/queues/queue.ts'
import { requireCell } from '#core/services/cell.ts'
import { requireNoMoves } from '#core/services/project-entries.ts'
import type { Tx } from '#core/writes/writer.ts'
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

/** Deletes external bytes of deleted files. */
export const deleteQueue = workQueue('storage.delete_bytes', {
  message: Locations,
  concern: 'ingestion',
  retry: { limit: 7, delaySeconds: 5, backoff: true, maxDelaySeconds: 640 },
})

/** Deletes external bytes of deleted projects. */
export const projectDeleteQueue = workQueue('storage.delete_project', {
  message: Locations,
  concern: 'ingestion',
  retry: { limit: 19, delaySeconds: 5, backoff: true, maxDelaySeconds: 3600 },
  leaseSeconds: 300,
})

/** Deletes external bytes that no file references an hour after their upload started. */
export const stagedQueue = workQueue('storage.delete_staged', {
  message: z.object({ storage: z.enum(BACKENDS), location: z.string() }),
  concern: 'ingestion',
  retry: { limit: 7, delaySeconds: 5, backoff: true, maxDelaySeconds: 640 },
})

/** Age at which staged bytes count as abandoned. */
export const STAGED_FOR_MS = 3_600_000

const HEAD_BYTES = 4100
const OBJECTS_PER_MESSAGE = 1000
/** Limit for bytes that are inserted at commit: a batch of traces is written by one statement. */
const INLINE_BYTES = 64 * 1024

export type StagedUpload = StagedBytes & {
  /** Deletes the bytes unless they were committed. */
  discard(): Promise<void>
}

export type Backends = {
  /**
   * Writes a stream to the configured backend. Raises REQUEST_REJECTED 413 above `maxBytes` and
   * FILE_STORAGE_MISCONFIGURED; rethrows errors of the stream.
   */
  stage(source: Readable, target: { projectId: string; fileId: string; maxBytes: number }): Promise<StagedUpload>
  /** Stages a buffer. Up to 64 KiB for the database are written only at commit. */
  stageBytes(bytes: Buffer, target: { projectId: string; fileId: string }): Promise<StagedUpload>
  /** Makes staged bytes permanent in the transaction of the row that references them. */
  commit(tx: Tx, ...staged: StagedUpload[]): Promise<void>
  /** Opens bytes or a range of them; returns null if they are lost. Raises FILE_STORAGE_MISCONFIGURED. */
  read(location: Location, range?: ByteRange): Promise<Readable | null>
  /** Opens staged bytes before their commit; returns null if they are lost. Raises FILE_STORAGE_MISCONFIGURED. */
  readStaged(staged: StagedUpload): Promise<Readable | null>
  /** Deletes bytes outside any transaction; ignores missing ones. Raises FILE_STORAGE_MISCONFIGURED. */
  remove(location: Location): Promise<void>
  /** Deletes staged bytes that no file references. */
  abandon(location: Location): Promise<void>
  /** Returns the reason that new bytes cannot be stored, or null. */
  problem(): string | null
}

/** Returns the error for files above a limit. */
export const raiseTooLarge = (maxBytes: number): AppError =>
  new AppError('REQUEST_REJECTED', {
    status: 413,
    message: `The file is larger than ${maxBytes} bytes`,
    meta: { max_bytes: maxBytes },
  })

type Measurement = { size: number; hash: Hash; head: Buffer }

async function* measure(source: Readable, maxBytes: number, measurement: Measurement): AsyncGenerator<Buffer> {
  for await (const piece of source as AsyncIterable<Buffer>) {
    measurement.size += piece.length
    if (measurement.size > maxBytes) throw raiseTooLarge(maxBytes)
    measurement.hash.update(piece)
    if (measurement.head.length < HEAD_BYTES)
      measurement.head = Buffer.concat([measurement.head, piece.subarray(0, HEAD_BYTES - measurement.head.length)])
    yield piece
  }
}

/** Error codes for missing or inaccessible directories, and the names of the corresponding S3 errors. */
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

/** Runs a backend operation; logs failures that only the operator can fix and raises FILE_STORAGE_MISCONFIGURED. */
async function reportMisconfiguration<T>(services: Services, storage: BackendName, call: () => Promise<T>): Promise<T> {
  try {
    return await call()
  } catch (error) {
    if (error instanceof AppError || storage === 'postgres') throw error
    const { code, name, message } = error as { code?: unknown; name?: unknown; message?: unknown }
    if (!MISCONFIGURED.has(code) && !MISCONFIGURED.has(name) && message !== 'Region is missing') throw error
    services.log.error({ err: error, storage }, 'file storage misconfigured')
    throw new AppError('FILE_STORAGE_MISCONFIGURED', { cause: error })
  }
}

/**
 * By default V8 collects young buffers only at 128 MiB, so most of a large file remains in memory until a full
 * collection: 70 MiB and fifteen full collections for an upload of 200 MB. With this flag it is 8 MiB and none, which
 * is also faster. V8 versions without the flag print a warning to stderr.
 */
const COLLECT_BUFFERS_EARLY = '--scavenger-max-new-space-capacity-mb=2'

function openBackends(services: Services): Backends {
  setFlagsFromString(COLLECT_BUFFERS_EARLY)
  const { config, log, queues } = services
  const opened = new Map<BackendName, StorageBackend>()
  /** Staged bytes whose commit was confirmed. */
  const committed = new WeakSet<StagedUpload>()

  /** Returns the missing setting of a backend, or null. */
  const findMissingSetting = (storage: BackendName): string | null => {
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
    const problem = findMissingSetting(storage)
    if (problem) raise('FILE_STORAGE_MISCONFIGURED', { message: `Storage backend misconfigured: ${problem}` })
    let store = opened.get(storage)
    if (!store) {
      store = open(storage)
      opened.set(storage, store)
    }
    return store
  }
  const provider = BACKENDS.find(name => name === config.FILES_STORAGE_PROVIDER)
  const problem = provider
    ? findMissingSetting(provider)
    : `FILES_STORAGE_PROVIDER must be one of ${BACKENDS.join(', ')}`
  if (problem) log.error({ problem }, 'file storage misconfigured')

  /** Returns the backend and a new location for bytes. Raises FILE_STORAGE_MISCONFIGURED. */
  const allocate = (target: { projectId: string; fileId: string }) => {
    if (!provider || problem)
      return raise('FILE_STORAGE_MISCONFIGURED', { message: `Storage backend misconfigured: ${problem}` })
    const store = backend(provider)
    return { store, provider, place: { storage: provider, location: store.newLocation(target) } as Location }
  }

  return {
    async stage(source, { maxBytes, ...target }) {
      const { store, provider, place } = allocate(target)
      // The sweep finds abandoned blobs, but external bytes only through this message.
      if (provider !== 'postgres')
        await queues.send([queueMessage(stagedQueue, place, { startAfter: timeIn(STAGED_FOR_MS) })])
      const measurement: Measurement = { size: 0, hash: createHash('sha256'), head: Buffer.alloc(0) }
      await reportMisconfiguration(services, provider, () =>
        store.write(measure(source, maxBytes, measurement), place.location),
      )
      const staged: StagedUpload = {
        ...place,
        size: measurement.size,
        sha256: measurement.hash.digest(),
        head: measurement.head,
        async discard() {
          if (committed.has(staged)) return
          // The commit may have succeeded although its response was lost.
          if (provider === 'postgres') await store.abandon(place.location)
          else if (!(await isUsed(services, place).catch(() => true))) await store.delete(place.location)
        },
      }
      return staged
    },
    async stageBytes(bytes, target) {
      if (provider !== 'postgres' || bytes.length > Math.min(INLINE_BYTES, config.FILE_BLOB_CHUNK_BYTES))
        return this.stage(Readable.from([bytes]), { ...target, maxBytes: Number.POSITIVE_INFINITY })
      return {
        ...allocate(target).place,
        size: bytes.length,
        sha256: createHash('sha256').update(bytes).digest(),
        head: bytes.subarray(0, HEAD_BYTES),
        inlineBytes: bytes,
        async discard() {},
      }
    },
    async commit(tx, ...staged) {
      for (const [storage, group] of Map.groupBy(staged, each => each.storage)) await backend(storage).commit(tx, group)
      tx.afterCommit(() => {
        for (const each of staged) committed.add(each)
      })
    },
    read: (location, range) =>
      reportMisconfiguration(services, location.storage, () =>
        backend(location.storage).read(location.location, range),
      ),
    readStaged: staged =>
      reportMisconfiguration(services, staged.storage, () => backend(staged.storage).readStaged(staged)),
    remove: ({ storage, location }) =>
      reportMisconfiguration(services, storage, () => backend(storage).delete(location)),
    async abandon(place) {
      if (!(await isUsed(services, place))) await backend(place.storage).abandon(place.location)
    },
    problem: () => problem,
  }
}

/**
 * Whether a file has bytes. External bytes stay where they are when their project is moved to another cell, so the cells of moved projects are queried too.
 * @throws CELL_UNAVAILABLE while it cannot be known
 */
async function isUsed(services: Services, place: Location): Promise<boolean> {
  const { cell, cells, pool } = services
  if (!cells || !cell || place.storage === 'postgres') return isReferenced(pool, place)
  await requireNoMoves(services, cells.home.pool)
  for (const each of cells.sharing(cell.number)) if (await isReferenced(requireCell(each).pool, place)) return true
  return false
}

/** Deletes the bytes of a deleted row: blobs in the transaction, external bytes by a message. */
export const deleteBytes = (tx: Tx, location: Location): Promise<void> => deleteAllBytes(tx, [location])

/** Deletes the bytes of many deleted rows. */
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
  for (let at = 0; at < objects.length; at += OBJECTS_PER_MESSAGE)
    tx.send(deleteQueue, { objects: objects.slice(at, at + OBJECTS_PER_MESSAGE) })
}

/** Storage backends of a process. */
export const storageBackends = processSingleton(openBackends)

/** Enqueues deletion of a project's external bytes, in the transaction that deletes the project. */
export async function enqueueProjectBytes(tx: Tx, projectId: string): Promise<void> {
  let after = ''
  for (;;) {
    const rows = await listExternalLocations(tx, projectId, after, OBJECTS_PER_MESSAGE)
    if (rows.length === 0) return
    const objects = rows.map(({ storage, location }): Location => ({ storage, location }))
    tx.send(projectDeleteQueue, { objects })
    after = rows[rows.length - 1].id
  }
}
