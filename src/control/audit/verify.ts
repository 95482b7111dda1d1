import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { settledWithin } from '#core/base/event-loop.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { withoutTenantLimit } from '#core/db/tenant-context.ts'
import type { Verification } from './model.ts'
import { entryHash, sealChain } from './seal.ts'
import {
  acquireVerificationLease,
  findChainStart,
  findSealHash,
  listSealsAfter,
  releaseVerificationLease,
} from './store.ts'

/** Hashing a page of entries blocks the event loop for about 5 ms. */
const PAGE = 250
const LEASE_SECONDS = 15
const RENEW_MS = 5000
const RETRY_MS = 250
/** Longest time that a verification waits for its release. */
const RELEASE_WAIT_MS = 2000

/** Range to verify: at most `limit` seals of a chain after position `after`. */
export type VerificationRange = { chain: string; after: number; limit: number }

type Serialize = <T>(task: () => Promise<T>) => Promise<T>

/** Returns a function that runs tasks with the same key sequentially, in order of arrival. */
function serialByKey() {
  const lastByKey = new Map<string, Promise<unknown>>()
  return <T>(key: string, task: () => Promise<T>): Promise<T> => {
    const result = (lastByKey.get(key) ?? Promise.resolve()).then(task)
    const done = result.then(
      () => {},
      () => {},
    )
    lastByKey.set(key, done)
    void done.then(() => lastByKey.get(key) === done && lastByKey.delete(key))
    return result
  }
}

type SharedVerification = { verification: Promise<Verification>; callers: Set<AbortSignal>; abandoned: AbortController }

/**
 * Verifies the chains of a process. One verification of a chain runs at a time in the whole deployment, and a process
 * reads one page at a time for all chains, so verifying a long chain does not occupy connections. Callers with the same
 * range that arrive during its verification share the next one: each result reflects a time after the call.
 */
class ChainVerifier {
  readonly #pool: Services['pool']
  readonly #log: Services['log']
  readonly #byChain = serialByKey()
  readonly #serialize: Serialize
  /** Verifications that have not begun, by range. */
  readonly #waiting = new Map<string, SharedVerification>()

  constructor({ pool, log }: Services) {
    const byPage = serialByKey()
    this.#pool = pool
    this.#log = log
    this.#serialize = task => byPage('', task)
  }

  #startShared(range: VerificationRange, key: string): SharedVerification {
    const abandoned = new AbortController()
    const verification = withoutTenantLimit(() =>
      this.#byChain(range.chain, () => {
        if (this.#waiting.get(key) === shared) this.#waiting.delete(key)
        return this.#verifyUnderLease(range, abandoned.signal)
      }),
    )
    const shared = { verification, callers: new Set<AbortSignal>(), abandoned }
    return shared
  }

  /**
   * Verifies a range under the lease of its chain.
   * @throws the reason of `abandoned` when it aborts
   */
  async #verifyUnderLease(range: VerificationRange, abandoned: AbortSignal): Promise<Verification> {
    const holder = randomUUID()
    const renewLease = () =>
      this.#serialize(() => acquireVerificationLease(this.#pool, range.chain, holder, LEASE_SECONDS))
    try {
      for (;;) {
        abandoned.throwIfAborted()
        if (await renewLease()) break
        await pause(RETRY_MS)
      }
      await sealChain(this.#pool, range.chain, abandoned, this.#serialize)
      return await this.#checkSeals(range, abandoned, renewLease)
    } finally {
      // Also a lease whose answer was lost.
      const release = () => this.#serialize(() => releaseVerificationLease(this.#pool, range.chain, holder))
      await settledWithin(
        RELEASE_WAIT_MS,
        retryWhileUnavailable(release).catch(error =>
          this.#log.error({ err: error }, 'audit verification lease not released'),
        ),
      )
    }
  }

  /**
   * Checks that positions have no gap and that every hash follows from its predecessor and its entry, except entries
   * removed by retention. Skips the seals that retention removed, even during the verification.
   */
  async #checkSeals(
    { chain, after, limit }: VerificationRange,
    abandoned: AbortSignal,
    renew: () => Promise<boolean>,
  ): Promise<Verification> {
    const findStart = () => this.#serialize(() => findChainStart(this.#pool, chain))
    const findHash = (start: Awaited<ReturnType<typeof findStart>>, position: number) => {
      if (start?.position === position) return start.hash
      return position === 0 ? Buffer.alloc(0) : this.#serialize(() => findSealHash(this.#pool, chain, position))
    }
    let start = await findStart()
    let checked = Math.max(after, start?.position ?? 0)
    let previous = await findHash(start, checked)
    if (!previous) {
      // Retention may have removed the seal since its chain was read.
      start = await findStart()
      checked = Math.max(after, start?.position ?? 0)
      previous = await findHash(start, checked)
    }
    if (!previous) return { valid: false, checked: after, first_broken_id: null }
    let renewed = performance.now()
    for (;;) {
      abandoned.throwIfAborted()
      const size = Math.min(PAGE, Math.max(0, after + limit - checked))
      const seals = await this.#serialize(() => listSealsAfter(this.#pool, chain, checked, size))
      if (seals.length > 0 && seals[0].position > checked + 1) {
        start = await findStart()
        if (start && start.position > checked) {
          checked = start.position
          previous = start.hash
          continue
        }
      }
      for (const seal of seals) {
        const unchanged = seal.id === null ? seal.pruned : entryHash(previous, seal).equals(seal.hash)
        const intact = unchanged && seal.position === checked + 1
        checked++
        if (!intact) return { valid: false, checked, first_broken_id: seal.entry_id }
        previous = seal.hash
      }
      if (seals.length < PAGE) return { valid: true, checked, first_broken_id: null }
      if (performance.now() - renewed > RENEW_MS) {
        await renew()
        renewed = performance.now()
      }
    }
  }

  /**
   * Seals the new entries of a chain, then verifies it. `chain` is a project id or `global`. A start position without a
   * seal is invalid: the end of the chain is missing.
   */
  verify(range: VerificationRange, closed: AbortSignal): Promise<Verification> {
    const key = JSON.stringify(range)
    let shared = this.#waiting.get(key)
    if (!shared || shared.abandoned.signal.aborted) {
      shared = this.#startShared(range, key)
      this.#waiting.set(key, shared)
    }
    const { abandoned, callers, verification } = shared
    callers.add(closed)
    const removeCaller = () => {
      callers.delete(closed)
      if (callers.size === 0) abandoned.abort(closed.reason)
    }
    if (closed.aborted) removeCaller()
    else closed.addEventListener('abort', removeCaller, { once: true })
    return verification
  }
}

/** The verifier of a process. */
export const auditVerifier = processSingleton(services => new ChainVerifier(services))
