import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import type { Services } from '../../core/operation.ts'
import { blocksOf } from './blocks.ts'
import type { Backend, ByteRange } from './storage.ts'
import { blobChunk, blobFacts, commitBlob, deleteBlob, deleteStagedBlob, insertBlob, insertChunk } from './store.ts'

/**
 * Bytes in the database, in chunks. Each chunk is written and read by a statement of its own, so neither a slow sender
 * nor a slow reader holds a connection.
 */
export function postgresBackend({ pool, config }: Pick<Services, 'pool' | 'config'>): Backend {
  async function* chunks(id: string, chunkBytes: number, { start, end }: ByteRange): AsyncGenerator<Buffer> {
    for (let seq = Math.floor(start / chunkBytes); seq * chunkBytes <= end; seq++) {
      const chunk = await blobChunk(pool, id, seq)
      // What was sent cannot be taken back: the answer breaks off.
      if (!chunk) throw new Error(`blob ${id} was deleted while it was read`)
      const first = seq * chunkBytes
      yield chunk.subarray(Math.max(0, start - first), end + 1 - first)
    }
  }

  return {
    place: () => randomUUID(),
    async write(source, id) {
      let seq = 0
      try {
        for await (const block of blocksOf(source, config.FILE_BLOB_CHUNK_BYTES, 1)) {
          await (seq === 0 ? insertBlob(pool, id, block) : insertChunk(pool, id, seq, block))
          seq++
        }
        if (seq === 0) await insertBlob(pool, id, null)
      } catch (error) {
        await deleteStagedBlob(pool, id)
        throw error
      }
    },
    async commit(tx, staged) {
      if (!(await commitBlob(tx, staged))) throw new Error(`blob ${staged.location} was swept before its commit`)
    },
    async read(id, range) {
      const facts = await blobFacts(pool, id)
      if (!facts) return null
      const all = { start: 0, end: facts.size - 1 }
      return facts.size === 0
        ? Readable.from([], { objectMode: false })
        : Readable.from(chunks(id, facts.chunk_bytes, range ?? all), {
            objectMode: false,
            highWaterMark: facts.chunk_bytes,
          })
    },
    delete: async id => {
      await deleteBlob(pool, id)
    },
    abandon: async id => {
      await deleteStagedBlob(pool, id)
    },
  }
}
