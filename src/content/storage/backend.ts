import type { Readable } from 'node:stream'
import type { Tx } from '#core/writes/writer.ts'

export const BACKENDS = ['postgres', 'local', 's3'] as const
export type BackendName = (typeof BACKENDS)[number]

/** Address of bytes: a backend and its key, which consists of IDs and never of caller text. */
export type Location = { storage: BackendName; location: string }

/** First and last byte, inclusive. */
export type ByteRange = { start: number; end: number }

/** Bytes written to a backend that no row references yet. */
export type StagedBytes = Location & {
  size: number
  sha256: Buffer
  /** First bytes, at most 4,100, for type detection. */
  head: Buffer
  /** All bytes, if they are written only at commit. */
  inlineBytes?: Buffer
}

/** Storage of bytes. Reads and writes are streams; no other module accesses a disk or a bucket. */
export type StorageBackend = {
  /** Returns an unused location. */
  newLocation(target: { projectId: string; fileId: string }): string
  /** Writes a whole stream. If the stream fails, removes the partial object and rethrows. */
  write(source: AsyncIterable<Buffer>, location: string): Promise<void>
  /** Makes written bytes permanent, in the transaction of the row that references them. */
  commit(tx: Tx, staged: readonly StagedBytes[]): Promise<void>
  /** Opens bytes or a range of them; returns null if they are lost. */
  read(location: string, range?: ByteRange): Promise<Readable | null>
  /** Opens staged bytes before their commit; returns null if they are lost. */
  readStaged(staged: StagedBytes): Promise<Readable | null>
  /** Deletes bytes; ignores missing ones. */
  delete(location: string): Promise<void>
  /** Removes the remains of a write whose process was lost. */
  abandon(location: string): Promise<void>
}
