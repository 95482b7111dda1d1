import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { withoutTenantLimit } from '../../core/db/tenant-context.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import type { Verification } from './model.ts'
import { entryHash, sealChain } from './seal.ts'
import { acquireVerificationLease, releaseVerificationLease, sealHash, sealsAfter } from './store.ts'

/** Hashing a page of entries blocks the event loop for about 5 ms. */
const PAGE = 250
const LEASE_SECONDS = 15
const RENEW_MS = 5000
const RETRY_MS = 250

/** What to check: at most `limit` seals of a chain after a position. */
export type Range = { chain: string; after: number; limit: number }

type InTurn = <T>(work: () => Promise<T>) => Promise<T>

/** Runs tasks with the same key one after the other, first come, first served. */
function serialByKey() {
  const last = new Map<string, Promise<unknown>>()
  return <T>(key: string, work: () => Promise<T>): Promise<T> => {
    const result = (last.get(key) ?? Promise.resolve()).then(work)
    const done = result.then(
      () => {},
      () => {},
    )
    last.set(key, done)
    void done.then(() => last.get(key) === done && last.delete(key))
    return result
  }
}

type Shared = { verification: Promise<Verification>; callers: Set<AbortSignal>; abandoned: AbortController }

/**
 * Verifications of a process. One verification of a chain runs at a time in the whole deployment, and a process reads one
 * page at a time for all of them, so that long chains take time but no connections. Callers with the same range that
 * arrive while it is verified share the next verification: each result is of a time after its caller asked.
 */
function openVerifier({ pool }: Services) {
  const byChain = serialByKey()
  const byPage = serialByKey()
  const inTurn: InTurn = work => byPage('', work)
  const waiting = new Map<string, Shared>()

  function share(range: Range, key: string): Shared {
    const abandoned = new AbortController()
    const verification = withoutTenantLimit(() =>
      byChain(range.chain, () => {
        if (waiting.get(key) === shared) waiting.delete(key)
        return verifyAlone(range, abandoned.signal)
      }),
    )
    const shared = { verification, callers: new Set<AbortSignal>(), abandoned }
    return shared
  }

  /** Verifies under the lease of the chain. Throws the reason of `abandoned` when it aborts. */
  async function verifyAlone(range: Range, abandoned: AbortSignal): Promise<Verification> {
    const holder = randomUUID()
    const hold = () => inTurn(() => acquireVerificationLease(pool, range.chain, holder, LEASE_SECONDS))
    for (;;) {
      abandoned.throwIfAborted()
      if (await hold()) break
      await pause(RETRY_MS)
    }
    try {
      await sealChain(pool, range.chain, abandoned, inTurn)
      return await check(range, abandoned, hold)
    } finally {
      await inTurn(() => releaseVerificationLease(pool, range.chain, holder))
    }
  }

  /** Valid: positions without a gap; every hash follows from its predecessor and its entry, unless retention removed that. */
  async function check(
    { chain, after, limit }: Range,
    abandoned: AbortSignal,
    renew: () => Promise<boolean>,
  ): Promise<Verification> {
    let previous = after === 0 ? Buffer.alloc(0) : await inTurn(() => sealHash(pool, chain, after))
    if (!previous) return { valid: false, checked: after, first_broken_id: null }
    let checked = after
    let renewed = performance.now()
    for (;;) {
      abandoned.throwIfAborted()
      const size = Math.min(PAGE, after + limit - checked)
      const seals = await inTurn(() => sealsAfter(pool, chain, checked, size))
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

  return function verify(range: Range, closed: AbortSignal): Promise<Verification> {
    const key = JSON.stringify(range)
    let shared = waiting.get(key)
    if (!shared || shared.abandoned.signal.aborted) {
      shared = share(range, key)
      waiting.set(key, shared)
    }
    const { abandoned, callers, verification } = shared
    callers.add(closed)
    const leave = () => {
      callers.delete(closed)
      if (callers.size === 0) abandoned.abort(closed.reason)
    }
    if (closed.aborted) leave()
    else closed.addEventListener('abort', leave, { once: true })
    return verification
  }
}

/**
 * Seals the new entries of a chain, then checks it. `chain` is a project id or `global`. A start position without a seal
 * is not valid: the end of the chain is missing.
 */
export const verifierOf = processSingleton(openVerifier)
