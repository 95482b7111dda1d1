import { Gauge } from 'prom-client'
import { processSingleton } from '#core/base/process-singleton.ts'

export const codeCacheBytes = new Gauge({
  name: 'muster_code_cache_bytes',
  help: 'Memory of cached vector codes',
  registers: [],
})

export const vectorCacheBytes = new Gauge({
  name: 'muster_vector_cache_bytes',
  help: 'Memory of cached vectors',
  registers: [],
})

/** Memory within KNOWLEDGE_CODE_CACHE_BYTES: codes of projects, and vectors in the memory not used by codes. */
export class VectorMemory {
  readonly limit: number
  #codes = 0
  #vectors = 0

  constructor(limit: number) {
    this.limit = limit
  }

  /** Bytes not used by codes. */
  get vectorLimit(): number {
    return this.limit - this.#codes
  }

  get free(): number {
    return this.vectorLimit - this.#vectors
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
