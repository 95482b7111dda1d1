import { LRUCache } from 'lru-cache'
import type { Layer } from '../core/iam/decide.ts'
import { type CompiledDocument, compileDocument } from '../core/iam/policy.ts'
import type { Logger } from '../core/process/log.ts'
import type { AttachedPolicy } from './principal-store.ts'

const LOG_EVERY_MS = 60_000

// A document never changes under one id, version and time, so a compiled one never goes stale.
const compiled = new LRUCache<string, CompiledDocument>({ max: 5000 })
const complaints = new LRUCache<string, true>({ max: 1000, ttl: LOG_EVERY_MS })

/**
 * Makes a layer of attached policies. A document that no longer parses denies everything in its layer and is logged once
 * a minute.
 */
export function policyLayer(kind: Layer['kind'], policies: readonly AttachedPolicy[], log: Logger): Layer {
  const documents = policies.map(({ id, version, updated_at, document }) => {
    const name = `${id} ${version} ${updated_at}`
    let found = compiled.get(name)
    if (!found) {
      found = compileDocument(document)
      compiled.set(name, found)
    }
    if (!found.valid && !complaints.has(id)) {
      complaints.set(id, true)
      log.error({ policy_id: id, version }, 'stored policy does not parse and denies everything')
    }
    return found
  })
  return { kind, documents }
}
