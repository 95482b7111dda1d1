import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import type { Verification } from './model.ts'
import { hashOf, sealChain } from './seal.ts'
import { holdVerification, releaseVerification, sealHash, sealsAfter } from './store.ts'

/** Hashing a page of entries takes about 5 ms; other requests have their turn behind each. */
const PAGE = 250
const LEASE_SECONDS = 15
const RENEW_MS = 5000
const RETRY_MS = 250

/** What is checked: the seals of a chain behind a position, at most so many. */
export type Asked = { chain: string; after: number; limit: number }

type InTurn = <T>(work: () => Promise<T>) => Promise<T>

/** Runs works of the same key one after the other, in the order they came. */
function oneByOne() {
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
 * Verifications of a process. A chain is verified once at a time in the whole deployment, and a process asks the database
 * for one page at a time, whatever it verifies: long chains take time, and no connections. Callers that ask for the same
 * while it is under way share the next verification, so each gets what holds at a time after it asked.
 */
function openVerifier({ pool }: Services) {
  const byChain = oneByOne()
  const byPage = oneByOne()
  const inTurn: InTurn = work => byPage('', work)
  const waiting = new Map<string, Shared>()

  function share(asked: Asked, key: string): Shared {
    const abandoned = new AbortController()
    const verification = byChain(asked.chain, () => {
      if (waiting.get(key) === shared) waiting.delete(key)
      return alone(asked, abandoned.signal)
    })
    const shared = { verification, callers: new Set<AbortSignal>(), abandoned }
    return shared
  }

  /** Verifies while no other process verifies the same chain. Throws the reason of `abandoned` when it aborts. */
  async function alone(asked: Asked, abandoned: AbortSignal): Promise<Verification> {
    const holder = randomUUID()
    const hold = () => inTurn(() => holdVerification(pool, asked.chain, holder, LEASE_SECONDS))
    for (;;) {
      abandoned.throwIfAborted()
      if (await hold()) break
      await pause(RETRY_MS)
    }
    try {
      await sealChain(pool, asked.chain, abandoned, inTurn)
      return await check(asked, abandoned, hold)
    } finally {
      await inTurn(() => releaseVerification(pool, asked.chain, holder))
    }
  }

  /** Positions without a gap, every hash the one that its predecessor and its entry give, or its entry gone by retention. */
  async function check(
    { chain, after, limit }: Asked,
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
        const intact =
          seal.position === checked + 1 && (seal.entry ? hashOf(previous, seal.entry).equals(seal.hash) : seal.pruned)
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

  return function verify(asked: Asked, closed: AbortSignal): Promise<Verification> {
    const key = JSON.stringify(asked)
    let shared = waiting.get(key)
    if (!shared || shared.abandoned.signal.aborted) {
      shared = share(asked, key)
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
 * Seals what a chain has received, then checks it. `chain` is a project id or `global`. A position that has no seal is
 * broken: the end of the chain is missing.
 */
export const verifierOf = perProcess(openVerifier)
