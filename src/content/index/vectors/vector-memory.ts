import { Gauge } from 'prom-client'
import { sharedSingleton } from '#core/base/process-singleton.ts'

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

const sumOf = (sizes: ReadonlyMap<object, number>): number => [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0)

/** Memory within KNOWLEDGE_CODE_CACHE_BYTES: codes of projects, and vectors in the memory not used by codes. */
export class VectorMemory {
  readonly limit: number
  readonly #codes = new Map<object, number>()
  readonly #vectors = new Map<object, number>()

  constructor(limit: number) {
    this.limit = limit
  }

  /** Bytes not used by codes. */
  get vectorLimit(): number {
    return this.limit - sumOf(this.#codes)
  }

  get free(): number {
    return this.vectorLimit - sumOf(this.#vectors)
  }

  /** Records the size of a cache of codes; each cell has one. */
  setCodes(cache: object, bytes: number): void {
    codeCacheBytes.set(sumOf(this.#codes.set(cache, bytes)))
  }

  /** Records the size of a cache of vectors. */
  setVectors(cache: object, bytes: number): void {
    vectorCacheBytes.set(sumOf(this.#vectors.set(cache, bytes)))
  }
}

export const vectorMemory = sharedSingleton(({ config }) => new VectorMemory(config.KNOWLEDGE_CODE_CACHE_BYTES))
