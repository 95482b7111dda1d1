import type { Readable } from 'node:stream'
import type { Tx } from '../../core/db/writer.ts'

/** Where bytes can live. */
export const BACKENDS = ['postgres', 'local', 's3'] as const
export type BackendName = (typeof BACKENDS)[number]

/** Which bytes: the backend that has them, and what it finds them by. Built of ids only, never of a caller's text. */
export type Location = { storage: BackendName; location: string }

/** First and last byte, both included. */
export type ByteRange = { start: number; end: number }

/** Bytes that a backend has taken and that no row names yet. */
export type StagedBytes = Location & {
  size: number
  sha256: Buffer
  /** The first bytes, at most 4,100: what a type is recognised by. */
  head: Buffer
  /** All of them where they are written only when they are committed. */
  held?: Buffer
}

/** One place for bytes. Everything streams; nothing above it touches a disk or a bucket. */
export type StorageBackend = {
  /** A location that was never written to. */
  place(target: { projectId: string; fileId: string }): string
  /** Takes a stream to its end. Throws what the stream throws and leaves nothing behind then. */
  write(source: AsyncIterable<Buffer>, location: string): Promise<void>
  /** Makes written bytes permanent, in the transaction of the row that names them. */
  commit(tx: Tx, staged: readonly StagedBytes[]): Promise<void>
  /** Bytes by their location, null when they are lost. */
  read(location: string, range?: ByteRange): Promise<Readable | null>
  /** Drops bytes; nothing when they are gone already. */
  delete(location: string): Promise<void>
  /** Drops what a write left behind whose process was lost. */
  abandon(location: string): Promise<void>
}
