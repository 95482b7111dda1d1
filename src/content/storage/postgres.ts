import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import type { Services } from '#core/base/services.ts'
import type { ByteRange, StorageBackend } from './backend.ts'
import { reblock } from './reblock.ts'
import {
  commitBlobs,
  deleteBlob,
  deleteStagedBlob,
  findBlob,
  insertBlob,
  insertBlobs,
  insertChunk,
  readChunk,
} from './store.ts'

/**
 * Stores bytes in the database, in chunks. Each chunk is written and read by a separate statement, so neither a slow
 * sender nor a slow reader holds a connection.
 */
export function postgresBackend({ pool, config }: Pick<Services, 'pool' | 'config'>): StorageBackend {
  async function* slices(id: string, first: readonly Buffer[], chunkBytes: number, { start, end }: ByteRange) {
    const from = Math.floor(start / chunkBytes)
    for (let seq = from; seq * chunkBytes <= end; seq++) {
      const chunk = seq === from ? first : await readChunk(pool, id, seq)
      // The response has started: abort it.
      if (chunk.length === 0) throw new Error(`blob ${id} was deleted while it was read`)
      let at = seq * chunkBytes
      for (const slice of chunk) {
        const selected = slice.subarray(Math.max(0, start - at), Math.max(0, end + 1 - at))
        if (selected.length > 0) yield selected
        at += slice.length
      }
    }
  }

  async function openBlob(
    id: string,
    { chunk_bytes, size }: { chunk_bytes: number; size: number },
    range?: ByteRange,
  ): Promise<Readable | null> {
    if (size === 0) return Readable.from([], { objectMode: false })
    const part = range ?? { start: 0, end: size - 1 }
    // Read before the response starts: a blob deleted concurrently then counts as lost instead of aborting the
    // response.
    const first = await readChunk(pool, id, Math.floor(part.start / chunk_bytes))
    if (first.length === 0) return null
    return Readable.from(slices(id, first, chunk_bytes, part), { objectMode: false, highWaterMark: chunk_bytes })
  }

  return {
    newLocation: () => randomUUID(),
    async write(source, id) {
      let seq = 0
      try {
        for await (const block of reblock(source, config.FILE_BLOB_CHUNK_BYTES, 1)) {
          // The sweep finds chunks only by their blob.
          if (seq === 0) await insertBlob(pool, id, block)
          else if (!(await insertChunk(pool, id, seq, block))) throw new Error('a blob was swept while it was written')
          seq++
        }
        if (seq === 0) await insertBlob(pool, id, null)
      } catch (error) {
        await deleteStagedBlob(pool, id)
        throw error
      }
    },
    async commit(tx, staged) {
      const inline = staged.flatMap(({ inlineBytes, ...rest }) => (inlineBytes ? [{ ...rest, inlineBytes }] : []))
      if (inline.length > 0) await insertBlobs(tx, inline)
      const written = staged.filter(({ inlineBytes }) => !inlineBytes)
      if (written.length > 0 && !(await commitBlobs(tx, written)))
        throw new Error('a blob was swept, or lost chunks, before its commit')
    },
    async read(id, range) {
      const blob = await findBlob(pool, id, 'committed')
      return blob && openBlob(id, blob, range)
    },
    async readStaged({ location, size, inlineBytes }) {
      if (inlineBytes) return Readable.from([inlineBytes], { objectMode: false })
      const blob = await findBlob(pool, location, 'staging')
      return blob && openBlob(location, { ...blob, size })
    },
    delete: async id => {
      await deleteBlob(pool, id)
    },
    abandon: async id => {
      await deleteStagedBlob(pool, id)
    },
  }
}
