import { pipeline, Readable, Transform } from 'node:stream'
import { AppError, raise } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import type { ByteRange } from '../storage/backend.ts'
import { raiseTooLarge, storageBackends } from '../storage/backends.ts'
import { type FileRow, fileKind } from './model.ts'
import { textSlice } from './store.ts'

const SLICE_BYTES = 1024 * 1024

/** The text of a file's document, slice by slice; every slice of the text as it was at the start. */
async function* slices(services: Services, file: FileRow, first: Buffer, { start, end }: ByteRange) {
  yield first
  for (let from = start + first.length; from <= end; ) {
    const slice = await textSlice(services.pool, file, from, Math.min(SLICE_BYTES, end + 1 - from))
    // What was sent cannot be taken back: the answer breaks off.
    if (!slice || slice.length === 0) throw new Error(`the text of ${file.id} changed while it was read`)
    yield slice
    from += slice.length
  }
}

/**
 * The bytes of a store, which breaks off when there are more than so many: they would be read as the next answer of the
 * connection.
 */
function atMost(bytes: number, source: Readable): Readable {
  let left = bytes
  const bound = new Transform({
    transform(piece: Buffer, _encoding, done) {
      left -= piece.length
      if (left < 0) done(new Error('the store has more bytes than it was given'))
      else done(null, piece)
    },
  })
  // The reader of the bound meets every error of the source.
  return pipeline(source, bound, () => {})
}

/**
 * The bytes of a file wherever they are, or some of them. Null when there are none: a record without content, or bytes
 * that its backend has lost. No connection is held while the reader is slow. Raises FILE_STORAGE_MISCONFIGURED.
 */
export async function openFile(services: Services, file: FileRow, range?: ByteRange): Promise<Readable | null> {
  if (file.storage === null || file.size === null) return null
  if (file.storage !== 'text') {
    const stream = await storageBackends(services).read(
      { storage: file.storage, location: file.location as string },
      range,
    )
    return stream && atMost(range ? range.end + 1 - range.start : file.size, stream)
  }
  const part = range ?? { start: 0, end: file.size - 1 }
  const first = await textSlice(services.pool, file, part.start, Math.min(SLICE_BYTES, part.end + 1 - part.start))
  return first && Readable.from(slices(services, file, first, part), { objectMode: false, highWaterMark: SLICE_BYTES })
}

/** What a file that was read is by now: its row when it got other bytes, whether it is as it was, or null when it is gone. */
async function since(services: Services, file: FileRow): Promise<FileRow | 'same' | null> {
  const now = await fileKind.find(services.pool, file.id)
  const same = now?.storage === file.storage && now.location === file.location && now.sha256 === file.sha256
  return same ? 'same' : now
}

/** The row of a file that got other bytes since it was read; null when it is as it was, or gone. */
export async function rowIfReplaced(services: Services, file: FileRow): Promise<FileRow | null> {
  const now = await since(services, file)
  return now === 'same' ? null : now
}

/**
 * All bytes of a file, piece by piece. Raises RESOURCE_NOT_FOUND when there are none, or when they are taken away while
 * they are read.
 */
export async function* fileChunks(services: Services, file: FileRow): AsyncGenerator<Buffer> {
  const stream = (await openFile(services, file)) ?? lost()
  let size = 0
  try {
    for await (const piece of stream) {
      size += piece.length
      yield piece as Buffer
    }
  } catch (error) {
    if ((await since(services, file)) === 'same') throw error
    lost()
  }
  if (size !== file.size) raise('INTERNAL_ERROR')
}

const lost = () => raise('RESOURCE_NOT_FOUND', { message: 'The bytes of the file are lost' })

/**
 * All bytes of a file at once, in memory that was taken before (memory.ts); null when there are none, or they were taken
 * away while they were read. Raises REQUEST_REJECTED 413 for more than `maxBytes`.
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
