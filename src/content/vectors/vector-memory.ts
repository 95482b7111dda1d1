import { Gauge } from 'prom-client'
import { processSingleton } from '../../core/process/process-singleton.ts'

export const codeCacheBytes = new Gauge({
  name: 'muster_code_cache_bytes',
  help: 'Memory that the codes of kept projects take',
  registers: [],
})

export const vectorCacheBytes = new Gauge({
  name: 'muster_vector_cache_bytes',
  help: 'Memory that vectors take which are kept in what codes leave',
  registers: [],
})

/** What KNOWLEDGE_CODE_CACHE_BYTES bounds: codes of projects, and vectors in the room that these leave. */
export class VectorMemory {
  readonly limit: number
  #codes = 0
  #vectors = 0

  constructor(limit: number) {
    this.limit = limit
  }

  get besideCodes(): number {
    return this.limit - this.#codes
  }

  get free(): number {
    return this.besideCodes - this.#vectors
  }

  set codes(bytes: number) {
    this.#codes = bytes
    codeCacheBytes.set(bytes)
  }

  set vectors(bytes: number) {
    this.#vectors = bytes
    vectorCacheBytes.set(bytes)
  }
}

export const vectorMemory = processSingleton(({ config }) => new VectorMemory(config.KNOWLEDGE_CODE_CACHE_BYTES))
