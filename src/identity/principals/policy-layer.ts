import { LRUCache } from 'lru-cache'
import type { Logger } from '#core/base/log.ts'
import type { Layer } from '#core/iam/decide.ts'
import { type CompiledDocument, compileDocument } from '#core/iam/policy.ts'
import type { AttachedPolicy } from './principal-store.ts'

const LOG_EVERY_MS = 60_000

// A document never changes for one ID, version and time, so a compiled document never goes stale.
const compiled = new LRUCache<string, CompiledDocument>({ max: 5000 })
const recentlyLogged = new LRUCache<string, true>({ max: 1000, ttl: LOG_EVERY_MS })

/**
 * Builds a layer from attached policies. A document that no longer parses denies everything in its layer and is logged
 * at most once a minute.
 */
export function policyLayer(kind: Layer['kind'], policies: readonly AttachedPolicy[], log: Logger): Layer {
  const documents = policies.map(({ id, version, updated_at, document }) => {
    const key = `${id} ${version} ${updated_at}`
    let found = compiled.get(key)
    if (!found) {
      found = compileDocument(document)
      compiled.set(key, found)
    }
    if (!found.valid && !recentlyLogged.has(id)) {
      recentlyLogged.set(id, true)
      log.error({ policy_id: id, version }, 'stored policy invalid, layer denies everything')
    }
    return found
  })
  return { kind, documents }
}
