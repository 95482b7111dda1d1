import { LRUCache } from 'lru-cache'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { countDeviceCodes, countLimitUse, findLimitUse, refundLimitUse } from '../grants/store.ts'
import { withBudget } from '../sign-in/budget.ts'
import { networkOf } from '../sign-in/networks.ts'

/** Limits on callers without a credential, counted in the database across all processes. */
export const LIMITS = {
  // An office has one address, and each program of each person in it registers.
  registration: { limit: 60, windowSeconds: 3600 },
  authorization: { limit: 60, windowSeconds: 600 },
  device_authorization: { limit: 20, windowSeconds: 600 },
  page: { limit: 300, windowSeconds: 600 },
  token_failure: { limit: 60, windowSeconds: 60 },
  token_question: { limit: 300, windowSeconds: 60 },
  // Lower than the limit per host, so that one sender cannot exhaust the fetches of a host.
  document_sender: { limit: 8, windowSeconds: 60 },
  document_host: { limit: 10, windowSeconds: 60 },
  document: { limit: 120, windowSeconds: 60 },
  user_code_session: { limit: 5, windowSeconds: 600 },
  user_code: { limit: 10, windowSeconds: 600 },
} as const

type LimitKind = keyof typeof LIMITS

/** Capacity for registered clients without consent and for live device codes, across all senders. Tests lower it. */
export const CAPACITY = { unusedClients: 2000, deviceCodes: 1000 }
/** Retry delay in seconds when a capacity that is freed by expiry is exhausted. */
export const RETRY_SECONDS = 60

/** Seconds until an exhausted limit resets; null if it is not exhausted. */
export type SpentLimit = number | null

/** Counts a use of a limit. `sender` is the network in whose turn the statement runs. */
export async function spendLimit(
  services: Services,
  kind: LimitKind,
  subject: string,
  sender = subject,
): Promise<SpentLimit> {
  const { count, seconds } = await withBudget(services, sender, db => countLimitUse(db, kind, subject, LIMITS[kind]))
  return count > LIMITS[kind].limit ? Math.max(1, seconds) : null
}

/** Checks a limit without counting a use. */
export async function isLimitSpent(
  services: Services,
  kind: LimitKind,
  subject: string,
  sender = subject,
): Promise<SpentLimit> {
  const { limit, windowSeconds } = LIMITS[kind]
  const { count, seconds } = await withBudget(services, sender, db => findLimitUse(db, kind, subject, windowSeconds))
  return count >= limit ? seconds : null
}

/** Refunds a use of a limit. */
export const refundLimit = (services: Services, kind: LimitKind, subject: string, sender = subject): Promise<unknown> =>
  withBudget(services, sender, db => refundLimitUse(db, kind, subject))

/** Returns the subject under which a browser session is limited. */
export const sessionSubject = (id: string): string => sha256Of(id).toString('hex')

/** Returns the caller's address as resolved by Express. */
export const senderIp = (ctx: { req: object }): string => (ctx.req as { ip?: string }).ip ?? ''

/** Returns the caller's network; empty for work of the library outside of a request. */
export const senderNetwork = (ctx: { req: object } | undefined): string => (ctx ? networkOf(senderIp(ctx)) : '')

/**
 * End of the block of senders with too many failed token requests. Another process blocks them at their next failure
 * there.
 */
const blockedSenders = processSingleton(() => new LRUCache<string, number>({ max: 10_000 }))

export async function countTokenFailure(services: Services, ip: string): Promise<void> {
  const sender = networkOf(ip)
  const seconds = await spendLimit(services, 'token_failure', sender)
  if (seconds !== null) blockedSenders(services).set(sender, performance.now() + seconds * 1000)
}

/** Whether token requests of the sender are refused; needs no query. */
export function findTokenBlock(services: Services, ip: string | undefined): SpentLimit {
  const until = blockedSenders(services).get(networkOf(ip))
  const remainingMs = until === undefined ? 0 : until - performance.now()
  return remainingMs > 0 ? Math.ceil(remainingMs / 1000) : null
}

/** Whether the number of live device codes is at its limit: more of them would make guessing a code too easy. */
export const checkDeviceCodeCapacity = async (services: Services, sender: string): Promise<SpentLimit> =>
  (await withBudget(services, sender, countDeviceCodes)) >= CAPACITY.deviceCodes ? RETRY_SECONDS : null
