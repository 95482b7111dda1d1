import type { Services } from '#core/base/services.ts'

/**
 * Reason why a store returned no value. The store's own message may identify the deployment's account and is only
 * logged.
 */
export type StoreFailure =
  | 'store_not_configured'
  | 'store_unreachable'
  | 'store_denied'
  | 'not_in_store'
  | 'unusable_value'

export type StoreAnswer = { ok: true; value: string } | { ok: false; reason: StoreFailure; detail: string }

export const storeFailure = (reason: StoreFailure, detail = ''): StoreAnswer => ({ ok: false, reason, detail })

/** External store of secrets. The operator configures its address and credentials. */
export type SecretStore = {
  configured(config: Services['config']): boolean
  /**
   * Reads a value. Never throws for failures of the store.
   * @param name location, with the prefix of its project
   * @param field of the stored entry; null for the store's default
   */
  read(
    services: Pick<Services, 'config'>,
    name: string,
    field: string | null,
    signal: AbortSignal,
  ): Promise<StoreAnswer>
}

/** Maximum response size in bytes: a value has at most 64 KiB, but an entry may contain several values. */
export const ANSWER_BYTES = 512 * 1024

/** Returns a string field of a stored entry. */
export function fieldOf(data: unknown, field: string): StoreAnswer {
  const value =
    typeof data === 'object' && data !== null && Object.hasOwn(data, field) ? Reflect.get(data, field) : undefined
  if (value === undefined) return storeFailure('not_in_store', `field ${field} not found`)
  return typeof value === 'string'
    ? { ok: true, value }
    : storeFailure('unusable_value', `field ${field} is not a string`)
}
