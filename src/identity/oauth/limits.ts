import { LRUCache } from 'lru-cache'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { sha256Of } from '../../core/secrets/digest.ts'
import { withBudget } from '../budget.ts'
import { networkOf } from '../networks.ts'
import { countDeviceCodes, countUse, readUse, uncountUse } from './store.ts'

/** Bounds on callers without a credential, counted in the database for all processes. */
export const LIMITS = {
  registration: { limit: 20, windowSeconds: 3600 },
  authorization: { limit: 60, windowSeconds: 600 },
  device_authorization: { limit: 20, windowSeconds: 600 },
  page: { limit: 300, windowSeconds: 600 },
  token_failure: { limit: 60, windowSeconds: 60 },
  token_question: { limit: 300, windowSeconds: 60 },
  // Fewer than a host has: no sender keeps others from the documents of a host.
  document_sender: { limit: 8, windowSeconds: 60 },
  document_host: { limit: 10, windowSeconds: 60 },
  document: { limit: 120, windowSeconds: 60 },
  user_code_session: { limit: 5, windowSeconds: 600 },
  user_code: { limit: 10, windowSeconds: 600 },
} as const

type LimitKind = keyof typeof LIMITS

/** Registered clients without a consent, and live device codes, of all senders. Tests lower it. */
export const CAPACITY = { unusedClients: 2000, deviceCodes: 1000 }
/** Seconds until a client tries again where what is full empties by expiry. */
export const RETRY_SECONDS = 60

/** Seconds until a spent limit is free again; null while it is not spent. */
export type SpentLimit = number | null

/** Counts a use of a limit. `sender` is the network that takes its turn for it. */
export async function spendLimit(
  services: Services,
  kind: LimitKind,
  subject: string,
  sender = subject,
): Promise<SpentLimit> {
  const { count, seconds } = await withBudget(services, sender, db => countUse(db, kind, subject, LIMITS[kind]))
  return count > LIMITS[kind].limit ? Math.max(1, seconds) : null
}

/** Whether a limit is spent, without counting. */
export async function isLimitSpent(
  services: Services,
  kind: LimitKind,
  subject: string,
  sender = subject,
): Promise<SpentLimit> {
  const { limit, windowSeconds } = LIMITS[kind]
  const { count, seconds } = await withBudget(services, sender, db => readUse(db, kind, subject, windowSeconds))
  return count >= limit ? seconds : null
}

/** Takes a use of a limit back. */
export const refundLimit = (services: Services, kind: LimitKind, subject: string, sender = subject): Promise<unknown> =>
  withBudget(services, sender, db => uncountUse(db, kind, subject))

/** A session of a browser, as limits name it. */
export const sessionSubject = (id: string): string => sha256Of(id).toString('hex')

/** Address of a caller, as Express resolved it. */
export const senderIp = (ctx: { req: object }): string => (ctx.req as { ip?: string }).ip ?? ''

/** Network of a caller; what the library does without a request has none. */
export const senderNetwork = (ctx: { req: object } | undefined): string => (ctx ? networkOf(senderIp(ctx)) : '')

/** Senders whose token requests failed too often, until when. Another process finds out by their next failure there. */
const blocked = processSingleton(() => new LRUCache<string, number>({ max: 10_000 }))

export async function countTokenFailure(services: Services, ip: string): Promise<void> {
  const sender = networkOf(ip)
  const seconds = await spendLimit(services, 'token_failure', sender)
  if (seconds !== null) blocked(services).set(sender, performance.now() + seconds * 1000)
}

/** Whether the sender of a token request is refused; costs no statement. */
export function tokensRefused(services: Services, ip: string | undefined): SpentLimit {
  const until = blocked(services).get(networkOf(ip))
  const left = until === undefined ? 0 : until - performance.now()
  return left > 0 ? Math.ceil(left / 1000) : null
}

/** Whether as many device codes are live as there may be: more would make guessing one too easy. */
export const deviceCodesFull = async (services: Services, sender: string): Promise<SpentLimit> =>
  (await withBudget(services, sender, countDeviceCodes)) >= CAPACITY.deviceCodes ? RETRY_SECONDS : null
