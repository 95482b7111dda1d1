import { pipeline, Readable, Transform } from 'node:stream'
import { AppError, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { ByteRange } from '../storage/backend.ts'
import { raiseTooLarge, storageBackends } from '../storage/backends.ts'
import { type FileRow, fileKind } from './model.ts'
import { readTextSlice } from './store.ts'

const SLICE_BYTES = 1024 * 1024

/** Yields the document text of a file in slices. Throws if the text changes while it is read. */
async function* readSlices(services: Services, file: FileRow, first: Buffer, { start, end }: ByteRange) {
  yield first
  for (let from = start + first.length; from <= end; ) {
    const slice = await readTextSlice(services.pool, file, from, Math.min(SLICE_BYTES, end + 1 - from))
    // The response has started: abort it.
    if (!slice || slice.length === 0) throw new Error(`the text of ${file.id} changed while it was read`)
    yield slice
    from += slice.length
  }
}

/**
 * Returns a stream that fails after `bytes` bytes: more than the declared length would be parsed as the next response
 * of the connection.
 */
function limitBytes(bytes: number, source: Readable): Readable {
  let left = bytes
  const bound = new Transform({
    transform(piece: Buffer, _encoding, done) {
      left -= piece.length
      if (left < 0) done(new Error('the storage backend returned more bytes than were stored'))
      else done(null, piece)
    },
  })
  // Errors of the source reach the reader through `bound`.
  return pipeline(source, bound, () => {})
}

/**
 * Opens the content of a file, or a range of it, in any storage. Returns null for a file without content and for bytes
 * that the backend has lost. Holds no database connection between reads. Raises FILE_STORAGE_MISCONFIGURED.
 */
export async function openFile(services: Services, file: FileRow, range?: ByteRange): Promise<Readable | null> {
  if (file.storage === null || file.size === null) return null
  if (file.storage !== 'text') {
    const stream = await storageBackends(services).read(
      { storage: file.storage, location: file.location as string },
      range,
    )
    return stream && limitBytes(range ? range.end + 1 - range.start : file.size, stream)
  }
  const part = range ?? { start: 0, end: file.size - 1 }
  const first = await readTextSlice(services.pool, file, part.start, Math.min(SLICE_BYTES, part.end + 1 - part.start))
  return (
    first && Readable.from(readSlices(services, file, first, part), { objectMode: false, highWaterMark: SLICE_BYTES })
  )
}

/** Returns the current row of a file if its content was replaced, `same` if not, or null if the file was deleted. */
async function compareWithCurrent(services: Services, file: FileRow): Promise<FileRow | 'same' | null> {
  const now = await fileKind.find(services.pool, file.id)
  const same = now?.storage === file.storage && now.location === file.location && now.sha256 === file.sha256
  return same ? 'same' : now
}

/** Returns the current row of a file whose content was replaced; null if it is unchanged or deleted. */
export async function rowIfReplaced(services: Services, file: FileRow): Promise<FileRow | null> {
  const now = await compareWithCurrent(services, file)
  return now === 'same' ? null : now
}

/**
 * Yields the content of a file in pieces. Raises RESOURCE_NOT_FOUND if there is none or if it is replaced or deleted
 * while it is read.
 */
export async function* fileChunks(services: Services, file: FileRow): AsyncGenerator<Buffer> {
  const stream = (await openFile(services, file)) ?? raiseLost()
  let size = 0
  try {
    for await (const piece of stream) {
      size += piece.length
      yield piece as Buffer
    }
  } catch (error) {
    if ((await compareWithCurrent(services, file)) === 'same') throw error
    raiseLost()
  }
  if (size !== file.size) raise('INTERNAL_ERROR')
}

/**
 * Like fileChunks, for a file that another row or a body refers to.
 * @throws FILE_NOT_FOUND if there is no content or if it is replaced or deleted while it is read
 */
export async function* referencedChunks(services: Services, file: FileRow): AsyncGenerator<Buffer> {
  try {
    yield* fileChunks(services, file)
  } catch (error) {
    if (error instanceof AppError && error.code === 'RESOURCE_NOT_FOUND')
      raise('FILE_NOT_FOUND', { meta: { id: file.id } })
    throw error
  }
}

const raiseLost = () => raise('RESOURCE_NOT_FOUND', { message: 'The content of the file is lost' })

/**
 * Reads a whole file into memory that the caller has acquired (`acquireReadMemory`). Returns null if there is no
 * content or if it is replaced or deleted while it is read. Raises REQUEST_REJECTED 413 above `maxBytes`.
 */
export async function fileBytes(services: Services, file: FileRow, maxBytes: number): Promise<Buffer | null> {
  if (file.storage === null || file.size === null) return null
  if (file.size > maxBytes) throw raiseTooLarge(maxBytes)
  const bytes = Buffer.allocUnsafeSlow(file.size)
  let read = 0
  try {
    for await (const piece of fileChunks(services, file)) {
      bytes.set(piece, read)
      read += piece.length
    }
  } catch (error) {
    if (error instanceof AppError && error.code === 'RESOURCE_NOT_FOUND') return null
    throw error
  }
  return bytes
}
