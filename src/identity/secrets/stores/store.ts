import type { Services } from '../../../core/process/services.ts'

/** Why a store gave no value. What it said itself may name the deployment's account and is for the log alone. */
export type StoreFailure =
  | 'store_not_configured'
  | 'store_unreachable'
  | 'store_denied'
  | 'not_in_store'
  | 'unusable_value'

export type StoreAnswer = { ok: true; value: string } | { ok: false; reason: StoreFailure; detail: string }

export const storeFailure = (reason: StoreFailure, detail = ''): StoreAnswer => ({ ok: false, reason, detail })

/** A store of secrets that the deployment is set up for. Its address and credential are the operator's. */
export type SecretStore = {
  configured(config: Services['config']): boolean
  /**
   * Reads a value. Never throws for what the store does.
   * @param name where it lies, with the prefix of its project
   * @param field which part of what lies there; null for the store's default
   */
  read(
    services: Pick<Services, 'config'>,
    name: string,
    field: string | null,
    signal: AbortSignal,
  ): Promise<StoreAnswer>
}

/** Bytes of an answer: a value has at most 64 KiB, beside others in one entry. */
export const ANSWER_BYTES = 512 * 1024

/** A text field of what lies in a store. */
export function fieldOf(data: unknown, field: string): StoreAnswer {
  const value =
    typeof data === 'object' && data !== null && Object.hasOwn(data, field) ? Reflect.get(data, field) : undefined
  if (value === undefined) return storeFailure('not_in_store', `there is no field ${field}`)
  return typeof value === 'string' ? { ok: true, value } : storeFailure('unusable_value', `field ${field} is no text`)
}
